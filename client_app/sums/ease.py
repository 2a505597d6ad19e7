"""EASE on a device: which items it has together."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from bouquet.methods.ease import EaseOptions
from bouquet.methods.parts import ModelOfSums
from bouquet.ragged import Ragged
from client_app.sums.counter import PairCounter, apart, pairs


class Ease(PairCounter):
    """G_u = x_u x_uᵀ, with x_u the 0/1 vector of the items; scores Σ_age (1 + age)^-r B[i_age, ·], x_u B for r = 0."""

    options: EaseOptions
    without_order = "leave ease-recency at 0"

    @staticmethod
    def reads_order(options: ModelOfSums) -> bool:
        assert isinstance(options, EaseOptions)
        return options.ease_recency > 0

    def ages(self, oldest: int) -> NDArray[np.float64]:
        return np.asarray(np.arange(1.0, oldest + 2) ** -self.options.ease_recency)

    def counted(self, histories: Ragged) -> Iterator[tuple[str, NDArray[np.int64], NDArray[np.float64] | float]]:
        items = histories.values.astype(np.int64)
        for distance, places in apart(histories, range(int(histories.lengths.max(initial=0)))):
            one, other = items[places], items[places + distance]
            yield "together", np.minimum(one, other) * self.num_items + np.maximum(one, other), 1.0

    def of_distance(self, longest: int) -> NDArray[np.float64]:
        return np.ones(longest)

    def sizes(self, lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return pairs(lengths, range(int(lengths.max(initial=0)) + 1)), lengths
