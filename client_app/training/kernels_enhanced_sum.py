"""Compiled steps of two views of the items over the samples of a batch, on matrix factorisation: SGD, user by user.

Fed3CR without constraints over all items, and ACE before FedRAP (Fed3CR, Section V-E). With C the rows of the user's
copy of the common table, D those of its own, W its transfer matrix (eq. 9), E = C Wᵀ, p the user's vector, w_r the
share of row r in the batch and T the losses of `kernels_alternatives`, a step computes

    z_r = p · (E_r + D_r),    c_r as in `kernels`
    G_r = c_r p + ∂T/∂E_r + b w_r sign E_r,    ∂L/∂W = Gᵀ C,    ∂L/∂C = G W,    ∂L/∂D_r = c_r p + ∂T/∂D_r

with FedRAP's b Σ_r w_r ‖E_r‖₁. Liked rows of D get what their mean p^P gets of the network, and in Fed3CR those of C
what p^G gets: there it is the mean of rows that are trained, before FedRAP of the table as it came.

Rows lie in tiles by columns, as in `kernels_ncf`, whose products these are; the width must be a multiple of 4. Copied
and compiled with the kernels beside it (see `compiler`). Every user writes to its own slices only.
"""

from __future__ import annotations

import numpy as np

from .kernels_alternatives import _QUERIES, _SPARE_GROUPS, _SUM, _add_contrast, _add_information, _multiples, _spare
from .kernels_batches import _count, _order
from .kernels_compile import _compile
from .kernels_logistic import _exponentials, _log1p, _loss, _slopes
from .kernels_ncf import _ROWS, _STRIDE, _add_outer, _add_product
from .kernels_tiles import _C, _E, _GROUPS, _OWN, _place
from .kernels_transfer import _KEPT, _add_steps, _back, _layers, _store_network


@_compile
def _load(table, rows, memory, group, width):
    """table[rows] into the tiles."""
    for i in range(len(rows)):
        at, row = _place(i // _ROWS, group, width) * _STRIDE + np.uint64(i % _ROWS), rows[i]
        for k in range(np.uint64(width)):
            memory[at + k * _STRIDE] = table[row, k]


@_compile
def _store(memory, group, width, table):
    """What the tiles hold into a table, row by row."""
    for i in range(len(table)):
        at = _place(i // _ROWS, group, width) * _STRIDE + np.uint64(i % _ROWS)
        for k in range(np.uint64(width)):
            table[i, k] = memory[at + k * _STRIDE]


@_compile
def _mean(memory, group, width, likes, mean):
    """Σ_r likes_r of the rows: eq. 10."""
    for k in range(np.uint64(width)):
        total = mean.dtype.type(0)
        for start in range(0, len(likes), _ROWS):
            at, base = (_place(start // _ROWS, group, width) + k) * _STRIDE, np.uint64(start)
            for i in range(np.uint64(min(_ROWS, len(likes) - start))):
                total += likes[base + i] * memory[at + i]
        mean[k] = total


@_compile
def _logits(memory, width, tiles, sizes, matrix, p, logits):
    """E into its tiles, and z."""
    d, none, one = np.uint64(width), np.uint64(0), np.uint64(1)
    logits[:] = 0
    for tile in range(tiles):
        rows, base = sizes[tile], np.uint64(tile * _ROWS)
        at, mine = _place(tile, _E, width), _place(tile, _OWN, width)
        for k in range(d):
            memory[(at + k) * _STRIDE : (at + k) * _STRIDE + rows] = 0
        _add_product(matrix, none, one, d, d, d, memory, _place(tile, _C, width), memory, at, rows)
        for k in range(d):
            first, second, factor = (at + k) * _STRIDE, (mine + k) * _STRIDE, p[k]
            for i in range(rows):
                logits[base + i] += factor * (memory[first + i] + memory[second + i])


@_compile
def _step(
    memory, width, tiles, sizes, scaled, p, slopes, shares, sparse, across, of_e, of_own, spare, rate, of_p, of_matrix
):  # fmt: skip
    """C and D after a step, and the gradients of p and W.

    Args:
        scaled: W times the rate of C, negative; rate: of D.
        shares: of each row in the batch; sparse: b.
        across, of_e, of_own: as `_multiples` gives them; spare: further gradients, or nothing.
    """
    d, none, one = np.uint64(width), np.uint64(0), np.uint64(1)
    plus, nothing = memory.dtype.type(1), memory.dtype.type(0)
    of_p[:], of_matrix[:] = 0, 0
    for tile in range(tiles):
        rows, base = sizes[tile], np.uint64(tile * _ROWS)
        at, mine, common = _place(tile, _E, width), _place(tile, _OWN, width), _place(tile, _C, width)
        for k in range(d):
            first, second, factor, total = (at + k) * _STRIDE, (mine + k) * _STRIDE, p[k], nothing
            for i in range(rows):
                enhanced, value, c, share = memory[first + i], memory[second + i], slopes[base + i], shares[base + i]
                total += c * (enhanced + value)
                sign = plus if enhanced > nothing else (-plus if enhanced < nothing else nothing)
                towards = c * factor + across[base + i] * value + of_e[base + i] * enhanced + sparse * share * sign
                towards_own = c * factor + across[base + i] * enhanced + of_own[base + i] * value
                memory[first + i] = towards  # G: E is not needed any more
                memory[second + i] = value - rate * towards_own
            of_p[k] += total
        if len(spare) > 0:
            pull, pull_own = _spare(tile, _SUM, width), _spare(tile, _SUM + 1, width)
            for k in range(d):
                first, second = (at + k) * _STRIDE, (mine + k) * _STRIDE
                source, source_own = (pull + k) * _STRIDE, (pull_own + k) * _STRIDE
                for i in range(rows):
                    memory[first + i] += spare[source + i]
                    memory[second + i] -= rate * spare[source_own + i]
        _add_outer(of_matrix, none, d, d, memory, at, memory, common, rows)
        _add_product(scaled, none, d, one, d, d, memory, at, memory, common, rows)


@_compile
def _give(memory, group, width, likes, values):
    """likes_r · values to all rows."""
    for k in range(np.uint64(width)):
        value = values[k]
        for start in range(0, len(likes), _ROWS):
            at, base = (_place(start // _ROWS, group, width) + k) * _STRIDE, np.uint64(start)
            for i in range(np.uint64(min(_ROWS, len(likes) - start))):
                memory[at + i] += likes[base + i] * value


@_compile
def train_enhanced_sum(
    begin, end, row_indptr, rows, origin, frozen, follows, own, trained, sample_indptr, num_positives, place, vectors,
    network, widths, weight_at, bias_at, signal_at, identity, stream, epochs, batch_size, terms, rates, of_weights,
    of_biases, losses, steps,
):  # fmt: skip
    """Train users begin … end - 1; `own` [nnz, d] and `vectors` [k, d] change in place.

    Args:
        row_indptr: [k + 1] working rows of each user in `rows`, `own` and `trained`.
        rows: [nnz] their items; origin: C, [m, d], where everybody starts, and frozen: the table of p^G, where it is
            not that of the rows as they are trained, which `follows` says.
        trained: [nnz, d] receives what C has become.
        sample_indptr: [k + 1] samples of each user in `place`; the first num_positives[u] are positives, and liked.
        place: [samples] row of each sample in its user's rows.
        network: θ, layer by layer, where everybody starts; widths, weight_at, bias_at and signal_at say where in it
            and in a row of signals each layer is.
        identity: 1 where W has the identity added to what the network says, else 0.
        stream: [k] keyed stream of the batch order.
        terms: a, b, λ_s, λ_c and λ_m; rates: of C, D, p and θ; of the tables' type.
        of_weights, of_biases: receive what training changed in θ, as in `kernels_transfer`.
        losses: [k] receives the mean loss of the last epoch's samples, steps: [k] the number of steps taken.
    """
    d, dtype, layers, count = own.shape[1], own.dtype, len(widths) - 1, len(vectors)
    most_rows, most_samples = 1, 1
    for user in range(begin, end):
        most_rows = max(most_rows, row_indptr[user + 1] - row_indptr[user])
        most_samples = max(most_samples, sample_indptr[user + 1] - sample_indptr[user])
    most_tiles = np.int64(-(-most_rows // _ROWS))
    memory, sizes = np.zeros(most_tiles * _GROUPS * d * np.int64(_STRIDE), dtype), np.zeros(most_tiles, np.uint64)
    positives, samples = np.zeros(most_rows, dtype), np.zeros(most_rows, dtype)
    logits, small, slopes = np.empty(most_rows, dtype), np.empty(most_rows, dtype), np.empty(most_rows, dtype)
    shares, likes, listed = np.empty(most_rows, dtype), np.empty(most_rows, dtype), np.empty(most_rows, np.int64)
    exponents, itself = np.empty(most_rows, np.int32), np.arange(most_rows)
    powers = exponents.view(np.float32)
    keys, buckets = np.empty(most_samples, np.uint64), np.empty(most_samples + 1, np.int64)
    bucket_of, order = np.empty(most_samples, np.int64), np.empty(most_samples, np.int64)
    total, last = signal_at[layers] + widths[layers], signal_at[layers]
    signals, deltas = np.zeros(total, dtype), np.zeros(total, dtype)
    kept_signals, kept_deltas = np.zeros((_KEPT, total), dtype), np.zeros((_KEPT, total), dtype)
    matrix, scaled, of_p = np.zeros(d * d, dtype), np.zeros(d * d, dtype), np.zeros(d, dtype)
    own_network, scale = np.zeros(0, dtype), np.empty(1, dtype)
    across, of_e, of_own = np.zeros(most_rows, dtype), np.zeros(most_rows, dtype), np.zeros(most_rows, dtype)
    squares, towards = np.zeros((3, _ROWS), dtype), np.zeros(d, dtype)
    wide = most_tiles if terms[3] > 0 or terms[4] > 0 else 0
    spare = np.zeros(wide * _SPARE_GROUPS * d * np.int64(_STRIDE), dtype)
    pairs = np.zeros((most_tiles if terms[3] > 0 else 0) * _QUERIES * np.int64(_STRIDE), dtype)
    lengths, inverse = np.zeros((2, most_rows), dtype), np.zeros((2, d), dtype)
    queries, weighed, near = np.zeros(_QUERIES * d, dtype), np.zeros(_QUERIES * d, dtype), np.zeros(_QUERIES * d, dtype)
    correlation = np.zeros(d * d, dtype)
    for user in range(begin, end):
        mine, table = rows[row_indptr[user] : row_indptr[user + 1]], own[row_indptr[user] : row_indptr[user + 1]]
        here = place[sample_indptr[user] : sample_indptr[user + 1]]
        p, size, rated, step, kept = vectors[user], len(here), len(mine), 0, 0
        base, settled, tiles = network, False, -(-rated // _ROWS)
        for tile in range(tiles):
            sizes[tile] = min(_ROWS, rated - tile * _ROWS)
        positives[:rated], samples[:rated], likes[:rated], losses[user] = 0, 0, 0, np.nan
        for i in range(num_positives[user]):
            likes[here[i]] = 1
        likes[:rated] /= max(np.sum(likes[:rated]), dtype.type(1))
        if not follows:
            _load(frozen, mine, memory, _C, d)
            _mean(memory, _C, d, likes[:rated], signals)
        _load(origin, mine, memory, _C, d)
        _load(table, itself[:rated], memory, _OWN, d)
        for i in range(size):
            order[i] = i
        for epoch in range(epochs if size > 0 else 0):
            loss, with_loss = 0.0, epoch == epochs - 1
            if size > batch_size:
                _order(stream[user], epoch, size, batch_size, keys, buckets, bucket_of, order)
            for start in range(0, size, batch_size):
                stop = min(start + batch_size, size)
                scale[0] = 1.0 / (stop - start)
                if step == 0 or size > batch_size:
                    positives[:rated], samples[:rated] = 0, 0
                    _count(here, order, start, stop, num_positives[user], positives, samples, listed)
                    for r in range(rated):
                        shares[r] = samples[r] * scale[0]
                step += 1
                if kept == _KEPT:
                    if not settled:
                        own_network, settled = network.copy(), True
                    _add_steps(
                        widths, weight_at, bias_at, signal_at, rates[3], kept_signals, kept_deltas, kept, own_network
                    )  # fmt: skip
                    base, kept = own_network, 0
                if follows:
                    _mean(memory, _C, d, likes[:rated], signals)
                _mean(memory, _OWN, d, likes[:rated], signals[d : 2 * d])
                _layers(
                    base, widths, weight_at, bias_at, signal_at, signals, rates[3], kept_signals, kept_deltas, kept,
                    layers,
                )  # fmt: skip
                matrix[:] = signals[last : last + d * d]
                for k in range(d):
                    matrix[k * d + k] += identity
                scaled[:] = -rates[0] * matrix
                _logits(memory, d, tiles, sizes, matrix, p, logits[:rated])
                _exponentials(logits, rated, small, exponents, powers)
                _slopes(positives, samples, rated, logits, small, scale[0], slopes)
                if with_loss:
                    _log1p(small, rated, small)
                    loss += _loss(positives, samples, rated, logits, small)
                _multiples(memory, d, tiles, sizes, shares, terms[0], terms[2], across, of_e, of_own, squares)
                if len(spare) > 0:
                    for tile in range(tiles):
                        at = _spare(tile, _SUM, d) * _STRIDE
                        spare[at : at + np.uint64(2 * d) * _STRIDE] = 0
                if terms[3] > 0:
                    _add_contrast(
                        memory, d, tiles, sizes, shares, terms[3], spare, lengths, pairs, queries, weighed, near,
                        exponents, powers,
                    )  # fmt: skip
                if terms[4] > 0:
                    _add_information(memory, d, tiles, sizes, shares, terms[4], spare, inverse, correlation)
                _step(
                    memory, d, tiles, sizes, scaled, p, slopes, shares, terms[1], across, of_e, of_own, spare, rates[1],
                    of_p, deltas[last : last + d * d],
                )  # fmt: skip
                _back(
                    base, widths, weight_at, signal_at, signals, rates[3], kept_signals, kept_deltas, kept, layers,
                    0 if follows else d, deltas,
                )  # fmt: skip
                kept_signals[kept], kept_deltas[kept] = signals, deltas
                kept += 1
                if follows:
                    towards[:] = -rates[0] * deltas[:d]
                    _give(memory, _C, d, likes[:rated], towards)
                towards[:] = -rates[1] * deltas[d : 2 * d]
                _give(memory, _OWN, d, likes[:rated], towards)
                for k in range(d):
                    p[k] -= rates[2] * of_p[k]
            if with_loss:
                losses[user] = loss / size
        steps[user] = step
        _store(memory, _C, d, trained[row_indptr[user] : row_indptr[user + 1]])
        _store(memory, _OWN, d, table)
        _store_network(
            widths, weight_at, bias_at, signal_at, rates[3], kept_signals, kept_deltas, kept, network, settled,
            own_network, user, count, of_weights, of_biases,
        )  # fmt: skip
