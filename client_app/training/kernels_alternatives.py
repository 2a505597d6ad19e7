"""Compiled gradients of losses over the samples of a batch that look at two views of the items, E and D.

With w the shares of rows, â the direction of a row, A its columns standardised by w, and weights a, λ_s, λ_c and λ_m:

    distance       - a Σ w ‖E - D‖²                                      FedRAP's first term, and Fed3CR's L_2
    similarity     λ_s (1 - Σ w Ê·D̂)                                     L_s
    contrast       - λ_c Σ_i w_i log (e_ii / Σ_j w_j e_ij),    e_ij = exp(D̂_i·Ê_j)                           L_c
    information    - λ_m / 2d Σ_jk log(1 - R_jk²),    R = Σ_r w_r E_rj D_rk of standardised columns          L_m

The first two make of a row's gradients multiples of its own E and D, which need no table of their own. Equations are
in `client_app.personalization.fed3cr_alternatives`, tiles in `kernels_tiles`; a second memory holds what is between.
Copied and compiled with the kernels beside it (see `compiler`).
"""

from __future__ import annotations

import math

import numpy as np

from .kernels_compile import _compile
from .kernels_logistic import _exponentials
from .kernels_ncf import _ROWS, _STRIDE, _add_outer, _add_product
from .kernels_tiles import _E, _OWN, _place

# As `directions` and `columns` have them: rows without a direction, constant columns, the largest correlation.
_SHORTEST, _CONSTANT, _LARGEST = 1e-8, 1e-12, 0.999
# Queries whose pairs with all rows are computed at once.
_QUERIES = 16
# What a tile of the second memory holds, for E and then for D: what they are made into, the same by the shares of
# rows, the gradient at it, and the sum of gradients at E and D.
_MADE, _WEIGHED, _AT_MADE, _SUM = 0, 2, 4, 6
_SPARE_GROUPS = 8


@_compile
def _spare(tile, group, width):
    """The first unit of a group in a tile of the second memory."""
    return np.uint64((tile * _SPARE_GROUPS + group) * width)


@_compile
def _multiples(memory, width, tiles, sizes, shares, distance, similarity, across, of_e, of_own, squares):
    """Of the first two losses: ∂/∂E_r = across_r D_r + of_e_r E_r, and ∂/∂D_r = across_r E_r + of_own_r D_r."""
    zero, shortest = memory.dtype.type(0), memory.dtype.type(_SHORTEST)
    apart = distance + distance
    for tile in range(tiles):
        rows, base = sizes[tile], np.uint64(tile * _ROWS)
        for i in range(rows):
            across[base + i] = apart * shares[base + i]
            of_e[base + i] = of_own[base + i] = -apart * shares[base + i]
        if similarity == zero:
            continue
        squares[:, : np.int64(rows)] = 0
        at, mine = _place(tile, _E, width), _place(tile, _OWN, width)
        for k in range(np.uint64(width)):
            first, second = (at + k) * _STRIDE, (mine + k) * _STRIDE
            for i in range(rows):
                a, b = memory[first + i], memory[second + i]
                squares[0, i] += a * a
                squares[1, i] += b * b
                squares[2, i] += a * b
        for i in range(rows):
            length, other = math.sqrt(squares[0, i]), math.sqrt(squares[1, i])
            turns, turns_other = length > shortest, other > shortest
            length, other = max(length, shortest), max(other, shortest)
            factor = similarity * shares[base + i] / (length * other)
            along = factor * squares[2, i]
            across[base + i] -= factor
            of_e[base + i] += along / (length * length) if turns else zero
            of_own[base + i] += along / (other * other) if turns_other else zero


@_compile
def _directions(memory, width, tiles, sizes, shares, spare, lengths):
    """Rows over their lengths, and these by their shares; lengths [2, R], held at the shortest."""
    shortest = memory.dtype.type(_SHORTEST)
    for tile in range(tiles):
        rows, base = sizes[tile], np.uint64(tile * _ROWS)
        for view in range(2):
            at = _place(tile, _E if view == 0 else _OWN, width)
            made, weighed = _spare(tile, _MADE + view, width), _spare(tile, _WEIGHED + view, width)
            length = lengths[view]
            for i in range(rows):
                length[base + i] = 0
            for k in range(np.uint64(width)):
                source = (at + k) * _STRIDE
                for i in range(rows):
                    length[base + i] += memory[source + i] * memory[source + i]
            for i in range(rows):
                length[base + i] = max(math.sqrt(length[base + i]), shortest)
            for k in range(np.uint64(width)):
                source, target, to = (at + k) * _STRIDE, (made + k) * _STRIDE, (weighed + k) * _STRIDE
                for i in range(rows):
                    value = memory[source + i] / length[base + i]
                    spare[target + i] = value
                    spare[to + i] = value * shares[base + i]


@_compile
def _add_contrast(
    memory, width, tiles, sizes, shares, weight, spare, lengths, pairs, queries, scaled, near, exponents, powers
):  # fmt: skip
    """Add λ_c times the gradients of the contrast, in blocks of queries whose pairs with all rows fit a cache.

    Args:
        pairs: [tiles, _QUERIES] units of e; queries, scaled, near: [_QUERIES · d].
    """
    d, none, one, block = np.uint64(width), np.uint64(0), np.uint64(1), np.uint64(_QUERIES)
    unit = memory.dtype.type(1)
    _directions(memory, width, tiles, sizes, shares, spare, lengths)
    for tile in range(tiles):
        begin = _spare(tile, _AT_MADE, width) * _STRIDE
        spare[begin : begin + np.uint64(2) * d * _STRIDE] = 0
    for tile in range(tiles):
        mine, given = _spare(tile, _MADE + 1, width), _spare(tile, _AT_MADE + 1, width)
        same = _spare(tile, _MADE, width)
        for start in range(np.uint64(0), sizes[tile], block):
            base, count = np.uint64(tile * _ROWS) + start, min(block, sizes[tile] - start)
            queries[:] = 0
            for b in range(count):
                for k in range(d):
                    queries[b * d + k] = spare[(mine + k) * _STRIDE + start + b]
            near[:] = 0
            totals = np.zeros(_QUERIES, memory.dtype)
            for other in range(tiles):
                rows, at, first = sizes[other], np.uint64(other) * block, np.uint64(other * _ROWS)
                for b in range(block):
                    pairs[(at + b) * _STRIDE : (at + b) * _STRIDE + rows] = 0
                _add_product(queries, none, one, d, d, block, spare, _spare(other, _MADE, width), pairs, at, rows)
                for b in range(block):
                    # Cosines are at most one, and a factor common to all e changes nothing.
                    line = pairs[(at + b) * _STRIDE : (at + b) * _STRIDE + rows]
                    for i in range(rows):
                        line[i] -= unit
                    _exponentials(line, rows, line, exponents, powers)
                    for i in range(rows):
                        totals[b] += shares[first + i] * line[i]
                _add_outer(near, none, block, d, pairs, at, spare, _spare(other, _WEIGHED, width), rows)
            scaled[:] = 0
            for b in range(count):
                share = shares[base + b]
                for k in range(d):
                    scaled[b * d + k] = queries[b * d + k] * share / totals[b]
                    spare[(given + k) * _STRIDE + start + b] = share * (
                        near[b * d + k] / totals[b] - spare[(same + k) * _STRIDE + start + b]
                    )
            for other in range(tiles):
                at, to = np.uint64(other) * block, _spare(other, _AT_MADE, width)
                _add_product(scaled, none, d, one, block, d, pairs, at, spare, to, sizes[other])
    for tile in range(tiles):
        rows, base = sizes[tile], np.uint64(tile * _ROWS)
        given, other = _spare(tile, _AT_MADE, width), _spare(tile, _MADE + 1, width)
        for k in range(d):
            target, source = (given + k) * _STRIDE, (other + k) * _STRIDE
            for i in range(rows):
                spare[target + i] = shares[base + i] * (spare[target + i] - spare[source + i])
    _add_turned(memory, width, tiles, sizes, weight, spare, lengths)


@_compile
def _add_turned(memory, width, tiles, sizes, weight, spare, lengths):
    """From gradients at directions to those at rows: what is along a row does not turn it."""
    shortest, nothing, along = memory.dtype.type(_SHORTEST), memory.dtype.type(0), np.empty(_ROWS, memory.dtype)
    for tile in range(tiles):
        rows, base = sizes[tile], np.uint64(tile * _ROWS)
        for view in range(2):
            made, given = _spare(tile, _MADE + view, width), _spare(tile, _AT_MADE + view, width)
            into, length = _spare(tile, _SUM + view, width), lengths[view]
            along[:] = 0
            for k in range(np.uint64(width)):
                slope, of = (given + k) * _STRIDE, (made + k) * _STRIDE
                for i in range(rows):
                    along[i] += spare[slope + i] * spare[of + i]
            for i in range(rows):
                along[i] = along[i] if length[base + i] > shortest else nothing
            for k in range(np.uint64(width)):
                slope, of, to = (given + k) * _STRIDE, (made + k) * _STRIDE, (into + k) * _STRIDE
                for i in range(rows):
                    spare[to + i] += weight * (spare[slope + i] - along[i] * spare[of + i]) / length[base + i]


@_compile
def _standardised(memory, width, tiles, sizes, shares, spare, inverse):
    """Columns less their means over their deviations, and these by rows' shares; inverse [2, d]: 1 / deviation."""
    zero, one = memory.dtype.type(0), memory.dtype.type(1)
    for view in range(2):
        group = _E if view == 0 else _OWN
        for k in range(np.uint64(width)):
            mean, variance = zero, zero
            for tile in range(tiles):
                source, base = (_place(tile, group, width) + k) * _STRIDE, np.uint64(tile * _ROWS)
                for i in range(sizes[tile]):
                    mean += shares[base + i] * memory[source + i]
            for tile in range(tiles):
                source, base = (_place(tile, group, width) + k) * _STRIDE, np.uint64(tile * _ROWS)
                for i in range(sizes[tile]):
                    value = memory[source + i] - mean
                    variance += shares[base + i] * value * value
            inverse[view, k] = one / math.sqrt(variance) if variance > _CONSTANT else zero
            for tile in range(tiles):
                source, base = (_place(tile, group, width) + k) * _STRIDE, np.uint64(tile * _ROWS)
                target = (_spare(tile, _MADE + view, width) + k) * _STRIDE
                to = (_spare(tile, _WEIGHED + view, width) + k) * _STRIDE
                for i in range(sizes[tile]):
                    value = (memory[source + i] - mean) * inverse[view, k]
                    spare[target + i] = value
                    spare[to + i] = value * shares[base + i]


@_compile
def _add_information(memory, width, tiles, sizes, shares, weight, spare, inverse, correlation):
    """Add λ_m times the gradients of the information; correlation [d · d] is left with R_jk / (1 - R_jk²) / d."""
    d, none, one = np.uint64(width), np.uint64(0), np.uint64(1)
    zero, unit = memory.dtype.type(0), memory.dtype.type(1)
    _standardised(memory, width, tiles, sizes, shares, spare, inverse)
    correlation[:] = 0
    for tile in range(tiles):
        weighed, other = _spare(tile, _WEIGHED, width), _spare(tile, _MADE + 1, width)
        _add_outer(correlation, none, d, d, spare, weighed, spare, other, sizes[tile])
    for n in range(len(correlation)):
        value = correlation[n]
        correlation[n] = value / (unit - value * value) / width if abs(value) <= _LARGEST else zero
    for tile in range(tiles):
        begin, rows = _spare(tile, _AT_MADE, width), sizes[tile]
        spare[begin * _STRIDE : (begin + np.uint64(2) * d) * _STRIDE] = 0
        _add_product(correlation, none, one, d, d, d, spare, _spare(tile, _WEIGHED + 1, width), spare, begin, rows)
        _add_product(correlation, none, d, one, d, d, spare, _spare(tile, _WEIGHED, width), spare, begin + d, rows)
    for view in range(2):
        for k in range(d):
            total, along, factor = zero, zero, weight * inverse[view, k]
            for tile in range(tiles):
                slope = (_spare(tile, _AT_MADE + view, width) + k) * _STRIDE
                of = (_spare(tile, _MADE + view, width) + k) * _STRIDE
                for i in range(sizes[tile]):
                    total += spare[slope + i]
                    along += spare[slope + i] * spare[of + i]
            for tile in range(tiles):
                slope = (_spare(tile, _AT_MADE + view, width) + k) * _STRIDE
                of = (_spare(tile, _MADE + view, width) + k) * _STRIDE
                to, base = (_spare(tile, _SUM + view, width) + k) * _STRIDE, np.uint64(tile * _ROWS)
                for i in range(sizes[tile]):
                    back = shares[base + i] * (total + spare[of + i] * along)
                    spare[to + i] += factor * (spare[slope + i] - back)
