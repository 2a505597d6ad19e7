"""Compiled steps of ACE (Fed3CR, eq. 9 to 11) on neural collaborative filtering, one user after another: SGD.

With C the rows of the user's copy of the common table and W its transfer matrix, the perceptron's items are
q_r = W C_r, and what it says of δ_r = ∂L/∂q_r (`kernels_ncf`) makes

    ∂L/∂W = Σ_r δ_r C_rᵀ,    ∂L/∂C_r = Wᵀ δ_r, and for liked rows what their mean p^P gets of the transfer network.

The signals of both tables lie by columns, q in the first units and C behind those of the perceptron. Copied and
compiled with the kernels beside it (see `compiler`). Every user writes to its own slices only.
"""

from __future__ import annotations

import numpy as np

from .kernels_batches import _order
from .kernels_compile import _compile
from .kernels_logistic import _exponentials
from .kernels_ncf import (
    _LANES,
    _ROWS,
    _STRIDE,
    _add_outer,
    _add_product,
    _back_to_user,
    _count,
    _gather,
    _hidden_layers,
    _loss,
    _output,
    _scatter,
    _slopes,
    _user_half,
)
from .kernels_ncf import _back as _back_through_perceptron
from .kernels_transfer import _KEPT, _add, _add_steps, _back, _layers, _store_network


@_compile
def _add_mean(table, d, likes, mean):
    """mean += Σ_r likes_r table_r, of a table that lies row by row."""
    for i in range(len(likes)):
        if likes[i] != 0:
            _add(mean, likes[i], table[i * d : (i + 1) * d])


@_compile
def train_enhanced(
    begin, end, row_indptr, rows, origin, frozen, changes, sample_indptr, num_positives, place, vectors, columns,
    widths, user_at, weights_at, biases_at, output_at, bounds, vector_rates, network, network_widths, weight_at,
    bias_at, signal_at, identity, stream, epochs, batch_size, rates, of_weights, of_biases, losses, steps,
):  # fmt: skip
    """Train users begin … end - 1; `vectors` [k, n] change in place.

    Args:
        row_indptr: [k + 1] working rows of each user in `rows` and `changes`.
        rows: [nnz] their items; origin: C, [m, d], where everybody starts, and frozen: the table of p^G.
        changes: [nnz, d] receives what training changed in C.
        sample_indptr: [k + 1] samples of each user in `place`; the first num_positives[u] are positives, and liked.
        place: [samples] row of each sample in its user's rows.
        vectors: what each user trains besides: p, then the perceptron, as `kernels_nested` has it.
        columns, user_at, output_at: of the one size: d, and where W_p and h begin, unsigned.
        widths: [L + 1] units of the items' embedding and of every hidden layer, multiples of 4, unsigned.
        weights_at, biases_at: [L] where W_l (for l = 1: W_q) and b_l begin, unsigned.
        bounds: [a + 1] where the arrays of a vector begin and end; vector_rates: [a] of each.
        network: θ, layer by layer, where everybody starts; network_widths, weight_at, bias_at and signal_at say where
            in it and in a row of signals each layer is.
        identity: 1 where W has the identity added to what the network says, else 0.
        stream: [k] keyed stream of the batch order.
        rates: of C and θ, of the tables' type.
        of_weights, of_biases: by layer [k · inputs · outputs] and [k · outputs], one layer after another, receive what
            training changed in θ.
        losses: [k] receives the mean loss of the last epoch's samples, steps: [k] the number of steps taken.
    """
    d, dtype, layers, count = origin.shape[1], changes.dtype, len(network_widths) - 1, len(vectors)
    most_rows, most_samples = 1, 1
    for user in range(begin, end):
        most_rows = max(most_rows, row_indptr[user + 1] - row_indptr[user])
        most_samples = max(most_samples, sample_indptr[user + 1] - sample_indptr[user])
    own, zero, one = widths.sum(), np.uint64(0), np.uint64(1)  # `own`: the unit where C begins
    units = np.int64(own + columns) * np.int64(_STRIDE)
    signals, deltas = np.zeros(units, dtype), np.zeros(units, dtype)
    offset, gradient = np.empty(np.int64(widths[1]), dtype), np.zeros(vectors.shape[1], dtype)
    logits, small, slopes = np.empty(_ROWS, dtype), np.empty(_ROWS, dtype), np.empty(_ROWS, dtype)
    exponents, likes = np.empty(_ROWS, np.int32), np.empty(most_rows, dtype)
    powers = exponents.view(np.float32)
    counts, listed = np.zeros((2, most_rows), dtype), np.empty(most_rows, np.uint64)
    positives, samples = np.empty(most_rows, dtype), np.empty(most_rows, dtype)
    tables, row_gradients = np.empty(most_rows * d, dtype), np.empty(most_rows * d, dtype)
    keys, buckets = np.empty(most_samples, np.uint64), np.empty(most_samples + 1, np.int64)
    bucket_of, order = np.empty(most_samples, np.int64), np.empty(most_samples, np.int64)
    hidden = signal_at[layers]
    seen, turned = np.zeros((_KEPT, hidden + d * d), dtype), np.zeros((_KEPT, hidden + d * d), dtype)
    says, of_says, matrix = np.zeros(hidden + d * d, dtype), np.zeros(hidden + d * d, dtype), np.zeros(d * d, dtype)
    own_network, scale = np.zeros(0, dtype), np.empty(1, dtype)
    top_width = widths[len(widths) - 1]
    for user in range(begin, end):
        mine = rows[row_indptr[user] : row_indptr[user + 1]]
        here = place[sample_indptr[user] : sample_indptr[user + 1]]
        vector, size, rated, step, kept, active = vectors[user], len(here), len(mine), 0, 0, 0
        table, row_gradient, base, settled = tables[: rated * d], row_gradients[: rated * d], network, False
        likes[:rated], losses[user] = 0, np.nan
        for i in range(num_positives[user]):
            likes[here[i]] = 1
        liked = max(np.sum(likes[:rated]), dtype.type(1))
        says[: 2 * d] = 0
        for i in range(rated):
            likes[i] /= liked
            _add(says[:d], likes[i], frozen[mine[i]])
            table[i * d : (i + 1) * d] = origin[mine[i]]
        for i in range(size):
            order[i] = i
        for epoch in range(epochs if size > 0 else 0):
            loss, last = 0.0, epoch == epochs - 1
            if size > batch_size:
                _order(stream[user], epoch, size, batch_size, keys, buckets, bucket_of, order)
            for start in range(0, size, batch_size):
                stop = min(start + batch_size, size)
                scale[0] = 1.0 / (stop - start)
                if step == 0 or size > batch_size:
                    active = _count(here, order, start, stop, num_positives[user], counts, listed, positives, samples)
                step += 1
                if kept == _KEPT:
                    if not settled:
                        own_network, settled = network.copy(), True
                    _add_steps(
                        network_widths, weight_at, bias_at, signal_at, rates[1], seen, turned, kept, own_network
                    )  # fmt: skip
                    base, kept = own_network, 0
                says[d : 2 * d] = 0
                _add_mean(table, d, likes[:rated], says[d : 2 * d])
                _layers(
                    base, network_widths, weight_at, bias_at, signal_at, says, rates[1], seen, turned, kept, layers
                )  # fmt: skip
                matrix[:] = says[hidden:]
                for k in range(d):
                    matrix[k * d + k] += identity
                of_matrix = of_says[hidden:]
                gradient[:], row_gradient[:], of_matrix[:] = 0, 0, 0
                _user_half(vector, user_at, biases_at[0], columns, widths[1], offset)
                for chunk in range(0, active, _ROWS):
                    part = min(_ROWS, active - chunk)
                    padded = np.uint64(-(-part // _LANES) * _LANES)
                    at, real = np.uint64(chunk), np.uint64(part)
                    _gather(table, columns, columns, columns, listed, at, real, padded, signals[own * _STRIDE :])
                    signals[: columns * _STRIDE] = 0
                    _add_product(matrix, zero, one, columns, columns, columns, signals, own, signals, zero, padded)
                    top = _hidden_layers(vector, widths, weights_at, biases_at, offset, signals, padded)
                    _output(vector, output_at, top_width, signals, top, padded, logits)
                    _exponentials(logits, part, small, exponents, powers)
                    slopes[:] = 0
                    _slopes(positives, samples, chunk, part, logits, small, scale[0], slopes)
                    if last:
                        loss += _loss(positives, samples, chunk, part, logits, small)
                    _back_through_perceptron(
                        vector, widths, weights_at, biases_at, output_at, signals, deltas, top, slopes, padded, gradient
                    )  # fmt: skip
                    _add_outer(of_matrix, zero, columns, columns, deltas, zero, signals, own, padded)
                    deltas[own * _STRIDE :] = 0
                    _add_product(matrix, zero, columns, one, columns, columns, deltas, zero, deltas, own, padded)
                    _scatter(deltas[own * _STRIDE :], columns, columns, listed, at, real, row_gradient)
                _back_to_user(vector, user_at, biases_at[0], columns, widths[1], gradient)
                _back(
                    base, network_widths, weight_at, signal_at, says, rates[1], seen, turned, kept, layers, d, of_says
                )  # fmt: skip
                _add(table, -rates[0], row_gradient)
                for i in range(rated):
                    if likes[i] != 0:
                        _add(table[i * d : (i + 1) * d], -rates[0] * likes[i], of_says[d : 2 * d])
                seen[kept], turned[kept] = says, of_says
                kept += 1
                for a in range(len(vector_rates)):
                    for i in range(bounds[a], bounds[a + 1]):
                        vector[i] -= vector_rates[a] * gradient[i]
            if last:
                losses[user] = loss / size
        steps[user] = step
        for i in range(rated):
            for k in range(d):
                changes[row_indptr[user] + i, k] = table[i * d + k] - origin[mine[i], k]
        _store_network(
            network_widths, weight_at, bias_at, signal_at, rates[1], seen, turned, kept, network, settled, own_network,
            user, count, of_weights, of_biases,
        )  # fmt: skip
