"""Sequential ridge on a device: what it had before each of its items."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from bouquet.cells import quantized
from bouquet.methods.parts import ModelOfSums
from bouquet.methods.slist import SlistOptions
from bouquet.ragged import Ragged
from client_app.sums.counter import Counter, apart, pairs, until_end


class Slist(Counter):
    """P_u = Σ_t x_t x_tᵀ and Q_u = Σ_t x_t e_{i_{t+1}}ᵀ, with x_t = Σ_{age < L} (1 + age)^-a e_{i_{t-age}}.

    Items s <= s' of a history of n items stand together in x_t for t = s' … min(s + L, n) - 1, the last of which has a
    next item only below n - 1. So with d = s' - s

        P_u[i_s, i_s'] = Σ_{j = 0}^{min(n - 2 - s', L - 1 - d)} (1 + j)^-a (1 + j + d)^-a
    """

    options: SlistOptions
    without_order = "use a method that reads no order, such as a pooled ridge over pairs"

    @staticmethod
    def reads_order(options: ModelOfSums) -> bool:
        return True

    def counted(self, histories: Ragged) -> Iterator[tuple[str, NDArray[np.int64], NDArray[np.float64] | float]]:
        items, m = histories.values.astype(np.int64), self.num_items
        longest = int(histories.lengths.max(initial=0))
        decay = self.ages(longest)
        for distance, places in apart(histories, range(1, self._window(longest) + 1)):
            keys = items[places] * m + items[places + distance]
            yield "next", keys, quantized(float(decay[distance - 1]))
        left = until_end(histories)
        for distance, places in apart(histories, range(self._window(longest))):
            places = places[left[places + distance] > 0]
            together = quantized(np.cumsum(decay[: len(decay) - distance] * decay[distance:]))
            one, other = items[places], items[places + distance]
            keys = np.minimum(one, other) * m + np.maximum(one, other)
            yield "before", keys, together[np.minimum(left[places + distance] - 1, len(together) - 1)]

    def sizes(self, lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        window = self._window(int(lengths.max(initial=0)))
        inputs = np.maximum(lengths - 1, 0)
        return pairs(lengths, range(1, window + 1)) + pairs(inputs, range(window)), 2 * inputs

    def ages(self, oldest: int) -> NDArray[np.float64]:
        return np.arange(1.0, self._window(oldest + 1) + 1) ** -self.options.slist_decay

    def _window(self, longest: int) -> int:
        return min(self.options.slist_window or longest, longest)
