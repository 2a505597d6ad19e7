"""Squared distances between the users' tables, all pairs at once and to six digits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategies.numerics.checks import refuse_non_finite, refuse_shape

Matrix = NDArray[np.float64]
Tables = NDArray[np.floating[Any]]

# Values of one user in a block of items: long enough for BLAS to be fast, short enough to bound memory.
BLOCK_VALUES = 4096
# Rows of pairs of users in one block, in bytes: they stay in a core's own cache.
BLOCK_BYTES = 2**19
# Squared norms may exceed 1 + squared distance by this factor before float32 loses the sixth digit.
CANCELLATION = 3.0
# Share of all pairs up to which it is faster to take their differences than to multiply everything in float64.
FEW_PAIRS = 0.04
# Users of whom it is tried whether float32 will do, where there are more than four times as many.
SAMPLE = 64


def squared_distances(tables: Tables) -> Matrix:
    """‖Q_u − Q_v‖² of all pairs of users, with the squared Frobenius norm.

    They come from Gram products of blocks of items, ‖a‖² + ‖b‖² − 2 a·b. Float32 tables are multiplied in float32 and
    the products of blocks summed in float64. Pairs of users so close that digits cancel are taken from their
    difference; if there are many of them, everything is done in float64: of all users, because camps of users who
    are alike among themselves, far from the others, have no common mean to be centred on.

    Args:
        tables: Q, [n, m, d], float32 or float64; a memory map is read block by block.
    Returns:
        [n, n], float64, symmetric, not negative, zeros on the diagonal. From float32 tables 1 + distance is right to
        about 1e-6 of itself.
    Raises:
        ValueError: tables has other axes or is empty, or a value is not finite (names the first bad user).
    """
    count = refuse_shape("tables", tables, "[users, items, embedding size]")[0]
    if tables.dtype == np.float32 and not _many_are_close(tables):
        with np.errstate(over="ignore", invalid="ignore"):
            distances, close = _from_gram(_centred_gram(tables, np.float32))
        if len(close) <= _few_pairs(count) and np.isfinite(distances).all():
            difference = np.empty(tables.shape[1:], np.float32)
            for u, v in close:
                np.subtract(tables[u], tables[v], out=difference)
                distances[u, v] = distances[v, u] = _squared(difference)
            return distances
    for user in range(count):
        refuse_non_finite(tables[user : user + 1], "the table of user {}", user)
    return _from_gram(_centred_gram(tables, np.float64))[0]


def _many_are_close(tables: Tables) -> bool:
    """Whether in a sample of users, if there are many, so many pairs are too close for float32 that all will be."""
    count = len(tables)
    if count <= 4 * SAMPLE:
        return False
    some = tables[:: count // SAMPLE]
    with np.errstate(over="ignore", invalid="ignore"):
        close = _from_gram(_centred_gram(some, np.float32))[1]
    return len(close) > _few_pairs(len(some))


def _few_pairs(count: int) -> float:
    return FEW_PAIRS * count * (count - 1) / 2


def _squared(table: NDArray[np.float32]) -> float:
    """‖A‖² with blocks summed in float64: over a long table float32 drifts from the fifth digit on."""
    flat = table.reshape(-1)
    blocks = (flat[start : start + BLOCK_VALUES] for start in range(0, len(flat), BLOCK_VALUES))
    return sum(float(np.vdot(block, block)) for block in blocks)


def _centred_gram(tables: Tables, dtype: type[np.floating[Any]]) -> Matrix:
    """Inner products of the users' tables less their mean, [n, n], multiplied in `dtype`."""
    count, items, size = tables.shape
    gram = np.zeros((count, count))
    step = max(1, BLOCK_VALUES // size)
    for start in range(0, items, step):
        block = tables[:, start : start + step].reshape(count, -1)
        # Centre on a shared base first: float32 Gram products of raw tables lose three digits here.
        centred = np.subtract(block, block.mean(axis=0, dtype=dtype), dtype=dtype)
        gram += centred @ centred.T
    return gram


def _from_gram(gram: Matrix) -> tuple[Matrix, NDArray[np.int64]]:
    """Squared distances in place of the inner products, and the pairs u < v, [p, 2], whose digits float32 cancels."""
    norms = np.diagonal(gram).copy()
    close = []
    rows = max(1, BLOCK_BYTES // (8 * len(gram)))
    for start in range(0, len(gram), rows):
        block = gram[start : start + rows]
        norm_sums = norms[start : start + rows, None] + norms
        block *= -2.0
        block += norm_sums  # on the diagonal this is 2g − 2g, so 0 without rounding
        np.maximum(block, 0.0, out=block)
        u, v = np.nonzero(norm_sums > CANCELLATION * (1.0 + block))
        close.append(np.stack([start + u, v], axis=1)[start + u < v])
    return gram, np.concatenate(close)
