"""The server's half: momentum along the mean change."""

import numpy as np
from numpy.typing import NDArray

from bouquet.extend import Arrays, BaseStrategy, Extra, RunConfig, RunDirectory, TrainReply, bytes_of, mean_change
from my_method import MyOptions


class Momentum(BaseStrategy):
    """FedAvgM."""

    options: MyOptions

    def __init__(self, config: RunConfig, options: MyOptions, directory: RunDirectory) -> None:
        super().__init__(config, options, directory)
        self.speed: Extra = {}

    def aggregate(
        self, server_round: int, shared: Arrays, replies: list[TrainReply], users: list[NDArray[np.int64]]
    ) -> Arrays:
        for name, change in mean_change(shared, replies).items():
            self.speed[name] = self.options.my_method_momentum * self.speed.get(name, 0.0) + change
        rate = self.options.my_method_rate
        return {name: (values + rate * self.speed[name]).astype(np.float32) for name, values in shared.items()}

    # What is kept from round to round belongs into a checkpoint, and counts before the first round.

    def extra_arrays(self) -> Extra:
        return dict(self.speed)

    def restore_extra(self, arrays: Extra) -> None:
        self.speed = dict(arrays)

    def kept_bytes(self) -> int:
        return 2 * bytes_of(self.traveling(self.roster.specs))  # float64
