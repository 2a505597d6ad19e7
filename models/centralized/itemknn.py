"""Item-based nearest neighbours (Sarwar et al., WWW 2001; shrinkage after Bell & Koren, ICDM 2007).

s_ij = c_ij / (sqrt(c_i c_j) + h)      cosine of the items' user columns, c_ij users with both, h shrinkage
score(history, i) = sum of s_ij over the items j of the history among the k nearest neighbours of i
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bouquet.errors import BouquetError
from bouquet.ragged import Ragged, positions
from models.centralized.base import Rows, Scores, ValidationScore, binary, binary_histories, fitted
from models.centralized.choosing import refuse_nan

_BLOCK_BYTES = 64 * 2**20


@dataclass(frozen=True)
class ItemKNNParameters:
    """Hyper-parameters of `ItemKNN`.

    Attributes:
        neighbours: k, how many most similar items count for an item, > 0.
        shrinkage: h >= 0; pulls similarities that rest on few users towards 0.
        neighbours_grid, shrinkage_grid: what validation chooses from in their place, every pair; among equals the
            first, by shrinkage and then by neighbours.
    """

    neighbours: int = 20
    shrinkage: float = 10.0
    neighbours_grid: tuple[int, ...] = (10, 20, 50, 100, 200)
    shrinkage_grid: tuple[float, ...] = (0.0, 10.0, 100.0, 1000.0)


class ItemKNN:
    """Cosine similarity with shrinkage over the k nearest items."""

    def __init__(self, parameters: ItemKNNParameters | None = None) -> None:
        self.parameters = parameters or ItemKNNParameters()
        self.chosen: dict[str, float] = {}
        self._train: sparse.csr_matrix | None = None
        self._neighbours: sparse.csr_matrix | None = None

    def fit(self, train: sparse.csr_matrix, *, seed: int = 0, validation_score: ValidationScore | None = None) -> Self:
        """Find the neighbours, a block of items at a time (see `CentralizedModel.fit`).

        Raises:
            BouquetError: no neighbours are asked for, or a shrinkage is negative.
        """
        wanted = self.parameters
        counts, shrinkages = wanted.neighbours_grid, wanted.shrinkage_grid
        if validation_score is None:
            counts, shrinkages = (wanted.neighbours,), (wanted.shrinkage,)
        if min(counts) < 1 or min(shrinkages) < 0:
            raise BouquetError(
                f"ItemKNN needs at least 1 neighbour and a shrinkage of 0 or more, not {self.parameters}."
            )
        self._train = matrix = binary(train)
        lists = _nearest(matrix, max(counts), shrinkages)
        if validation_score is None:
            self._neighbours = lists[0].first(wanted.neighbours)
            return self
        best, chosen = -np.inf, lists[0].first(counts[0])
        for shrinkage, nearest in zip(shrinkages, lists, strict=True):
            for count in counts:
                self._neighbours = nearest.first(count)
                value = validation_score(self.scores)
                refuse_nan(value)
                if value > best:
                    best, chosen = value, self._neighbours
                    self.chosen = {"neighbours": count, "shrinkage": shrinkage}
        self._neighbours = chosen
        return self

    def scores(self, users: Rows) -> Scores:
        """[b, m] (see `CentralizedModel.scores`)."""
        return self._scores(fitted(self._train, "ItemKNN")[users])

    def scores_after(self, histories: Ragged) -> Scores:
        """[b, m] (see `ReadsHistories`)."""
        return self._scores(binary_histories(histories, fitted(self._train, "ItemKNN").shape[1]))

    def _scores(self, histories: sparse.csr_matrix) -> Scores:
        return np.asarray((histories @ fitted(self._neighbours, "ItemKNN")).toarray(), dtype=np.float32)


@dataclass(frozen=True)
class _Nearest:
    """The most similar items of every item under one shrinkage.

    Attributes:
        num_items: m.
        owners, items: [nnz] an item and one of its neighbours.
        similarities: [nnz].
        places: [nnz] 0 for the nearest neighbour of the owner, 1 for the next.
    """

    num_items: int
    owners: NDArray[np.int32]
    items: NDArray[np.int32]
    similarities: NDArray[np.float32]
    places: NDArray[np.int32]

    def first(self, count: int) -> sparse.csr_matrix:
        """[m, m] s_ij at row j, column i, where j is among the `count` nearest neighbours of i, else nothing."""
        near = self.places < count
        # Scoring a history wants the neighbours of an item as a column.
        return sparse.csr_matrix(
            (self.similarities[near], (self.items[near], self.owners[near])), shape=(self.num_items, self.num_items)
        )


def _nearest(matrix: sparse.csr_matrix, most: int, shrinkages: Sequence[float]) -> list[_Nearest]:
    """The `most` nearest items of every item under each shrinkage; items are counted together once."""
    by_item, num_items = matrix.T.tocsr(), matrix.shape[1]
    counts = np.diff(by_item.indptr).astype(np.float64)
    block = max(1, _BLOCK_BYTES // (8 * num_items))
    found: list[list[tuple[NDArray[Any], ...]]] = [[] for _ in shrinkages]
    for start in range(0, num_items, block):
        together = (by_item[start : start + block] @ matrix).tocoo()
        others = together.row + start != together.col
        owners, items = together.row[others] + start, together.col[others]
        norms = np.sqrt(counts[owners] * counts[items])
        for parts, shrinkage in zip(found, shrinkages, strict=True):
            similarities = together.data[others] / (norms + shrinkage)
            # The lower item number wins a tie, so the result does not depend on the block.
            order = np.lexsort((items, -similarities, owners))
            places = positions(np.bincount(owners - start, minlength=1))
            near = places < most
            order = order[near]
            parts.append(
                (
                    owners[order].astype(np.int32),
                    items[order].astype(np.int32),
                    similarities[order].astype(np.float32),
                    places[near].astype(np.int32),
                )
            )
    together_by_shrinkage = ([np.concatenate(part) for part in zip(*parts, strict=True)] for parts in found)
    return [_Nearest(num_items, *arrays) for arrays in together_by_shrinkage]
