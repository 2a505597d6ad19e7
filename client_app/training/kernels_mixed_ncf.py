"""Compiled steps of PLGC on neural collaborative filtering, one user after another: SGD.

With V^l the rows of the user's own table and V^g those of the frozen one, the perceptron's items are
q_r = μ V^l_r + (1 - μ) V^g_r with μ = tr G^l / (tr G^l + tr G^g). What it says of ∂L/∂q_r (`kernels_ncf`) makes

    ∂L/∂V^l_r = μ ∂L/∂q_r + what `kernels_redundancy` says.

Rows lie in tiles by columns as there, and a tile is what the network sees at once. A user with a single batch in an
epoch stays there; others come and go by step. Copied and compiled with the kernels beside it (see `compiler`). Every
user writes to its own slices only.
"""

from __future__ import annotations

import numpy as np

from .kernels_batches import _order
from .kernels_compile import _compile
from .kernels_logistic import _exponentials
from .kernels_mixed import _load, _squares, _squares_in_tiles, _store
from .kernels_ncf import (
    _LANES,
    _ROWS,
    _STRIDE,
    _back,
    _back_to_user,
    _count,
    _hidden_layers,
    _loss,
    _output,
    _slopes,
    _user_half,
)
from .kernels_redundancy import _INPUT, _SLOPE, _memory, _place
from .kernels_redundancy import _slopes as _slopes_of_redundancy


@_compile
def _mix(memory, tile, width, shares, active, size, signals):
    """signals = μ V^l + (1 - μ) V^g of a tile's rows, 0 past the last of them."""
    first, second, d = _place(tile, _INPUT, width), _place(tile, _INPUT + 1, width), np.uint64(width)
    for k in range(d):
        to, own, other = k * _STRIDE, (first + k) * _STRIDE, (second + k) * _STRIDE
        for i in range(active):
            signals[to + i] = shares[0] * memory[own + i] + shares[1] * memory[other + i]
        signals[to + active : to + size] = 0


@_compile
def _move(memory, tile, width, factor, pulled, deltas, active):
    """V^l ← V^l - η μ ∂L/∂q - η pulled; `factor`: η μ, `pulled`: η, or 0 where the tiles hold no slope of V^l."""
    first, slope, d = _place(tile, _INPUT, width), _place(tile, _SLOPE, width), np.uint64(width)
    for k in range(d):
        at, own, other = k * _STRIDE, (first + k) * _STRIDE, (slope + k) * _STRIDE
        for i in range(active):
            memory[own + i] -= factor * deltas[at + i] + pulled * memory[other + i]


@_compile
def train_mixed(
    begin, end, row_indptr, rows, common, own, outside, sample_indptr, num_positives, place, vectors, columns, widths,
    user_at, weight_at, bias_at, output_at, bounds, vector_rates, networks, stream, epochs, batch_size, weights,
    strength, kappa, rates, losses, steps,
):  # fmt: skip
    """Train users begin … end - 1; `own` [nnz, d], `vectors` [k, n] and `networks` [k, 4, w · w] change in place.

    Args:
        row_indptr: [k + 1] working rows of each user in `rows` and `own`.
        rows: [nnz] where in `common` [*, d] V^g of each of them is.
        outside: [2, k] what rows that are not worked on add to tr G^l and tr G^g.
        sample_indptr: [k + 1] samples of each user in `place`; the first num_positives[u] are positives.
        place: [samples] row of each sample in its user's rows.
        vectors: what each user trains besides: p, then the perceptron, as `kernels_nested` has it.
        columns, user_at, output_at: of the one size: d, and where W_p and h begin, unsigned.
        widths: [L + 1] units of the items' embedding and of every hidden layer, multiples of 4, unsigned.
        weight_at, bias_at: [L] where W_l (for l = 1: W_q) and b_l begin, unsigned.
        bounds: [a + 1] where the arrays of a vector begin and end; vector_rates: [a] of each.
        networks: W₁ to W₄ of redundancy reduction, padded by zeros to a width w that 4 divides.
        stream: [k] keyed stream of the batch order.
        weights: [2] of V^l and V^g in what the model sees, μ and 1 - μ; the first is negative where traces make them.
        strength, kappa: λ and κ; λ = 0: there is no redundancy reduction. Of the tables' type, as are all weights and
        rates: of V^l and the networks.
        losses: [k] receives the mean loss of the last epoch's samples, steps: [k] the number of steps taken.
    """
    dtype, width = own.dtype, np.int64(widths[0])
    most_rows, most_samples = 1, 1
    for user in range(begin, end):
        most_rows = max(most_rows, row_indptr[user + 1] - row_indptr[user])
        most_samples = max(most_samples, sample_indptr[user + 1] - sample_indptr[user])
    parts = _memory(most_rows, width, dtype)
    memory, row_shares, units = parts[0], parts[2], np.int64(widths.sum())
    signals, deltas = np.zeros(units * np.int64(_STRIDE), dtype), np.zeros(units * np.int64(_STRIDE), dtype)
    offset, gradient = np.empty(np.int64(widths[1]), dtype), np.zeros(vectors.shape[1], dtype)
    logits, small, slopes = np.empty(_ROWS, dtype), np.empty(_ROWS, dtype), np.empty(_ROWS, dtype)
    exponents, itself = np.empty(_ROWS, np.int32), np.arange(most_rows)
    powers = exponents.view(np.float32)
    counts, listed = np.zeros((2, most_rows), dtype), np.empty(most_rows, np.int64)
    positives, samples = np.empty(most_rows, dtype), np.empty(most_rows, dtype)
    keys, buckets = np.empty(most_samples, np.uint64), np.empty(most_samples + 1, np.int64)
    bucket_of, order = np.empty(most_samples, np.int64), np.empty(most_samples, np.int64)
    of_networks = np.zeros((4, width * width), dtype)
    # Numbers of the tables' own type: a single float64 among them would make all arithmetic float64.
    scale, shares, pulled = np.empty(1, dtype), np.empty(2, dtype), rates[0] if strength > 0 else dtype.type(0)
    top_width = widths[len(widths) - 1]
    for user in range(begin, end):
        mine, table = rows[row_indptr[user] : row_indptr[user + 1]], own[row_indptr[user] : row_indptr[user + 1]]
        here = place[sample_indptr[user] : sample_indptr[user + 1]]
        vector, size, step, active = vectors[user], len(here), 0, 0
        losses[user] = np.nan
        single = size <= batch_size
        trace_common = outside[1, user]
        if weights[0] < 0:
            for row in mine:
                trace_common += _squares(common[row : row + 1])
        for i in range(size):
            order[i] = i
        for epoch in range(epochs if size > 0 else 0):
            loss, last = 0.0, epoch == epochs - 1
            if not single:
                _order(stream[user], epoch, size, batch_size, keys, buckets, bucket_of, order)
            for start in range(0, size, batch_size):
                stop = min(start + batch_size, size)
                step, scale[0] = step + 1, 1.0 / (stop - start)
                if step == 1 or not single:
                    active = _count(here, order, start, stop, num_positives[user], counts, listed, positives, samples)
                    _load(table, itself, listed, active, memory, _INPUT, width)
                    _load(common, mine, listed, active, memory, _INPUT + 1, width)
                    row_shares[:] = 0
                    for i in range(active):
                        row_shares[i] = samples[i] * scale[0]
                shares[:] = weights
                if weights[0] < 0:
                    trace = _squares_in_tiles(memory, _INPUT, width, active) if single else _squares(table)
                    trace += outside[0, user]
                    shares[0] = trace / (trace + trace_common) if trace + trace_common > 0 else 0.5
                    shares[1] = dtype.type(1) - shares[0]
                if strength > 0:
                    of_networks[:] = 0
                    _slopes_of_redundancy(parts, active, networks[user], strength, kappa, of_networks, width, 1)
                gradient[:] = 0
                _user_half(vector, user_at, bias_at[0], columns, widths[1], offset)
                for tile in range(-(-active // _ROWS)):
                    chunk = tile * _ROWS
                    part = min(_ROWS, active - chunk)
                    real, padded = np.uint64(part), np.uint64(-(-part // _LANES) * _LANES)
                    _mix(memory, tile, width, shares, real, padded, signals)
                    top = _hidden_layers(vector, widths, weight_at, bias_at, offset, signals, padded)
                    _output(vector, output_at, top_width, signals, top, padded, logits)
                    _exponentials(logits, part, small, exponents, powers)
                    slopes[:] = 0
                    _slopes(positives, samples, chunk, part, logits, small, scale[0], slopes)
                    if last:
                        loss += _loss(positives, samples, chunk, part, logits, small)
                    _back(
                        vector, widths, weight_at, bias_at, output_at, signals, deltas, top, slopes, padded, gradient
                    )  # fmt: skip
                    _move(memory, tile, width, rates[0] * shares[0], pulled, deltas, real)
                _back_to_user(vector, user_at, bias_at[0], columns, widths[1], gradient)
                for a in range(len(vector_rates)):
                    for i in range(bounds[a], bounds[a + 1]):
                        vector[i] -= vector_rates[a] * gradient[i]
                if strength > 0:
                    for layer in range(4):
                        for i in range(width * width):
                            networks[user, layer, i] -= rates[1] * of_networks[layer, i]
                if not single:
                    _store(memory, _INPUT, width, listed, active, table)
            if last:
                losses[user] = loss / size
        if single:
            _store(memory, _INPUT, width, listed, active, table)
        steps[user] = step
