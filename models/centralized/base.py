"""What the comparison rows share: one matrix in, scores of all items out.

These models see all histories in one place. They are no part of a federated run; they say how good a number is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bouquet.errors import BouquetError

Learned = TypeVar("Learned")
Rows = NDArray[np.integer]
Scores = NDArray[np.float32]
ScoreUsers = Callable[[NDArray[np.int64]], Scores]
ValidationScore = Callable[[ScoreUsers], float]
"""`validation_score(scores)` is how good the scorer is now, higher being better."""


class CentralizedModel(Protocol):
    """A recommender that is fitted on the training matrix of all users."""

    def fit(self, train: sparse.csr_matrix, *, seed: int = 0, validation_score: ValidationScore | None = None) -> Self:
        """Learn from all training positives.

        Args:
            train: [n, m]; whatever is stored and not zero is a positive.
            seed: of all random draws; models in closed form ignore it.
            validation_score: asked now and then by models that are trained in epochs, which then stop early and
                keep their best epoch; others ignore it.
        """
        ...

    def scores(self, users: Rows) -> Scores:
        """[b, m] finite scores of all items for the users with these rows of the training matrix."""
        ...


def binary(train: sparse.csr_matrix) -> sparse.csr_matrix:
    """A copy [n, m] with one entry of 1 per positive: float32, columns ascending in each row.

    Raises:
        BouquetError: there is no positive at all.
    """
    matrix = sparse.csr_matrix(train, dtype=np.float32, copy=True)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    matrix.data[:] = 1.0
    if not matrix.nnz:
        raise BouquetError("There is nothing to learn from: the training matrix holds no interaction.")
    return matrix


def fitted(value: Learned | None, model: str) -> Learned:
    """What `fit` has set; refuses to go on before `fit`."""
    if value is None:
        raise BouquetError(f"{model} has no scores before fit() was called.")
    return value
