"""Compiled products of small square matrices, flat, row after row, of widths that are multiples of 4.

Copied and compiled with the kernels beside it (see `compiler`).
"""

from __future__ import annotations

import numpy as np

from .kernels_compile import _compile


@_compile
def _times(a, b, out, width):
    """out = a b, in tiles of 4 × 4 of a: indices are unsigned and constant strides, for vector registers."""
    d, one, four = np.uint64(width), np.uint64(1), np.uint64(4)
    two, three = np.uint64(2), np.uint64(3)
    for i in range(np.uint64(0), d, four):
        z0 = i * d
        z1, z2, z3 = z0 + d, z0 + two * d, z0 + three * d
        out[z0 : z0 + four * d] = 0
        for j in range(np.uint64(0), d, four):
            x0 = j * d
            x1, x2, x3 = x0 + d, x0 + two * d, x0 + three * d
            w0, w1, w2, w3 = z0 + j, z1 + j, z2 + j, z3 + j
            w00, w01, w02, w03 = a[w0], a[w0 + one], a[w0 + two], a[w0 + three]
            w10, w11, w12, w13 = a[w1], a[w1 + one], a[w1 + two], a[w1 + three]
            w20, w21, w22, w23 = a[w2], a[w2 + one], a[w2 + two], a[w2 + three]
            w30, w31, w32, w33 = a[w3], a[w3 + one], a[w3 + two], a[w3 + three]
            for k in range(d):
                e, f, g, h = b[x0 + k], b[x1 + k], b[x2 + k], b[x3 + k]
                out[z0 + k] += w00 * e + w01 * f + w02 * g + w03 * h
                out[z1 + k] += w10 * e + w11 * f + w12 * g + w13 * h
                out[z2 + k] += w20 * e + w21 * f + w22 * g + w23 * h
                out[z3 + k] += w30 * e + w31 * f + w32 * g + w33 * h


@_compile
def _transpose(a, out, width):
    """out = aᵀ."""
    d = np.uint64(width)
    for i in range(d):
        for k in range(d):
            out[k * d + i] = a[i * d + k]


@_compile
def _scale(a, rows, columns, out, width):
    """out = diag(rows) a diag(columns); `out` may be `a`."""
    d = np.uint64(width)
    for i in range(d):
        factor = rows[i]
        for k in range(d):
            out[i * d + k] = factor * a[i * d + k] * columns[k]
