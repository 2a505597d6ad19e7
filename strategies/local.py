"""No federation: every user learns alone, from the same start, and nothing about the model travels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Arrays, Specs
from bouquet.wire import TrainReply
from strategies.federation.base import BaseStrategy


class Local(BaseStrategy):
    """Each user has a whole model of its own; the server only counts rounds."""

    def traveling(self, specs: Specs) -> Specs:
        return {}

    def aggregate(
        self, server_round: int, shared: Arrays, replies: list[TrainReply], users: list[NDArray[np.int64]]
    ) -> Arrays:
        return shared
