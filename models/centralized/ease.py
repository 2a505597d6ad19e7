"""EASE: embarrassingly shallow autoencoders (Steck, WWW 2019).

minimise ‖X - X B‖²_F + λ ‖B‖²_F  subject to  diag(B) = 0
P = (XᵀX + λ I)⁻¹,   B_ij = -P_ij / P_jj,   B_jj = 0            (eq. 8)
score(u, ·) = X_u B
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy import sparse
from scipy.linalg import lapack

from bouquet.errors import BouquetError
from models.centralized.base import Rows, Scores, ValidationScore, binary, fitted


@dataclass(frozen=True)
class EASEParameters:
    """Hyper-parameters of `EASE`.

    Attributes:
        regularization: λ > 0.
        max_items: refuse larger catalogues; one m × m matrix of 8-byte numbers is inverted in place.
    """

    regularization: float = 300.0
    max_items: int = 20_000


class EASE:
    """A linear item-to-item model in closed form: the best of the simple ones on small data."""

    def __init__(self, parameters: EASEParameters | None = None) -> None:
        self.parameters = parameters or EASEParameters()
        self._train: sparse.csr_matrix | None = None
        self._weights: Scores | None = None

    def fit(self, train: sparse.csr_matrix, *, seed: int = 0, validation_score: ValidationScore | None = None) -> Self:
        """Solve for B (see `CentralizedModel.fit`).

        Raises:
            BouquetError: more items than `max_items`, or λ is not positive.
        """
        num_items = train.shape[1]
        if num_items > self.parameters.max_items:
            gigabytes = num_items**2 * 8 / 1e9
            raise BouquetError(
                f"EASE needs a dense {num_items} x {num_items} matrix ({gigabytes:.1f} GB), and this run allows "
                f"{self.parameters.max_items} items. Raise max_items if the machine has twice that memory, "
                "or leave EASE out."
            )
        if not self.parameters.regularization > 0:
            raise BouquetError(f"EASE needs a regularization above 0, not {self.parameters.regularization}.")
        matrix = binary(train)
        self._weights = _closed_form(matrix, self.parameters.regularization)
        self._train = matrix
        return self

    def scores(self, users: Rows) -> Scores:
        """[b, m] (see `CentralizedModel.scores`)."""
        train, weights = fitted(self._train, "EASE"), fitted(self._weights, "EASE")
        return np.asarray(train[users] @ weights, dtype=np.float32)


def _closed_form(matrix: sparse.csr_matrix, regularization: float) -> Scores:
    """B [m, m] of eq. 8 for X [n, m]."""
    # Fortran order lets LAPACK work in place; the matrix is symmetric, so nothing else changes.
    gram = np.asfortranarray((matrix.T @ matrix).toarray(), dtype=np.float64)
    gram[np.diag_indices_from(gram)] += regularization
    factor, failed = lapack.dpotrf(gram, lower=1, overwrite_a=1)
    if failed:
        raise BouquetError("EASE could not factorise its item matrix; a larger regularization would help.")
    inverse, _ = lapack.dpotri(factor, lower=1, overwrite_c=1)
    # LAPACK fills one triangle only.
    inverse = np.tril(inverse) + np.tril(inverse, -1).T
    weights = inverse / -np.diag(inverse)
    np.fill_diagonal(weights, 0.0)
    return np.ascontiguousarray(weights, dtype=np.float32)
