"""Item-based nearest neighbours (Sarwar et al., WWW 2001; shrinkage after Bell & Koren, ICDM 2007).

s_ij = c_ij / (sqrt(c_i c_j) + h)      cosine of the items' user columns, c_ij users with both, h shrinkage
score(u, i) = sum of s_ij over the training positives j of u among the k nearest neighbours of i
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy import sparse

from bouquet.errors import BouquetError
from models.centralized.base import Rows, Scores, ValidationScore, binary, fitted

_BLOCK_BYTES = 64 * 2**20


@dataclass(frozen=True)
class ItemKNNParameters:
    """Hyper-parameters of `ItemKNN`.

    Attributes:
        neighbours: k, how many most similar items count for an item, > 0.
        shrinkage: h >= 0; pulls similarities that rest on few users towards 0.
    """

    neighbours: int = 20
    shrinkage: float = 10.0


class ItemKNN:
    """Cosine similarity with shrinkage over the k nearest items."""

    def __init__(self, parameters: ItemKNNParameters | None = None) -> None:
        self.parameters = parameters or ItemKNNParameters()
        self._train: sparse.csr_matrix | None = None
        self._neighbours: sparse.csr_matrix | None = None

    def fit(self, train: sparse.csr_matrix, *, seed: int = 0, validation_score: ValidationScore | None = None) -> Self:
        """Find the neighbours, a block of items at a time (see `CentralizedModel.fit`).

        Raises:
            BouquetError: no neighbours are asked for, or the shrinkage is negative.
        """
        if self.parameters.neighbours < 1 or self.parameters.shrinkage < 0:
            raise BouquetError(
                f"ItemKNN needs at least 1 neighbour and a shrinkage of 0 or more, not {self.parameters}."
            )
        matrix = binary(train)
        num_items = matrix.shape[1]
        by_item = matrix.T.tocsr()
        block = max(1, _BLOCK_BYTES // (8 * num_items))
        found = [self._nearest(by_item, matrix, start, block) for start in range(0, num_items, block)]
        # Row i holds the neighbours of item i; scoring needs them as columns.
        self._neighbours = sparse.vstack(found).T.tocsr()
        self._train = matrix
        return self

    def scores(self, users: Rows) -> Scores:
        """[b, m] (see `CentralizedModel.scores`)."""
        train, neighbours = fitted(self._train, "ItemKNN"), fitted(self._neighbours, "ItemKNN")
        return np.asarray((train[users] @ neighbours).toarray(), dtype=np.float32)

    def _nearest(
        self, by_item: sparse.csr_matrix, matrix: sparse.csr_matrix, start: int, block: int
    ) -> sparse.csr_matrix:
        """Similarities [block, m] of items start, start + 1, … to their k nearest, zero elsewhere."""
        counts = np.diff(by_item.indptr).astype(np.float64)
        rows = np.arange(start, min(start + block, len(counts)))
        together = np.asarray((by_item[rows] @ matrix).toarray(), dtype=np.float64)
        together[np.arange(len(rows)), rows] = 0.0
        norms = np.sqrt(counts[rows, None] * counts)
        similarity = np.divide(together, norms + self.parameters.shrinkage, out=together, where=together > 0)
        kept = min(self.parameters.neighbours, len(counts))
        # A stable order lets the lower item number win a tie, so the result does not depend on the block.
        nearest = np.argsort(-similarity, axis=1, kind="stable")[:, :kept]
        chosen = sparse.csr_matrix(
            (
                np.take_along_axis(similarity, nearest, axis=1).ravel().astype(np.float32),
                nearest.ravel(),
                np.arange(0, len(rows) * kept + 1, kept),
            ),
            shape=similarity.shape,
        )
        chosen.eliminate_zeros()
        return chosen
