"""Compiled local training of neural collaborative filtering, of one size or of several over one item table.

A user's loss is the sum over its sizes of that of the size's own network, over the first columns of the user's vector
and of the table (HeteFedRec, eq. 11), and the decorrelation of the table if that is asked for. A step of a size visits
the distinct rows of the batch as `kernels_ncf` says; the gradients of the table are added up over the sizes before it
moves. Every user writes to its own slices only. Copied and compiled with the kernels beside it (see `compiler`).
"""

from __future__ import annotations

import numpy as np

from .kernels_batches import _order
from .kernels_compile import _compile
from .kernels_decorrelation import _add_decorrelation
from .kernels_logistic import _exponentials
from .kernels_ncf import (
    _LANES,
    _ROWS,
    _adam,
    _back,
    _back_to_user,
    _count,
    _gather,
    _hidden_layers,
    _loss,
    _output,
    _places,
    _scatter,
    _sgd,
    _slopes,
    _user_half,
)


@_compile
def train_users(
    begin, end, row_indptr, rows, tables, positive_indptr, positive_items, negative_indptr, negative_items, num_items,
    networks, columns, widths, user_at, weight_at, bias_at, output_at, bounds, rates, decays, item_rate, alpha,
    off_diagonal, stream, epochs, batch_size, adam, tolerance, losses,
):  # fmt: skip
    """Train users begin … end - 1; `tables` [nnz, d] and `networks` [k, n] change in place.

    Args:
        row_indptr, rows: [k] rows of the items that each user works on, whose embeddings stand in `tables`: with
            decorrelation all items.
        positive_indptr, positive_items, negative_indptr, negative_items: [k] rows of items.
        networks: what each user trains besides: p first, then the arrays of every size's network, widths padded.
        columns: [s] columns of the table that each size has, the largest last, unsigned.
        widths: [s, L + 1] units of the items' embedding and of every hidden layer, multiples of 4, unsigned.
        user_at, output_at: [s] where W_p and h begin, which b follows; weight_at, bias_at: [s, L] where W_l (for l = 1:
            W_q) and b_l begin, unsigned.
        bounds: [a + 1] where the arrays of a network begin and end; rates, decays: [a] of each, of its type.
        item_rate: of the tables, of their type.
        alpha: weight of decorrelation, of their type; 0: none.
        stream: [k] keyed stream of the batch order.
        tolerance: a user ends after an epoch that changed its loss by at most this share; 0: all epochs.
        losses: [k] receives the mean loss of the last epoch, added up over the sizes.
    """
    d, dtype, most_rows, most_samples = tables.shape[1], tables.dtype, 1, 1
    for user in range(begin, end):
        most_rows = max(most_rows, row_indptr[user + 1] - row_indptr[user])
        size = positive_indptr[user + 1] - positive_indptr[user] + negative_indptr[user + 1] - negative_indptr[user]
        most_samples = max(most_samples, size)
    units, sizes = np.int64(widths[-1].sum()), len(columns)
    signals, deltas = np.zeros(units * _ROWS + units * 16, dtype), np.zeros(units * _ROWS + units * 16, dtype)
    offset, gradient = np.empty(np.int64(widths[0, 1]), dtype), np.zeros(networks.shape[1], dtype)
    logits, small, slopes = np.empty(_ROWS, dtype), np.empty(_ROWS, dtype), np.empty(_ROWS, dtype)
    exponents = np.empty(_ROWS, np.int32)
    powers = exponents.view(np.float32)
    counts, listed = np.zeros((2, most_rows), dtype), np.empty(most_rows, np.uint64)
    positives, samples = np.empty(most_rows, dtype), np.empty(most_rows, dtype)
    where, place = np.empty(num_items, np.int32), np.empty(most_samples, np.int32)
    keys, buckets = np.empty(most_samples, np.uint64), np.empty(most_samples + 1, np.int64)
    bucket_of, order = np.empty(most_samples, np.int64), np.empty(most_samples, np.int64)
    row_moments, row_gradients = np.empty((2, most_rows * d if adam else 0), dtype), np.empty(most_rows * d, dtype)
    moments = np.empty((2, networks.shape[1]), dtype)
    padded_d, unsigned_d = widths[-1, 0], np.uint64(d)
    vectors, gram = np.empty((2, np.int64(padded_d)), dtype), np.empty(np.int64(padded_d * padded_d), dtype)
    # Numbers of the tables' own type: a single float64 among them would make all arithmetic float64.
    scale, numbers = np.empty(1, dtype), np.array([0.9, 0.1, 0.999, 0.001, 1e-8, 0.0, 0.0]).astype(dtype)
    decaying = decays.max() > 0
    for user in range(begin, end):
        table = tables[row_indptr[user] : row_indptr[user + 1]].reshape(-1)
        network, before, step, active = networks[user], np.nan, 0, 0
        liked = positive_items[positive_indptr[user] : positive_indptr[user + 1]]
        others = negative_items[negative_indptr[user] : negative_indptr[user + 1]]
        num_positives, size = len(liked), len(liked) + len(others)
        mine, row_gradient = rows[row_indptr[user] : row_indptr[user + 1]], row_gradients[: len(table)]
        _places(mine, liked, where, place[:num_positives])
        _places(mine, others, where, place[num_positives:size])
        row_moments[:, : len(table) if adam else 0], moments[:], losses[user] = 0, 0, np.nan
        for i in range(size):
            order[i] = i
        for epoch in range(epochs if size > 0 else 0):
            loss, with_loss = 0.0, tolerance > 0 or epoch == epochs - 1
            if size > batch_size:
                _order(stream[user], epoch, size, batch_size, keys, buckets, bucket_of, order)
            for start in range(0, size, batch_size):
                stop = min(start + batch_size, size)
                step, scale[0] = step + 1, 1.0 / (stop - start)
                if step == 1 or size > batch_size:
                    active = _count(
                        place, order, start, stop, num_positives, counts, listed, positives, samples
                    )  # fmt: skip
                gradient[:], row_gradient[:] = 0, 0
                for a in range(sizes):
                    shape, weights_of, biases_of, first = widths[a], weight_at[a], bias_at[a], columns[a]
                    _user_half(network, user_at[a], biases_of[0], first, shape[1], offset)
                    for chunk in range(0, active, _ROWS):
                        part = min(_ROWS, active - chunk)
                        padded = np.uint64(-(-part // _LANES) * _LANES)
                        at, real = np.uint64(chunk), np.uint64(part)
                        _gather(table, unsigned_d, first, shape[0], listed, at, real, padded, signals)
                        top = _hidden_layers(network, shape, weights_of, biases_of, offset, signals, padded)
                        _output(network, output_at[a], shape[len(shape) - 1], signals, top, padded, logits)
                        _exponentials(logits, part, small, exponents, powers)
                        slopes[:] = 0
                        _slopes(positives, samples, chunk, part, logits, small, scale[0], slopes)
                        if with_loss:
                            loss += _loss(positives, samples, chunk, part, logits, small)
                        _back(
                            network, shape, weights_of, biases_of, output_at[a], signals, deltas, top, slopes, padded,
                            gradient,
                        )  # fmt: skip
                        _scatter(deltas, unsigned_d, first, listed, at, real, row_gradient)
                    _back_to_user(network, user_at[a], biases_of[0], first, shape[1], gradient)
                if alpha > 0:
                    _add_decorrelation(
                        table, unsigned_d, padded_d, alpha, off_diagonal, vectors, gram, signals, deltas, row_gradient
                    )
                if decaying:
                    for a in range(len(rates)):
                        for i in range(bounds[a], bounds[a + 1]):
                            gradient[i] += decays[a] * network[i]
                if adam:
                    numbers[5], numbers[6] = 1.0 / (1.0 - 0.9**step), 1.0 / (1.0 - 0.999**step)
                    _adam(table, row_gradient, row_moments[0], row_moments[1], item_rate, numbers)
                else:
                    _sgd(table, row_gradient, item_rate)
                for a in range(len(rates)):
                    low, high = bounds[a], bounds[a + 1]
                    weights, slope = network[low:high], gradient[low:high]
                    if adam:
                        _adam(weights, slope, moments[0, low:high], moments[1, low:high], rates[a], numbers)
                    else:
                        _sgd(weights, slope, rates[a])
            losses[user] = loss / size if with_loss else np.nan
            if tolerance > 0:
                if abs(before - losses[user]) <= tolerance * abs(before):
                    break
                before = losses[user]
