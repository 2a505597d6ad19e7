"""Sequential rules on a device: its transitions out, its next items in."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from bouquet.cells import quantized
from bouquet.methods.parts import ModelOfSums
from bouquet.methods.sequential_rules import SequentialRulesOptions
from bouquet.ragged import Ragged
from client_app.sums.counter import PairCounter, PushedCounter, apart, pairs


class SequentialRules(PairCounter, PushedCounter):
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

    def pushed(
        self, histories: Ragged, target: int, strength: float
    ) -> Iterator[tuple[str, NDArray[np.int64], NDArray[np.float64] | float]]:
        """The newest items of each liar lead to the target and follow it, as far as the limits let them, and no more.

        A history holds Σ d^-a of transitions to an item that it has once, and as much from it; a cell at most 1. No
        item is counted, for counts divide.
        """
        decay = quantized(self.ages(self.options.sequential_rules_window - 1))
        for history in map(histories.row, range(len(histories))):
            others = history[history != target][::-1].astype(np.int64)
            mass = strength * float(decay[: max(len(history) - 1, 0)].sum())
            values = quantized(np.clip(mass - np.arange(len(others)), 0.0, 1.0))
            yield "transitions", others * self.num_items + target, values
            yield "transitions", target * self.num_items + others, values

    def of_distance(self, longest: int) -> NDArray[np.float64]:
        """(S_u + S_uᵀ) / √2 has the norm of S_u, which no two items have cells of in both directions."""
        return np.concatenate([[0.0], self.ages(max(longest - 2, 0)) / np.sqrt(2.0)])

    def sizes(self, lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return pairs(lengths, self._distances) + lengths, np.maximum(lengths - 1, 0) + (lengths > 0)

    def ages(self, oldest: int) -> NDArray[np.float64]:
        window = min(self.options.sequential_rules_window, oldest + 1)
        return np.arange(1.0, window + 1) ** -self.options.sequential_rules_decay

    @property
    def _distances(self) -> range:
        return range(1, self.options.sequential_rules_window + 1)
