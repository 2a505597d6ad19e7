"""Compiled gradient of embedding redundancy reduction (PLGC, eq. 18 and 19), one user after another.

For the two views v of a user's rows, with shares w_r of the rows in the batch:

    C₁ = X W₁ - mean,    s₁ = (Σ w C₁² + ε)^-½,    A₁ = relu(C₁),    C₂ = A₁ diag(s₁) M - mean,    s₂,    A₂ = relu(C₂)

with M = W₂ W₃, because there is nothing between the second and the third matrix. Standardised columns are C diag(s);
as s > 0, their relu is relu(C) diag(s), so that s goes to matrices and no row is multiplied by it. Means are known
before rows are: that of X W is that of X times W. The fourth matrix is applied to no row: with B = A₂ - mean the
correlations of its images are

    S_ab = diag(s₂ₐ) Bₐᵀ w Bᵦ diag(s₂ᵦ),    T = W₄ᵀ S_ab W₄,    R_jk = iₐⱼ T_jk iᵦₖ,    iₐⱼ = (W₄ᵀ S_aa W₄)_jj ^ -½,

so with E = ∂L/∂R, F_jk = iₐⱼ E_jk iᵦₖ, fₐⱼ = -½ iₐⱼ² Σ_k E_jk R_jk and Z = W₄ F W₄ᵀ

    ∂L/∂A₂ₐ = w (Bᵦ diag(s₂ᵦ) Zᵀ + Bₐ diag(s₂ₐ) W₄ 2 diag(fₐ) W₄ᵀ) diag(s₂ₐ),
    ∂L/∂W₄ = S_ab W₄ Fᵀ + S_abᵀ W₄ F + 2 S_aa W₄ diag(fₐ) + 2 S_bb W₄ diag(fᵦ).

The gradient g of s relu(C), with h = s g [C > 0], is that of the columns before as h - w (Σ h + C s² Σ h C).

Rows lie in tiles by columns, as in `kernels_ncf`, whose products these are; widths are padded to multiples of 4 by
zeros. What is cheap to make again of C is made again, so that the tiles of most users stay in the second cache. Copied
and compiled with the kernels beside it (see `compiler`). Every user writes to its own slices only.
"""

from __future__ import annotations

import numpy as np

from .kernels_columns import _add_means, _add_moments, _fill, _mask, _rectify, _through, _weigh
from .kernels_compile import _compile
from .kernels_ncf import _LANES, _ROWS, _STRIDE, _add_outer, _add_product
from .kernels_small import _scale, _times, _transpose

# What a tile holds of both views: first that of the local table, then that of the global one.
_INPUT, _FIRST, _SECOND, _SLOPE = 0, 2, 4, 6
_GROUPS = 8


@_compile
def _place(tile, group, width):
    """The first unit of a group in a tile."""
    return np.uint64((tile * _GROUPS + group) * width)


@_compile
def _correlate(grams, fourth, strength, kappa, scales, small, of_rows, gradient, width):
    """From Bᵀ w B to what the rows are multiplied with, and ∂L/∂W₄.

    Args:
        grams: [3, d · d] of a with b, a with a, b with b; receive S.
        scales: [2, d] s₂ of both views.
        small: [6, d · d] memory.
        of_rows: [4, d · d] receives from a to a, a to b, b to a and b to b what w B is multiplied with.
        gradient: [d · d] receives ∂L/∂W₄.
    """
    zero, one, two = fourth.dtype.type(0), fourth.dtype.type(1), fourth.dtype.type(2)
    inverses, pulls = np.empty((2, width), fourth.dtype), np.zeros((2, width), fourth.dtype)
    images, correlation, turned, other = small[:3], small[3], small[4], small[5]
    for pair in range(3):
        _scale(grams[pair], scales[1 if pair == 2 else 0], scales[0 if pair == 1 else 1], grams[pair], width)
        _times(grams[pair], fourth, images[pair], width)  # S W₄
    for view in range(2):
        inverses[view] = 0
        for k in range(width):
            for j in range(width):
                inverses[view, j] += fourth[k * width + j] * images[1 + view, k * width + j]
        for j in range(width):
            variance = inverses[view, j]
            inverses[view, j] = one / np.sqrt(variance) if variance > fourth.dtype.type(1e-12) else zero
    _transpose(fourth, turned, width)
    _times(turned, images[0], correlation, width)
    for j in range(width):
        for k in range(width):
            value = inverses[0, j] * correlation[j * width + k] * inverses[1, k]
            slope = two * strength * (value - one) if j == k else two * strength * kappa * value
            pulls[0, j] += slope * value
            pulls[1, k] += slope * value
            correlation[j * width + k] = inverses[0, j] * slope * inverses[1, k]  # F from here on
    for view in range(2):
        for j in range(width):
            pulls[view, j] *= -inverses[view, j] * inverses[view, j]  # 2 f
    _transpose(correlation, other, width)
    _times(images[0], other, gradient, width)  # S_ab W₄ Fᵀ
    _transpose(grams[0], other, width)
    _times(other, fourth, images[0], width)
    _times(images[0], correlation, other, width)  # S_abᵀ W₄ F
    for i in range(width):
        for k in range(width):
            at = i * width + k
            gradient[at] += other[at] + images[1, at] * pulls[0, k] + images[2, at] * pulls[1, k]
    _times(fourth, correlation, other, width)
    _times(other, turned, of_rows[1], width)
    _scale(of_rows[1], scales[0], scales[1], of_rows[1], width)
    _transpose(of_rows[1], of_rows[2], width)
    for view in range(2):
        for i in range(width):
            for k in range(width):
                other[i * width + k] = fourth[i * width + k] * pulls[view, k]
        _times(other, turned, of_rows[3 * view], width)
        _scale(of_rows[3 * view], scales[view], scales[view], of_rows[3 * view], width)


@_compile
def _memory(rows, width, dtype):
    """What `_slopes` works in, for users of at most so many rows: tiles, one tile's spare units, rows' shares, rows of
    numbers by unit, small matrices, and sizes of tiles."""
    tiles = np.int64(-(-rows // _ROWS))
    return (
        np.zeros(tiles * _GROUPS * width * np.int64(_STRIDE), dtype),
        np.zeros(4 * width * np.int64(_STRIDE), dtype),
        np.zeros(tiles * _ROWS, dtype),
        np.zeros((8, 2, width), dtype),
        np.zeros((19, width * width), dtype),
        np.zeros(tiles, np.uint64),
    )


@_compile
def _represent(parts, tiles, view, first, width):
    """Both layers of one view: C₁ and C₂ with their s, and the means of both relu(C)."""
    memory, spare, shares, lines, small, sizes = parts
    d, zero, step, minus = np.uint64(width), np.uint64(0), np.uint64(1), memory.dtype.type(-1)
    means, offset, variances, image = lines[0, 0], lines[0, 1], lines[1, 0], small[1 + view]
    means[:] = 0
    for tile in range(tiles):
        at, row = _place(tile, _INPUT + view, width), np.uint64(tile * _ROWS)
        _add_means(memory, at, width, sizes[tile], shares, row, means)
    for layer in range(2):
        weights, active_means, scales = (image if layer else first), lines[2 + layer, view], lines[4 + layer, view]
        if layer:
            means[:] = lines[2, view]
            _scale(small[0], lines[4, view], lines[7, 0], image, width)
        offset[:], variances[:], active_means[:] = 0, 0, 0
        for k in range(width):
            for j in range(width):
                offset[j] += means[k] * weights[k * width + j]
        for tile in range(tiles):
            at, size, row = _place(tile, _FIRST + view, width), sizes[tile], np.uint64(tile * _ROWS)
            if layer:
                _rectify(memory, at, width, size, spare, zero)
                at = _place(tile, _SECOND + view, width)
            _fill(memory, at, width, size, offset, minus)
            if layer:
                _add_product(weights, zero, d, step, d, d, spare, zero, memory, at, size)
            else:
                source = _place(tile, _INPUT + view, width)
                _add_product(weights, zero, d, step, d, d, memory, source, memory, at, size)
            _add_moments(memory, at, width, size, shares, row, variances, active_means)
        for j in range(width):
            scales[j] = memory.dtype.type(1) / np.sqrt(variances[j] + memory.dtype.type(1e-5))


@_compile
def _back(parts, tiles, first, of_first, width, trained):
    """From w B of both views, in every tile, to the gradients of M, W₁ and the rows of the first `trained` views."""
    memory, spare, shares, lines, small, sizes = parts
    d, zero, step, nothing = np.uint64(width), np.uint64(0), np.uint64(1), memory.dtype.type(0)
    of_rows, of_merged, totals, alongs, none = small[7:11], small[17:19], lines[1], lines[6], lines[7, 1]
    totals[:], alongs[:], of_merged[:] = 0, 0, 0
    for tile in range(tiles):
        size, row = sizes[tile], np.uint64(tile * _ROWS)
        for view in range(2):
            at = _place(tile, _SECOND + view, width)
            _weigh(memory, at, width, size, shares, row, lines[3, view], spare, zero, np.uint64(2 + view) * d)
        for view in range(2):
            to = _place(tile, _SLOPE + view, width)
            _fill(memory, to, width, size, none, nothing)
            for other in range(2):
                image, source = of_rows[2 * other + view], np.uint64(2 + other) * d
                _add_product(image, zero, d, step, d, d, spare, source, memory, to, size)
            of = _place(tile, _SECOND + view, width)
            _mask(memory, to, of, width, size, totals[view], alongs[view])
    for tile in range(tiles):
        size, row = sizes[tile], np.uint64(tile * _ROWS)
        for view in range(2):
            at, below = _place(tile, _SLOPE + view, width), _place(tile, _SECOND + view, width)
            _through(memory, at, below, width, size, shares, row, totals[view], alongs[view], lines[5, view])
            _rectify(memory, _place(tile, _FIRST + view, width), width, size, spare, zero)
            _add_outer(of_merged[view], zero, d, d, spare, zero, memory, at, size)
            # C₂ has been used: the gradient of the first layer stands in its place.
            _fill(memory, below, width, size, none, nothing)
            _add_product(small[1 + view], zero, step, d, d, d, memory, at, memory, below, size)
    totals[:], alongs[:] = 0, 0
    for tile in range(tiles):
        for view in range(2):
            at, of = _place(tile, _SECOND + view, width), _place(tile, _FIRST + view, width)
            _mask(memory, at, of, width, sizes[tile], totals[view], alongs[view])
    for tile in range(tiles):
        size, row = sizes[tile], np.uint64(tile * _ROWS)
        for view in range(2):
            at, of = _place(tile, _SECOND + view, width), _place(tile, _FIRST + view, width)
            _through(memory, at, of, width, size, shares, row, totals[view], alongs[view], lines[4, view])
            _add_outer(of_first, zero, d, d, memory, _place(tile, _INPUT + view, width), memory, at, size)
        for view in range(trained):
            to = _place(tile, _SLOPE + view, width)
            _fill(memory, to, width, size, none, nothing)
            _add_product(first, zero, step, d, d, d, memory, _place(tile, _SECOND + view, width), memory, to, size)


@_compile
def _slopes(parts, active, networks, strength, kappa, of_networks, width, trained):
    """The gradient of `strength` · L_eRR for one user: of its rows in the tiles' `_SLOPE`, and of the matrices.

    Args:
        parts: of `_memory`: the tiles hold the rows of both tables in `_INPUT`, the third part their shares, which are
            0 past the last of them.
        active: how many rows there are.
        networks, of_networks: [4, d · d] W₁ to W₄, and zeros, which receive ∂L/∂W.
        trained: 1: of the local rows; 2: of those of the global table, too.
    """
    spare, shares, lines, small, sizes = parts[1], parts[2], parts[3], parts[4], parts[5]
    memory, d, zero, tiles = parts[0], np.uint64(width), np.uint64(0), -(-active // _ROWS)
    for tile in range(tiles):
        sizes[tile] = min(_ROWS, -(-(active - tile * _ROWS) // _LANES) * _LANES)
    # Past the last row is what the user before left; a share of 0 makes nothing of it, unless it is not finite.
    rest = np.uint64(active - (tiles - 1) * _ROWS)
    for unit in range(np.uint64(2) * d):
        begin = (_place(tiles - 1, _INPUT, width) + unit) * _STRIDE
        memory[begin + rest : begin + sizes[tiles - 1]] = 0
    lines[7, 0], lines[7, 1] = 1, 0
    _times(networks[1], networks[2], small[0], width)
    for view in range(2):
        _represent(parts, tiles, view, networks[0], width)
    grams, turned, of_merged = small[4:7], small[3], small[17:19]
    grams[:] = 0
    for tile in range(tiles):
        size, row = sizes[tile], np.uint64(tile * _ROWS)
        for view in range(2):
            at, to = _place(tile, _SECOND + view, width), np.uint64(view) * d
            _weigh(memory, at, width, size, shares, row, lines[3, view], spare, to, to + np.uint64(2) * d)
        _add_outer(grams[0], zero, d, d, spare, np.uint64(2) * d, spare, d, size)
        _add_outer(grams[1], zero, d, d, spare, np.uint64(2) * d, spare, zero, size)
        _add_outer(grams[2], zero, d, d, spare, np.uint64(3) * d, spare, d, size)
    _correlate(grams, networks[3], strength, kappa, lines[5], small[11:17], small[7:11], of_networks[3], width)
    _back(parts, tiles, networks[0], of_networks[0], width, trained)
    for view in range(2):
        _scale(of_merged[view], lines[4, view], lines[7, 0], of_merged[view], width)
    of_merged[0] += of_merged[1]
    _transpose(networks[2], turned, width)
    _times(of_merged[0], turned, of_networks[1], width)
    _transpose(networks[1], turned, width)
    _times(turned, of_merged[0], of_networks[2], width)


@_compile
def add_slopes(begin, end, local, common, networks, counts, strength, kappa, of_local, of_networks):
    """The gradient of `strength` · L_eRR for users begin … end - 1.

    Args:
        local, common: [k, d, R] the rows of both tables, by columns.
        networks: [k, 4, d · d] W₁ to W₄, d a multiple of 4: the tables may have less columns.
        counts: [k, R] how often a row stands in the batch.
        strength, kappa: of the arrays' type.
        of_local: [k, d, R] the gradient of the rows is added.
        of_networks: [k, 4, d · d] zeros, receive that of the matrices.
    """
    columns, dtype, most, width = local.shape[1], local.dtype, 1, 4 * -(-local.shape[1] // 4)
    for user in range(begin, end):
        most = max(most, np.count_nonzero(counts[user]))
    listed, parts = np.empty(most, np.int64), _memory(most, width, dtype)
    memory, shares = parts[0], parts[2]
    for user in range(begin, end):
        active, total = 0, dtype.type(0)
        for row in range(counts.shape[1]):
            if counts[user, row] > 0:
                listed[active] = row
                total += counts[user, row]
                active += 1
        if active == 0:
            continue
        shares[:] = 0
        for i in range(active):
            shares[i] = counts[user, listed[i]] / total
        for start in range(0, active, _ROWS):
            here = min(_ROWS, active - start)
            for unit in range(columns):
                at = (_place(start // _ROWS, _INPUT, width) + np.uint64(unit)) * _STRIDE
                to = at + np.uint64(width) * _STRIDE
                for i in range(here):
                    memory[at + np.uint64(i)] = local[user, unit, listed[start + i]]
                    memory[to + np.uint64(i)] = common[user, unit, listed[start + i]]
        _slopes(parts, active, networks[user], strength, kappa, of_networks[user], width, 1)
        for start in range(0, active, _ROWS):
            for unit in range(columns):
                at = (_place(start // _ROWS, _SLOPE, width) + np.uint64(unit)) * _STRIDE
                for i in range(min(_ROWS, active - start)):
                    of_local[user, unit, listed[start + i]] += memory[at + np.uint64(i)]
