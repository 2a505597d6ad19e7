"""Compiled gradient of embedding redundancy reduction (PLGC, eq. 18 and 19), one user after another.

For the two views v of a user's rows, with shares w_r of the rows in the batch and n(·) the standardisation of columns:

    N₁ = n(X W₁),  A₁ = relu(N₁),  N₂ = n(A₁ M),  A₂ = relu(N₂),  M = W₂ W₃

There is nothing between the second and the third matrix, so their product is used. The fourth is applied to no row:
with centred A₂ the correlations of its images are

    S_ab = A₂ₐᵀ w A₂ᵦ,    T = W₄ᵀ S_ab W₄,    R_jk = iₐⱼ T_jk iᵦₖ,    iₐⱼ = (W₄ᵀ S_aa W₄)_jj ^ -½,

so with E = ∂L/∂R, F_jk = iₐⱼ E_jk iᵦₖ and fₐⱼ = -½ iₐⱼ² Σ_k E_jk R_jk

    ∂L/∂A₂ₐ = w (A₂ᵦ W₄ Fᵀ W₄ᵀ + A₂ₐ W₄ 2 diag(fₐ) W₄ᵀ),
    ∂L/∂W₄ = S_ab W₄ Fᵀ + S_abᵀ W₄ F + 2 S_aa W₄ diag(fₐ) + 2 S_bb W₄ diag(fᵦ).

Rows lie in tiles by columns, as in `kernels_ncf`, whose products these are; widths are padded to multiples of 4 by
zeros. Copied and compiled with the kernels beside it (see `compiler`). Every user writes to its own slices only.
"""

from __future__ import annotations

import numba
import numpy as np

from .kernels import _FAST
from .kernels_ncf import _LANES, _ROWS, _STRIDE, _add_outer, _add_product

_compile = numba.njit(cache=True, nogil=True, fastmath=_FAST, error_model="numpy")

# What a tile holds of both views: first that of the local table, then that of the global one.
_INPUT, _NORMAL_1, _ACTIVE_1, _NORMAL_2, _CENTRED, _WEIGHTED, _SLOPE = 0, 2, 4, 6, 8, 10, 12
_GROUPS = 14


@_compile
def _place(tile, group, width):
    """The first unit of a group in a tile."""
    return np.uint64((tile * _GROUPS + group) * width)


@_compile
def _clear(memory, tiles, group, count, width):
    for tile in range(tiles):
        begin = _place(tile, group, width) * _STRIDE
        memory[begin : begin + np.uint64(count * width) * _STRIDE] = 0


@_compile
def _product(matrix, by_rows, memory, tiles, sizes, source, target, width):
    """target += matrixᵀ source in every tile, or matrix source if `by_rows`; matrix [width · width]."""
    one, d = np.uint64(1), np.uint64(width)
    for tile in range(tiles):
        _add_product(
            matrix, np.uint64(0), one if by_rows else d, d if by_rows else one, d, d,
            memory, _place(tile, source, width), memory, _place(tile, target, width), sizes[tile],
        )  # fmt: skip


@_compile
def _outer(gradient, memory, tiles, sizes, source, target, width):
    """gradient += Σ_r source_r target_rᵀ over all tiles."""
    d = np.uint64(width)
    for tile in range(tiles):
        _add_outer(
            gradient, np.uint64(0), d, d, memory, _place(tile, source, width), memory, _place(tile, target, width),
            sizes[tile],
        )  # fmt: skip


@_compile
def _mean(memory, tiles, sizes, group, unit, width, shares):
    """The weighted mean of a column."""
    mean = memory.dtype.type(0)
    for tile in range(tiles):
        at, row = (_place(tile, group, width) + np.uint64(unit)) * _STRIDE, np.uint64(tile * _ROWS)
        for i in range(sizes[tile]):
            mean += shares[row + i] * memory[at + i]
    return mean


@_compile
def _standardise(memory, tiles, sizes, group, width, shares, inverse):
    """Columns lose their mean and are divided by √(variance + 1e-5); `inverse` receives one over it."""
    zero, epsilon = memory.dtype.type(0), memory.dtype.type(1e-5)
    for unit in range(width):
        mean, variance = _mean(memory, tiles, sizes, group, unit, width, shares), zero
        for tile in range(tiles):
            at, row = (_place(tile, group, width) + np.uint64(unit)) * _STRIDE, np.uint64(tile * _ROWS)
            total = zero
            for i in range(sizes[tile]):
                value = memory[at + i] - mean
                memory[at + i] = value
                total += shares[row + i] * value * value
            variance += total
        factor = memory.dtype.type(1) / np.sqrt(variance + epsilon)
        inverse[unit] = factor
        for tile in range(tiles):
            at = (_place(tile, group, width) + np.uint64(unit)) * _STRIDE
            for i in range(sizes[tile]):
                memory[at + i] *= factor


@_compile
def _rectify(memory, tiles, sizes, source, target, width):
    """target = relu(source)."""
    zero = memory.dtype.type(0)
    for tile in range(tiles):
        for unit in range(width):
            at = (_place(tile, source, width) + np.uint64(unit)) * _STRIDE
            to = (_place(tile, target, width) + np.uint64(unit)) * _STRIDE
            for i in range(sizes[tile]):
                value = memory[at + i]
                memory[to + i] = zero if value <= zero else value


@_compile
def _centre(memory, tiles, sizes, group, weighted, width, shares):
    """Columns lose their mean; `weighted` receives them times the rows' shares."""
    for unit in range(width):
        mean = _mean(memory, tiles, sizes, group, unit, width, shares)
        for tile in range(tiles):
            at, row = (_place(tile, group, width) + np.uint64(unit)) * _STRIDE, np.uint64(tile * _ROWS)
            to = (_place(tile, weighted, width) + np.uint64(unit)) * _STRIDE
            for i in range(sizes[tile]):
                value = memory[at + i] - mean
                memory[at + i] = value
                memory[to + i] = shares[row + i] * value


@_compile
def _back(memory, tiles, sizes, group, normal, width, shares, inverse):
    """The gradient g of relu(normal) becomes that of the columns before: i (g - w Σ g - w N Σ g N), g = 0 if N <= 0."""
    zero = memory.dtype.type(0)
    for unit in range(width):
        all_of_it, along = zero, zero
        for tile in range(tiles):
            at = (_place(tile, group, width) + np.uint64(unit)) * _STRIDE
            of = (_place(tile, normal, width) + np.uint64(unit)) * _STRIDE
            total, total_along = zero, zero
            for i in range(sizes[tile]):
                slope = zero if memory[of + i] <= zero else memory[at + i]
                memory[at + i] = slope
                total += slope
                total_along += slope * memory[of + i]
            all_of_it += total
            along += total_along
        factor = inverse[unit]
        for tile in range(tiles):
            at, row = (_place(tile, group, width) + np.uint64(unit)) * _STRIDE, np.uint64(tile * _ROWS)
            of = (_place(tile, normal, width) + np.uint64(unit)) * _STRIDE
            for i in range(sizes[tile]):
                memory[at + i] = factor * (memory[at + i] - shares[row + i] * (all_of_it + memory[of + i] * along))


@_compile
def _times(a, transposed_a, b, transposed_b, out):
    """out = a b, of small square matrices."""
    width = len(out)
    for i in range(width):
        for k in range(width):
            out[i, k] = 0
        for j in range(width):
            factor = a[j, i] if transposed_a else a[i, j]
            for k in range(width):
                out[i, k] += factor * (b[k, j] if transposed_b else b[j, k])


@_compile
def _correlate(grams, fourth, strength, kappa, small, of_rows, gradient):
    """From S_ab, S_aa, S_bb to what the rows are multiplied with, and ∂L/∂W₄.

    Args:
        grams: [3, d, d].
        small: [5, d, d] memory.
        of_rows: [3, d, d] receives W₄ F W₄ᵀ and W₄ 2 diag(f) W₄ᵀ of both views.
        gradient: [d, d] receives ∂L/∂W₄.
    """
    width, zero, one, two = len(fourth), fourth.dtype.type(0), fourth.dtype.type(1), fourth.dtype.type(2)
    inverses, pulls = np.empty((2, width), fourth.dtype), np.zeros((2, width), fourth.dtype)
    images, correlation = small[:3], small[3]
    for view in range(3):  # S W₄
        _times(grams[view], False, fourth, False, images[view])
    for j in range(width):
        for view in range(2):
            variance = zero
            for k in range(width):
                variance += fourth[k, j] * images[1 + view, k, j]
            inverses[view, j] = one / np.sqrt(variance) if variance > fourth.dtype.type(1e-12) else zero
    _times(fourth, True, images[0], False, correlation)
    for j in range(width):
        for k in range(width):
            value = inverses[0, j] * correlation[j, k] * inverses[1, k]
            slope = two * strength * (value - one) if j == k else two * strength * kappa * value
            pulls[0, j] += slope * value
            pulls[1, k] += slope * value
            correlation[j, k] = inverses[0, j] * slope * inverses[1, k]  # F from here on
    for view in range(2):
        for j in range(width):
            pulls[view, j] *= -inverses[view, j] * inverses[view, j]  # 2 f
    _times(images[0], False, correlation, True, gradient)  # S_ab W₄ Fᵀ
    _times(grams[0], True, fourth, False, images[0])
    _times(images[0], False, correlation, False, small[4])  # S_abᵀ W₄ F
    for i in range(width):
        for k in range(width):
            gradient[i, k] += small[4, i, k]
            for view in range(2):
                gradient[i, k] += images[1 + view, i, k] * pulls[view, k]
    _times(fourth, False, correlation, False, small[4])
    _times(small[4], False, fourth, True, of_rows[0])
    for view in range(2):
        for i in range(width):
            for k in range(width):
                small[4, i, k] = fourth[i, k] * pulls[view, k]
        _times(small[4], False, fourth, True, of_rows[1 + view])


@_compile
def add_slopes(begin, end, local, common, networks, counts, strength, kappa, of_local, of_networks):
    """The gradient of `strength` · L_eRR for users begin … end - 1.

    Args:
        local, common: [k, d, R] the rows of both tables, by columns.
        networks: [k, 4, d, d] W₁ to W₄, d a multiple of 4: the tables may have less columns.
        counts: [k, R] how often a row stands in the batch.
        strength, kappa: of the arrays' type.
        of_local: [k, d, R] the gradient of the rows is added.
        of_networks: [k, 4, d, d] zeros, receive that of the matrices.
    """
    columns, width, dtype = local.shape[1], networks.shape[2], local.dtype
    most = 1
    for user in range(begin, end):
        most = max(most, np.count_nonzero(counts[user]))
    most_tiles = -(-most // _ROWS)
    memory = np.zeros(most_tiles * _GROUPS * width * np.int64(_STRIDE), dtype)
    listed, sizes = np.empty(most, np.int64), np.empty(most_tiles, np.uint64)
    shares, inverses = np.empty(most_tiles * _ROWS, dtype), np.empty((2, 2, width), dtype)
    grams, of_rows = np.empty((3, width, width), dtype), np.empty((3, width, width), dtype)
    small, merged, of_merged = (
        np.empty((5, width, width), dtype),
        np.empty((width, width), dtype),
        np.empty((width, width), dtype),
    )
    for user in range(begin, end):
        active, total = 0, dtype.type(0)
        for row in range(counts.shape[1]):
            if counts[user, row] > 0:
                listed[active] = row
                total += counts[user, row]
                active += 1
        if active == 0:
            continue
        tiles = -(-active // _ROWS)
        shares[: tiles * _ROWS] = 0
        for i in range(active):
            shares[i] = counts[user, listed[i]] / total
        for tile in range(tiles):
            sizes[tile] = min(_ROWS, -(-(active - tile * _ROWS) // _LANES) * _LANES)
        _clear(memory, tiles, 0, _GROUPS, width)
        for tile in range(tiles):
            start = tile * _ROWS
            here = min(_ROWS, active - start)
            for unit in range(columns):
                at = (_place(tile, _INPUT, width) + np.uint64(unit)) * _STRIDE
                to = at + np.uint64(width) * _STRIDE
                for i in range(here):
                    memory[at + np.uint64(i)] = local[user, unit, listed[start + i]]
                    memory[to + np.uint64(i)] = common[user, unit, listed[start + i]]
        first, second = networks[user, 0], networks[user, 1]
        third, fourth = networks[user, 2], networks[user, 3]
        _times(second, False, third, False, merged)
        for view in range(2):
            _product(first.reshape(-1), False, memory, tiles, sizes, _INPUT + view, _NORMAL_1 + view, width)
            _standardise(memory, tiles, sizes, _NORMAL_1 + view, width, shares, inverses[0, view])
            _rectify(memory, tiles, sizes, _NORMAL_1 + view, _ACTIVE_1 + view, width)
            _product(merged.reshape(-1), False, memory, tiles, sizes, _ACTIVE_1 + view, _NORMAL_2 + view, width)
            _standardise(memory, tiles, sizes, _NORMAL_2 + view, width, shares, inverses[1, view])
            _rectify(memory, tiles, sizes, _NORMAL_2 + view, _CENTRED + view, width)
            _centre(memory, tiles, sizes, _CENTRED + view, _WEIGHTED + view, width, shares)
        grams[:] = 0
        _outer(grams[0].reshape(-1), memory, tiles, sizes, _WEIGHTED, _CENTRED + 1, width)
        for view in range(2):
            _outer(grams[1 + view].reshape(-1), memory, tiles, sizes, _WEIGHTED + view, _CENTRED + view, width)
        _correlate(grams, fourth, strength, kappa, small, of_rows, of_networks[user, 3])
        of_merged[:] = 0
        for view in range(2):
            # A₂ᵦ stands with the transposed matrix in the gradient of A₂ₐ, and A₂ₐ with the matrix in that of A₂ᵦ.
            _product(
                of_rows[0].reshape(-1), view == 0, memory, tiles, sizes, _WEIGHTED + 1 - view, _SLOPE + view, width
            )
            _product(of_rows[1 + view].reshape(-1), False, memory, tiles, sizes, _WEIGHTED + view, _SLOPE + view, width)
            _back(memory, tiles, sizes, _SLOPE + view, _NORMAL_2 + view, width, shares, inverses[1, view])
            _outer(of_merged.reshape(-1), memory, tiles, sizes, _ACTIVE_1 + view, _SLOPE + view, width)
        _times(of_merged, False, third, True, of_networks[user, 1])
        _times(second, True, of_merged, False, of_networks[user, 2])
        _clear(memory, tiles, _CENTRED, 4, width)
        for view in range(2):
            _product(merged.reshape(-1), True, memory, tiles, sizes, _SLOPE + view, _CENTRED + view, width)
            _back(memory, tiles, sizes, _CENTRED + view, _NORMAL_1 + view, width, shares, inverses[0, view])
            _outer(of_networks[user, 0].reshape(-1), memory, tiles, sizes, _INPUT + view, _CENTRED + view, width)
        _product(first.reshape(-1), True, memory, tiles, sizes, _CENTRED, _WEIGHTED, width)
        for tile in range(tiles):
            start = tile * _ROWS
            for unit in range(columns):
                at = (_place(tile, _WEIGHTED, width) + np.uint64(unit)) * _STRIDE
                for i in range(min(_ROWS, active - start)):
                    of_local[user, unit, listed[start + i]] += memory[at + np.uint64(i)]
