"""The inverse of a symmetric positive definite matrix, in its own memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from bouquet.errors import RunFailed

_BLOCK = 2048


def inverse(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """A^-1 [s, s] by Cholesky's factors; A is overwritten.

    Raises:
        RunFailed: A is not positive definite.
    """
    # LAPACK works in place on columns one after another: on the transposed view of a symmetric matrix.
    factor, failed = lapack.dpotrf(matrix.T, lower=1, overwrite_a=1)
    if failed:
        raise RunFailed("The matrix of sums could not be factorised; a larger regularization would help.")
    found, _ = lapack.dpotri(factor, lower=1, overwrite_c=1)
    upper = found.T
    for start in range(0, len(upper), _BLOCK):  # LAPACK fills one triangle only
        rows = slice(start, start + _BLOCK)
        upper[start + _BLOCK :, rows] = upper[rows, start + _BLOCK :].T
        corner = np.triu(upper[rows, rows])
        upper[rows, rows] = corner + np.triu(corner, 1).T
    return upper
