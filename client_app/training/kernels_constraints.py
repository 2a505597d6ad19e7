"""Compiled parts of Fed3CR's two constraints (eq. 15 to 18), of whole tables that lie in tiles by columns.

Copied and compiled with the kernels beside it (see `compiler`); `kernels_views` says how they go together.
"""

from __future__ import annotations

import math

import numpy as np

from .kernels_compile import _compile
from .kernels_logistic import _exponentials
from .kernels_ncf import _STRIDE

# Rows and columns shorter than this have no direction.
_TINY = 1e-8


@_compile
def _direction(vector, out):
    """out = vector / its length, which is returned."""
    total = 0.0
    for k in range(len(vector)):
        total += vector[k] * vector[k]
    length = max(math.sqrt(total), _TINY)
    for k in range(len(vector)):
        out[k] = vector[k] / length
    return length


@_compile
def _look(memory, at, size, width, direction, norms, cosines):
    """Lengths of the rows of one table of a tile, and their cosines with a direction."""
    tiny = memory.dtype.type(_TINY)
    norms[:size], cosines[:size] = 0, 0
    for k in range(np.uint64(width)):
        begin, factor = at + k * _STRIDE, direction[k]
        for i in range(size):
            value = memory[begin + i]
            norms[i] += value * value
            cosines[i] += factor * value
    for i in range(size):
        norms[i] = max(np.sqrt(norms[i]), tiny)
        cosines[i] /= norms[i]


@_compile
def _rank(cosines, small, exponents, powers, spare, ranking, log):
    """The softmax of cosines, and its logarithm: eq. 15. As cos <= 1, exp(cos - 1) is that of no positive number."""
    one, count = cosines.dtype.type(1), len(cosines)
    for i in range(count):
        spare[i] = one - cosines[i]
    _exponentials(spare, count, small, exponents, powers)
    total = 0.0
    for i in range(count):
        total += small[i]
    share, shift = cosines.dtype.type(1.0 / total), cosines.dtype.type(1.0 + math.log(total))
    for i in range(count):
        ranking[i] = small[i] * share
        log[i] = cosines[i] - shift


@_compile
def _pull_rankings(ranking, other, log, weight, slopes):
    """slopes = β_a ∂L_a/∂cosines of one view: - ½ P (log Q - Σ P log Q) - ½ (Q - P), times the weight."""
    mean, half = 0.0, ranking.dtype.type(-0.5) * weight
    for i in range(len(ranking)):
        mean += ranking[i] * log[i]
    centre = ranking.dtype.type(mean)
    for i in range(len(ranking)):
        slopes[i] = half * (ranking[i] * (log[i] - centre) + other[i] - ranking[i])


@_compile
def _by_cosines(slopes, norms, cosines, base, size, per_row, along):
    """Of ∂L/∂cos: what a row gets of the direction, and of itself; returns Σ ∂L/∂cos · cos."""
    total = slopes.dtype.type(0)
    for i in range(size):
        slope, norm, cosine = slopes[base + i], norms[base + i], cosines[base + i]
        per_row[i] = slope / norm
        along[i] = slope * cosine / (norm * norm)
        total += slope * cosine
    return total


@_compile
def _begin_gradient(memory, at, size, width, slopes, p, per_row, direction, along, straight, target, to, towards):
    """target = c pᵀ + per_row directionᵀ - (along + straight) table of one tile; towards += Σ per_row table.

    `along` is by row, `straight` by unit.
    """
    for k in range(np.uint64(width)):
        begin, out, total = at + k * _STRIDE, to + k * _STRIDE, p.dtype.type(0)
        mine, way, less = p[k], direction[k], straight[k]
        for i in range(size):
            value = memory[begin + i]
            target[out + i] = slopes[i] * mine + per_row[i] * way - (along[i] + less) * value
            total += per_row[i] * value
        towards[k] += total


@_compile
def _add_squares(memory, at, size, width, squares):
    """squares += those of the columns of one table of a tile."""
    for k in range(np.uint64(width)):
        begin, total = at + k * _STRIDE, squares.dtype.type(0)
        for i in range(size):
            total += memory[begin + i] * memory[begin + i]
        squares[k] += total


@_compile
def _by_lengths(outer, squares_e, squares_v, factor, straight_e, straight_v):
    """K of directions: from K to what tables are multiplied with, a_j b_k R_jk f, and what they get of themselves.

    With a_j and b_k one over the lengths of columns, R_jk = a_j b_k K_jk; column j of E gets f a_j² Σ_k R_jk² of it.
    """
    width, tiny = len(squares_e), outer.dtype.type(_TINY * _TINY)
    straight_e[:], straight_v[:] = 0, 0
    for k in range(width):
        squares_e[k] = outer.dtype.type(1) / max(squares_e[k], tiny)
        squares_v[k] = outer.dtype.type(1) / max(squares_v[k], tiny)
    for j in range(width):
        for k in range(width):
            scaled = factor * squares_e[j] * squares_v[k] * outer[j * width + k]
            straight_e[j] += scaled * outer[j * width + k]
            straight_v[k] += scaled * outer[j * width + k]
            outer[j * width + k] = scaled
    for k in range(width):
        straight_e[k] *= squares_e[k]
        straight_v[k] *= squares_v[k]
