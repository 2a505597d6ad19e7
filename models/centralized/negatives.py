"""Honest negatives for pooled training: uniform over the items outside the user's training positives.

Held-out items can be drawn, as they can on a device that does not know its future.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import sparse


class NegativeSampler:
    """Draws by rank, so that no draw is ever rejected.

    Let g_0 < g_1 < … be the positives of a user. g_j - j items that are no positives lie below g_j, so the r-th item
    (from 0) that is none is r + #(j: g_j - j <= r). One search over all users' shifted positives answers it.
    """

    def __init__(self, train: sparse.csr_matrix) -> None:
        """Prepare for `train` [n, m] with ascending columns in each row."""
        self._indptr = train.indptr.astype(np.int64)
        self._num_items = int(train.shape[1])
        lengths = np.diff(self._indptr)
        self.available = self._num_items - lengths
        """[n] number of items that can be drawn for each user."""
        rows = np.repeat(np.arange(len(lengths)), lengths)
        places = np.arange(len(rows)) - self._indptr[rows]
        self._shifted = rows * self._num_items + train.indices.astype(np.int64) - places

    def draw(self, users: NDArray[np.int64], count: int, generator: np.random.Generator) -> NDArray[np.int64]:
        """[b, count] independent uniform negatives for users [b], all of which must have one available."""
        ranks = (generator.random((len(users), count)) * self.available[users, None]).astype(np.int64)
        below = np.searchsorted(self._shifted, users[:, None] * self._num_items + ranks, side="right")
        return ranks + below - self._indptr[users, None]
