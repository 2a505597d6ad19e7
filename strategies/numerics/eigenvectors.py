"""The leading eigenvectors of a sparse matrix, the same ones whenever they are asked for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import eigh
from scipy.sparse.linalg import eigsh

from bouquet.randomness import Purpose, generator

# Up to so many times as many rows as vectors, a dense matrix is quicker.
_DENSE = 6
# An eigenvalue that is so much smaller than the largest is 0: its vectors could be any.
_NOTHING = 1e-9
# The last bits that LAPACK gives depend on where its arrays lie in memory.
_STEP = 2.0**-32


def leading_pairs(matrix: NDArray[np.float64], count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The largest eigenvalues [count] of a dense symmetric matrix, largest first, and their eigenvectors [m, count]."""
    m = len(matrix)
    if m <= _DENSE * count:
        values, vectors = eigh(matrix, subset_by_index=(m - count, m - 1))
    else:
        start = generator(0, 0, Purpose.SHARED_INIT, "leading").standard_normal(m)
        values, vectors = eigsh(matrix, k=count, which="LA", v0=start)
    order = np.argsort(-values, kind="stable")
    return values[order], vectors[:, order]


def leading(matrix: sparse.csr_matrix, count: int) -> NDArray[np.float64]:
    """[m, count] eigenvectors of the largest eigenvalues of a symmetric matrix without negative ones, largest first.

    Each has its largest entry above 0. Those of eigenvalues 0, and of an empty matrix, are 0."""
    m = matrix.shape[0]
    if matrix.nnz == 0:
        return np.zeros((m, count))
    if m <= _DENSE * count:
        values, vectors = eigh(matrix.toarray(), subset_by_index=(m - count, m - 1))
    else:
        # The same for every run: a model shall depend on what users have and on nothing else.
        start = generator(0, 0, Purpose.SHARED_INIT, "leading").standard_normal(m)
        values, vectors = eigsh(matrix, k=count, which="LA", v0=start)
    order = np.argsort(-values, kind="stable")
    values, vectors = values[order], np.round(vectors[:, order] / _STEP) * _STEP
    vectors *= np.where(vectors[np.abs(vectors).argmax(axis=0), np.arange(count)] < 0, -1.0, 1.0)
    vectors[:, values <= _NOTHING * values[0]] = 0.0
    return vectors
