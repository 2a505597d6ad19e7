"""Sequential rules on a device: its transitions out, its next items in."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from bouquet.cells import quantized
from bouquet.methods.parts import ModelOfSums
from bouquet.methods.sequential_rules import SequentialRulesOptions
from bouquet.ragged import Ragged
from client_app.sums.counter import Counter, apart, pairs


class SequentialRules(Counter):
    """S_u[i_t, i_{t+d}] = d^-a for d = 1 … L; scores Σ_{age < L} (1 + age)^-a K[i_age, ·]."""

    options: SequentialRulesOptions
    without_order = "use a method that reads no order, such as a pooled ridge over pairs"

    @staticmethod
    def reads_order(options: ModelOfSums) -> bool:
        return True

    def counted(self, histories: Ragged) -> Iterator[tuple[str, NDArray[np.int64], NDArray[np.float64] | float]]:
        items = histories.values.astype(np.int64)
        yield "counts", items, 1.0
        decay = self.ages(self.options.sequential_rules_window - 1)
        for distance, places in apart(histories, self._distances):
            keys = items[places] * self.num_items + items[places + distance]
            yield "transitions", keys, quantized(float(decay[distance - 1]))

    def sizes(self, lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return pairs(lengths, self._distances) + lengths, np.maximum(lengths - 1, 0) + (lengths > 0)

    def ages(self, oldest: int) -> NDArray[np.float64]:
        window = min(self.options.sequential_rules_window, oldest + 1)
        return np.arange(1.0, window + 1) ** -self.options.sequential_rules_decay

    @property
    def _distances(self) -> range:
        return range(1, self.options.sequential_rules_window + 1)
