"""What the comparison rows share: one matrix in, scores of all items out.

These models see all histories in one place. They are no part of a federated run; they say how good a number is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, Self, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bouquet.errors import BouquetError
from bouquet.ragged import Ragged

Learned = TypeVar("Learned")
Rows = NDArray[np.integer]
Scores = NDArray[np.float32]
ScoreUsers = Callable[[NDArray[np.int64]], Scores]
ValidationScore = Callable[[ScoreUsers], float]
"""`validation_score(scores)` is how good the scorer is now, higher being better."""


class CentralizedModel(Protocol):
    """A recommender that is fitted on the training matrix of all users.

    Attributes:
        chosen: name -> value of the settings that `fit` chose on validation; empty where it chose none.
    """

    chosen: dict[str, float]

    def fit(self, train: sparse.csr_matrix, *, seed: int = 0, validation_score: ValidationScore | None = None) -> Self:
        """Learn from all training positives.

        Args:
            train: [n, m]; whatever is stored and not zero is a positive.
            seed: of all random draws; models in closed form ignore it.
            validation_score: what settings are chosen by: how many epochs, how much regularization, how many
                neighbours. None: all settings are those of the parameters.
        """
        ...

    def scores(self, users: Rows) -> Scores:
        """[b, m] finite scores of all items for the users with these rows of the training matrix."""
        ...


class LearnsOrder:
    """Marks models that are fitted to histories in order, where others see a matrix of users by items."""


@runtime_checkable
class ReadsHistories(Protocol):
    """A model whose input is what a user did, so that it can go on after more than it was fitted on."""

    def scores_after(self, histories: Ragged) -> Scores:
        """[b, m] finite scores of all items for users who did this, oldest first; items may come more than once."""
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


def binary_histories(histories: Ragged, num_items: int) -> sparse.csr_matrix:
    """[b, m] one entry of 1 per item of each history: float32, columns ascending in each row."""
    ones = np.ones(len(histories.values), dtype=np.float32)
    matrix = sparse.csr_matrix((ones, histories.values, histories.indptr), shape=(len(histories), num_items), copy=True)
    matrix.sum_duplicates()
    matrix.data[:] = 1.0
    return matrix


def fitted(value: Learned | None, model: str) -> Learned:
    """What `fit` has set; refuses to go on before `fit`."""
    if value is None:
        raise BouquetError(f"{model} has no scores before fit() was called.")
    return value
