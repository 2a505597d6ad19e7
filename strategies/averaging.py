"""Averaging: one shared model, the mean of what the users changed.

FCF (Ammad-ud-din et al., 2019) weighs all users alike, FedAvg (McMahan et al., 2017) by their number of training
interactions:

    Δ = Σ_u w_u Δ_u / Σ_u w_u,    w_u = 1 or n_u

The shared arrays then take a server optimiser's step along Δ.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Arrays
from bouquet.config import RunConfig
from bouquet.methods.parts import ServerOptimizerOptions
from bouquet.needs import bytes_of
from bouquet.reporting.run_directory import RunDirectory
from bouquet.wire import TrainReply, Weighting
from strategies.federation.base import BaseStrategy, Extra
from strategies.numerics.server_optimizer import ServerOptimizer


class FedAvg(BaseStrategy):
    """The mean of the users' changes, weighed by their number of training interactions."""

    options: ServerOptimizerOptions

    def __init__(self, config: RunConfig, options: ServerOptimizerOptions, directory: RunDirectory) -> None:
        super().__init__(config, options, directory)
        self.optimizer = ServerOptimizer(options)

    def aggregate(
        self, server_round: int, shared: Arrays, replies: list[TrainReply], users: list[NDArray[np.int64]]
    ) -> Arrays:
        return self.optimizer.step(server_round, shared, mean_change(shared, replies))

    def kept_bytes(self) -> int:
        return self.optimizer.kept_bytes(bytes_of(self.traveling(self.roster.specs)))

    def working_bytes(self) -> float:
        return self.optimizer.working_bytes(bytes_of(self.traveling(self.roster.specs)))

    def extra_arrays(self) -> Extra:
        return self.optimizer.arrays()

    def restore_extra(self, arrays: Extra) -> None:
        self.optimizer.restore(arrays)


class FCF(FedAvg):
    """The plain mean of the users' changes: FedMF on matrix factorisation, FedNCF on neural collaborative filtering."""

    weighting: Weighting = "uniform"


def mean_change(shared: Arrays, replies: list[TrainReply]) -> dict[str, NDArray[np.float64]]:
    """Δ = Σ w_u Δ_u / Σ w_u over all users of the round, in float64; rows that nobody touched are 0."""
    total_weight = sum(reply.weight for reply in replies)
    mean = {}
    for name, values in shared.items():
        total = np.zeros(values.shape)
        for reply in replies:
            reply.sums[name].add_to(total, reply.factor)
        mean[name] = total / total_weight if total_weight > 0 else total
    return mean
