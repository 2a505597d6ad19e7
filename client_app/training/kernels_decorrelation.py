"""Compiled slope of HeteFedRec's decorrelation (eq. 13): of the norm of the correlations of a table's columns.

The equations are those of `client_app.personalization.hetefedrec`. With X the table without its mean row, s_j the norm
of its column j, Z = X diag(1/s), C = ZᵀZ and O = C or C - I,

    α ∂L_reg/∂V = X P    with    P = (2 α / (N ‖O‖_F)) diag(1/s) (O - diag(C O)) diag(1/s).

X is made twice, tile by tile, and never kept. Copied and compiled with the kernels beside it (see `compiler`).
"""

from __future__ import annotations

import numpy as np

from .kernels_compile import _compile
from .kernels_ncf import _LANES, _ROWS, _STRIDE, _0, _1, _add_outer, _add_product

_TILE = np.uint64(_ROWS)
# A column that does not vary correlates with nothing; its norm is what rounding leaves.
_LEAST_NORM = 1e-12


@_compile
def _add_decorrelation(table, d, padded, alpha, off_diagonal, vectors, gram, signals, deltas, out):
    """out += α ∂L_reg/∂V of a table [m d]; nothing where that is not defined.

    Args:
        d, padded: columns, and the next multiple of 4, unsigned.
        alpha: of the table's type.
        vectors, gram: [2, padded] and [padded²], scratch.
        signals, deltas: scratch for `padded` units of a tile.
    """
    rows, zero = np.uint64(len(table)) // d, table.dtype.type(0)
    means, inverse = vectors[0], vectors[1]
    means[:] = 0
    for row in range(_0, rows):
        for k in range(d):
            means[k] += table[row * d + k]
    for k in range(d):
        means[k] /= rows
    gram[:] = 0
    for begin in range(_0, rows, _TILE):
        size = _centred(table, d, padded, means, begin, min(_TILE, rows - begin), signals)
        _add_outer(gram, _0, padded, padded, signals, _0, signals, _0, size)
    if not _to_slope(gram, d, padded, alpha, off_diagonal, inverse):
        return
    for begin in range(_0, rows, _TILE):
        active = min(_TILE, rows - begin)
        size = _centred(table, d, padded, means, begin, active, signals)
        for k in range(padded):
            for i in range(size):
                deltas[k * _STRIDE + i] = zero
        _add_product(gram, _0, padded, _1, padded, padded, signals, _0, deltas, _0, size)
        for i in range(active):
            row = (begin + i) * d
            for k in range(d):
                out[row + k] += deltas[k * _STRIDE + i]


@_compile
def _centred(table, d, padded, means, begin, active, signals):
    """The rows from `begin` on of X by columns, with zeros to the end of vectors and tiles; returns how many."""
    lanes = np.uint64(_LANES)
    size = (active + lanes - _1) // lanes * lanes
    for i in range(active):
        row = (begin + i) * d
        for k in range(d):
            signals[k * _STRIDE + i] = table[row + k] - means[k]
    for k in range(d):
        signals[k * _STRIDE + active : k * _STRIDE + size] = 0
    for k in range(d, padded):
        signals[k * _STRIDE : k * _STRIDE + size] = 0
    return size


@_compile
def _to_slope(gram, d, padded, alpha, off_diagonal, inverse):
    """P in the place of XᵀX; False where ‖O‖ is 0."""
    one, zero = gram.dtype.type(1), gram.dtype.type(0)
    for j in range(d):
        norm = np.sqrt(max(gram[j * padded + j], zero))
        inverse[j] = one / norm if norm > _LEAST_NORM else zero
    squares = 0.0
    for j in range(d):
        for k in range(d):
            gram[j * padded + k] *= inverse[j] * inverse[k]
            if not (off_diagonal and j == k):
                squares += gram[j * padded + k] ** 2
    if not squares > _LEAST_NORM**2:
        return False
    scale = gram.dtype.type(2 / (np.sqrt(squares) * d)) * alpha
    for j in range(d):
        along = zero
        for k in range(d):
            if not (off_diagonal and j == k):
                along += gram[j * padded + k] ** 2
        if off_diagonal:
            gram[j * padded + j] = zero
        gram[j * padded + j] -= along
    for j in range(d):
        for k in range(d):
            gram[j * padded + k] *= scale * inverse[j] * inverse[k]
    return True
