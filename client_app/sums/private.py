"""What a device gives to a private sum: one symmetric matrix of pairs of items, of limited Frobenius norm.

Two items of a history that are d apart count v(d) in both directions, v(0) on the diagonal. No item stands twice in a
history, so every pair has one distance, and the norm of the matrix follows from the length n of the history alone:

    ‖M_u‖² = n v(0)² + 2 Σ_{d >= 1} max(n - d, 0) v(d)²

The device scales M_u by min(1, C / ‖M_u‖). Cells are then rounded towards 0 to multiples of 2^-24, which can only
shorten it, and keeps sums exact.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Specs
from bouquet.cells import FINE, CellSpec
from bouquet.methods.parts import PAIRS, published_factors
from bouquet.ragged import Ragged
from client_app.sums.counter import Counter, PairCounter, Published, apart, pairs


class PrivateCounter(Counter):
    """A counter whose users give limited matrices of pairs and nothing else.

    Args:
        counter: whose pairs they are, and who recommends.
        clip: C.
        rank: of what is published.
    """

    def __init__(self, counter: PairCounter, clip: float, rank: int = 1) -> None:
        super().__init__(counter.num_items, counter.options)
        self._counter, self._clip, self._rank = counter, clip, rank
        self.specs = {PAIRS: CellSpec((self.num_items, self.num_items), symmetric=True)}

    @property
    def traveling(self) -> Specs:
        return published_factors(self.num_items, self._rank)

    def counted(self, histories: Ragged) -> Iterator[tuple[str, NDArray[np.int64], NDArray[np.float64] | float]]:
        items, lengths = histories.values.astype(np.int64), histories.lengths
        longest = int(lengths.max(initial=0))
        weights = self._counter.of_distance(longest)
        factor = (self._clip / np.maximum(norms(weights, lengths), self._clip))[histories.row_of_value]
        for distance, places in apart(histories, range(len(weights))):
            if weights[distance] == 0:
                continue
            one, other = items[places], items[places + distance]
            values = np.floor(factor[places] * weights[distance] / FINE) * FINE
            yield PAIRS, np.minimum(one, other) * self.num_items + np.maximum(one, other), values

    def sizes(self, lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        weights = self._counter.of_distance(int(lengths.max(initial=0)))
        return pairs(lengths, range(int(weights[:1].sum() == 0), len(weights))), lengths

    def scores(self, published: Published, histories: Ragged) -> NDArray[np.float32]:
        return self._counter.scores(published, histories)


def norms(weights: NDArray[np.float64], lengths: NDArray[np.int64]) -> NDArray[np.float64]:
    """[k] Frobenius norms of the matrices of histories of these lengths.

    Args:
        weights: v(0), v(1), …; beyond it is 0.
    """
    square = np.where(np.arange(len(weights)) > 0, 2.0, 1.0) * weights**2
    before = np.concatenate([[0.0], np.cumsum(square)])
    moment = np.concatenate([[0.0], np.cumsum(np.arange(len(weights)) * square)])
    last = np.minimum(lengths, len(weights))
    # Σ_{d < n} (n - d) s_d, a little up: these sums are rounded.
    return np.sqrt(np.maximum(lengths * before[last] - moment[last], 0.0)) * (1 + 1e-9)
