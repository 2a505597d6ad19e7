"""EASE: embarrassingly shallow autoencoders (Steck, WWW 2019).

minimise ‖X - X B‖²_F + λ ‖B‖²_F  subject to  diag(B) = 0,  X [n, m]

    P = (XᵀX + λ I)⁻¹,   B_ij = -P_ij / P_jj,   B_jj = 0            (eq. 8)
    score(h, ·) = h B   for a history h [m] of zeros and ones

With fewer users than items the same scores come from a matrix of users. With K = (X Xᵀ + λ I)⁻¹, Woodbury's identity
gives P = (I - Xᵀ K X) / λ, so for i ≠ j  P_ij = -x_iᵀ K x_j / λ  and  P_jj = (1 - q_j) / λ  with  q_j = x_jᵀ K x_j, x_j
being column j of X. λ cancels, and the term i = j, which B leaves out, is taken from the sum:

    score(h, j) = (Σ_{i in h} x_iᵀ K x_j - [j in h] q_j) / (1 - q_j) = ((h Xᵀ) K X - h q)_j / (1 - q_j)

So only one matrix of min(n, m) rows is ever inverted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import lapack

from bouquet.errors import BouquetError
from bouquet.ragged import Ragged
from models.centralized.base import Rows, Scores, ValidationScore, binary, binary_histories, fitted
from models.centralized.choosing import climb

Matrix = NDArray[np.floating[Any]]

_BLOCK_BYTES = 64 * 2**20


@dataclass(frozen=True)
class EASEParameters:
    """Hyper-parameters of `EASE`.

    Attributes:
        regularization: λ > 0; where the search begins if it is chosen on validation.
        grid: the values of λ that validation chooses from, ascending.
        max_bytes: what the matrices of min(n, m) rows may take: two while λ is chosen, the best one so far and the one
            that is tried. Numbers of 8 bytes are used if they fit, else of 4. The default suits a machine of 24 GB.
    """

    regularization: float = 300.0
    grid: tuple[float, ...] = (10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
    max_bytes: int = 18 * 10**9


class EASE:
    """A linear item-to-item model in closed form: the best of the simple ones on small data."""

    def __init__(self, parameters: EASEParameters | None = None) -> None:
        self.parameters = parameters or EASEParameters()
        self.chosen: dict[str, float] = {}
        self._train: sparse.csr_matrix | None = None
        self._solution: _Solution | None = None

    def fit(self, train: sparse.csr_matrix, *, seed: int = 0, validation_score: ValidationScore | None = None) -> Self:
        """Solve for B (see `CentralizedModel.fit`), under the λ that is best on validation if one is to be chosen.

        Raises:
            BouquetError: too many users and items for `max_bytes`, or λ is not positive.
        """
        chosen = self.parameters
        grid = (chosen.regularization,) if validation_score is None else chosen.grid
        if not min(*grid, chosen.regularization) > 0:
            raise BouquetError(f"EASE needs a regularization above 0, not {min(*grid, chosen.regularization)}.")
        precision = _precision(train.shape, 1 if validation_score is None else 2, chosen.max_bytes)
        self._train = matrix = binary(train)
        self._solution = None
        if validation_score is None:
            self._solution = _solve(matrix, chosen.regularization, precision)
            return self
        best: tuple[float, float, _Solution] | None = None

        def value(regularization: float) -> float:
            nonlocal best
            self._solution = _solve(matrix, regularization, precision)
            found = validation_score(self.scores)
            # Among equals the smaller one, which `climb` prefers too.
            if best is None or (found, -regularization) > (best[0], -best[1]):
                best = (found, regularization, self._solution)
            self._solution = None
            return found

        start = min(range(len(grid)), key=lambda place: abs(np.log(grid[place] / chosen.regularization)))
        self.chosen = {"regularization": climb(grid, start, value)}
        assert best is not None
        self._solution = best[2]
        return self

    def scores(self, users: Rows) -> Scores:
        """[b, m] (see `CentralizedModel.scores`)."""
        return self._scores(fitted(self._train, "EASE")[users])

    def scores_after(self, histories: Ragged) -> Scores:
        """[b, m] (see `ReadsHistories`)."""
        return self._scores(binary_histories(histories, fitted(self._train, "EASE").shape[1]))

    def _scores(self, histories: sparse.csr_matrix) -> Scores:
        return np.asarray(fitted(self._solution, "EASE").scores(histories), dtype=np.float32)


class _Solution(Protocol):
    def scores(self, histories: sparse.csr_matrix) -> Matrix:
        """h B for histories [b, m]: [b, m]."""
        ...


class _OfItems:
    """B itself, [m, m], in the place of XᵀX."""

    def __init__(self, matrix: sparse.csr_matrix, regularization: float, precision: type[np.floating[Any]]) -> None:
        weights = _inverse(matrix.T.tocsr(), regularization, precision)
        weights /= -np.diag(weights).copy()
        np.fill_diagonal(weights, 0.0)
        self._weights = weights

    def scores(self, histories: sparse.csr_matrix) -> Matrix:
        return np.asarray(histories.astype(self._weights.dtype) @ self._weights)


class _OfUsers:
    """K [n, n] in the place of X Xᵀ, and q [m]."""

    def __init__(self, matrix: sparse.csr_matrix, regularization: float, precision: type[np.floating[Any]]) -> None:
        self._inverse = _inverse(matrix, regularization, precision)
        self._by_item = matrix.T.tocsr().astype(precision)
        self._q = np.zeros(matrix.shape[1], dtype=precision)
        for items in _blocks(matrix.shape[1], matrix.shape[0]):
            part = self._by_item[items]
            self._q[items] = np.asarray(part.multiply(part @ self._inverse).sum(axis=1)).ravel()

    def scores(self, histories: sparse.csr_matrix) -> Matrix:
        histories = histories.astype(self._inverse.dtype)
        of_users = (histories @ self._by_item).toarray() @ self._inverse
        found = np.ascontiguousarray((self._by_item @ of_users.T).T)
        rows, items = histories.nonzero()
        found[rows, items] -= self._q[items]
        found /= 1 - self._q
        return found


def _solve(matrix: sparse.csr_matrix, regularization: float, precision: type[np.floating[Any]]) -> _Solution:
    users, items = matrix.shape
    return (_OfUsers if users < items else _OfItems)(matrix, regularization, precision)


def _precision(shape: tuple[int, int], matrices: int, max_bytes: int) -> type[np.floating[Any]]:
    """The widest numbers that fit.

    Raises:
        BouquetError: none does.
    """
    side = min(shape)
    for precision in (np.float64, np.float32):
        size = matrices * side**2 * np.dtype(precision).itemsize
        if size <= max_bytes:
            return precision
    raise BouquetError(
        f"EASE on {shape[0]:,} users and {shape[1]:,} items needs {size / 1e9:.1f} GB ({matrices} x {side:,} x "
        f"{side:,} numbers of 4 bytes), and max_bytes allows {max_bytes / 1e9:.1f} GB. Raise it if the machine has "
        "more, or use the row 'itemknn', which needs no such matrix."
    )


def _inverse(rows: sparse.csr_matrix, regularization: float, precision: type[np.floating[Any]]) -> Matrix:
    """(A Aᵀ + λ I)⁻¹ [s, s] for A with s rows, in the memory of one such matrix."""
    side = rows.shape[0]
    gram = np.empty((side, side), dtype=precision)
    columns = rows.T.tocsr()
    for block in _blocks(side, side):
        # Counts below 2^24 are exact in float32.
        gram[block] = (rows[block] @ columns).toarray()
    gram.ravel()[:: side + 1] += regularization
    factorise, invert = (lapack.dpotrf, lapack.dpotri) if precision is np.float64 else (lapack.spotrf, lapack.spotri)
    # LAPACK works in place on columns one after another: on the transposed view of a symmetric matrix.
    factor, failed = factorise(gram.T, lower=1, overwrite_a=1)
    if failed:
        raise BouquetError("EASE could not factorise its matrix; a larger regularization would help.")
    inverse, _ = invert(factor, lower=1, overwrite_c=1)
    return _mirrored(inverse.T)


def _mirrored(matrix: Matrix) -> Matrix:
    """Copies the upper triangle to the lower one, in place: LAPACK fills one only."""
    for block in _blocks(len(matrix), len(matrix)):
        matrix[block.stop :, block] = matrix[block, block.stop :].T
        corner = np.triu(matrix[block, block])
        matrix[block, block] = corner + np.triu(corner, 1).T
    return matrix


def _blocks(rows: int, width: int) -> Iterator[slice]:
    """Slices of rows that hold `width` numbers of 8 bytes each."""
    size = max(1, _BLOCK_BYTES // (8 * max(width, 1)))
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))
