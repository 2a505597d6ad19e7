"""Compiled local training of GRU4Rec: a user's whole sequence is one step, forwards and backwards through time.

With x_t the embedding of the t-th input, h_t what the recurrence makes of it (`kernels_recurrence`), s_t = h_t W_o +
b_o what meets the items and c_{t,i} = (σ(s_t · q_i) - y_i) / N the slope of item i at place t,

    ∂L/∂s_t = Σ_i c_{t,i} q_i        ∂L/∂q_i = Σ_t c_{t,i} s_t        ∂L/∂h_t = (∂L/∂s_t) W_oᵀ + what h_{t+1} hands back

and a row that is read has the gradient of what it is at the input besides. All products but those of the recurrence are
of a whole sequence at once. Every user writes to its own slices only. Copied and compiled with the kernels beside it
(see `compiler`).
"""

from __future__ import annotations

import math

import numpy as np

from .kernels_batches import _mix
from .kernels_compile import _compile
from .kernels_logistic import _exponentials
from .kernels_ncf import _adam, _places, _sgd
from .kernels_products import _add_sum_of_rows, _products_of_rows, _sums_of_outer_products
from .kernels_recurrence import _back_through_time, _recur


@_compile
def _draw_kept(stream, number, dropped, scale, out):
    """out = 0 for what is dropped and `scale` for the rest, as `sequences.Dropout` draws it.

    Args:
        number: of the place among all places with dropout of all epochs.
    """
    start, zero = np.uint64(number) << np.uint64(32), out.dtype.type(0)
    length, width = out.shape
    for t in range(length):
        row, first = out[t], start + np.uint64(t * width) + np.uint64(1)
        for j in range(width):
            word = _mix(stream + (first + np.uint64(j)) * np.uint64(0x9E3779B97F4A7C15))
            row[j] = scale if (word >> np.uint64(11)) >= dropped else zero


@_compile
def _meet(table, states, positives, negatives, share, logits, small, exponents, powers, of_states, row_gradient):
    """Loss and gradient of what every state tells its positive from its negatives.

    Args:
        table, row_gradient: [r, d]; states, of_states: [L, d].
        positives: [L] rows; negatives: [L share] rows.
        logits: [L (1 + share)] scratch; the slopes afterwards.
    Returns:
        Σ softplus(z) - y z.
    """
    length, d, one = len(states), states.shape[1], states.dtype.type(1)
    count, total = length * (1 + share), 0.0
    scale = one / states.dtype.type(count)
    for t in range(length):
        state, first = states[t], t * (1 + share)
        for e in range(1 + share):
            row = table[positives[t] if e == 0 else negatives[t * share + e - 1]]
            value = states.dtype.type(0)
            for j in range(d):
                value += state[j] * row[j]
            logits[first + e] = value
    _exponentials(logits, count, small, exponents, powers)
    for i in range(count):
        z = logits[i]
        positive = i % (1 + share) == 0
        total += math.log1p(small[i]) + max(z, 0) - (z if positive else 0.0)
        sigmoid = (one if z >= 0 else small[i]) / (one + small[i])
        slope = (sigmoid - one if positive else sigmoid) * scale
        logits[i] = slope if z == z else z
    of_states[:] = 0
    for t in range(length):
        state, of_state, first = states[t], of_states[t], t * (1 + share)
        for e in range(1 + share):
            place = positives[t] if e == 0 else negatives[t * share + e - 1]
            row, of_row, slope = table[place], row_gradient[place], logits[first + e]
            for j in range(d):
                of_state[j] += slope * row[j]
            for j in range(d):
                of_row[j] += slope * state[j]
    return total


@_compile
def train_users(
    begin, end, row_indptr, rows, tables, positive_indptr, positive_items, negative_indptr, negative_items, num_items,
    networks, bounds, rates, decays, item_rate, item_decay, stream, dropped, scale, epochs, adam, tolerance, losses,
    steps,
):  # fmt: skip
    """Train users begin … end - 1; `tables` [nnz, d] and `networks` [k, n] change in place.

    Args:
        row_indptr, rows: [k] rows of the items that each user works on, whose embeddings stand in `tables`.
        positive_indptr, positive_items: [k] rows of items, oldest first.
        negative_indptr, negative_items: [k] rows of as many negatives for every positive but the first.
        networks: W_i, U, b, b', W_o and b_o of each user; bounds: [7] where they begin and end.
        rates, decays: [6] of each, of their type; item_rate, item_decay: of the tables.
        stream: [k] keyed stream of dropout.
        dropped: a draw of 53 bits below this is of a value that is dropped; scale: what the others are multiplied
            with, of the tables' type.
        tolerance: a user ends after an epoch that changed its loss by at most this share; 0: all epochs.
        losses: [k] receives the mean loss of the last epoch, steps: [k] the number of steps taken.
    """
    d, dtype, longest, most_rows, most_entries = tables.shape[1], tables.dtype, 1, 1, 3 * tables.shape[1]
    for user in range(begin, end):
        length = positive_indptr[user + 1] - positive_indptr[user]
        longest, most_rows = max(longest, length), max(most_rows, row_indptr[user + 1] - row_indptr[user])
        most_entries = max(most_entries, length + negative_indptr[user + 1] - negative_indptr[user])
    where, place_of = np.empty(num_items, np.int32), np.empty(most_entries, np.int32)
    by_place, wide = np.empty((8, longest + 1, d), dtype), np.empty((3, longest, 3 * d), dtype)
    recurrent, carried, column = np.empty(3 * d, dtype), np.empty(d, dtype), np.empty(longest, dtype)
    logits, small = np.empty(most_entries, dtype), np.empty(most_entries, dtype)
    exponents = np.empty(most_entries, np.int32)
    powers = exponents.view(np.float32)
    gradient, row_gradients = np.empty(networks.shape[1], dtype), np.empty((most_rows, d), dtype)
    moments = np.empty((2, networks.shape[1] if adam else 0), dtype)
    row_moments = np.empty((2, most_rows * d if adam else 0), dtype)
    numbers = np.array([0.9, 0.1, 0.999, 0.001, 1e-8, 0.0, 0.0]).astype(dtype)
    decaying = decays.max() > 0
    for user in range(begin, end):
        losses[user], steps[user] = np.nan, 0
        length = positive_indptr[user + 1] - positive_indptr[user] - 1
        if length < 1:
            continue
        mine, table = rows[row_indptr[user] : row_indptr[user + 1]], tables[row_indptr[user] : row_indptr[user + 1]]
        count = negative_indptr[user + 1] - negative_indptr[user]
        share, size = count // length, length + count
        _places(mine, positive_items[positive_indptr[user] : positive_indptr[user + 1]], where, place_of)
        read, liked, others = place_of[:length], place_of[1 : length + 1], place_of[length + 1 : size + 1]
        _places(mine, negative_items[negative_indptr[user] : negative_indptr[user + 1]], where, others)
        network, row_gradient = networks[user], row_gradients[: len(mine)]
        w_in, of_w_in = _matrix(network, bounds[0], d, 3 * d), _matrix(gradient, bounds[0], d, 3 * d)
        u, of_u = _matrix(network, bounds[1], d, 3 * d), _matrix(gradient, bounds[1], d, 3 * d)
        b, of_b = network[bounds[2] : bounds[3]], gradient[bounds[2] : bounds[3]]
        b_hidden, of_b_hidden = network[bounds[3] : bounds[4]], gradient[bounds[3] : bounds[4]]
        w_out, of_w_out = _matrix(network, bounds[4], d, d), _matrix(gradient, bounds[4], d, d)
        b_out, of_b_out = network[bounds[5] : bounds[6]], gradient[bounds[5] : bounds[6]]
        keep_in, keep_out, embedded = by_place[0, :length], by_place[1, :length], by_place[2, :length]
        told, states, of_states = by_place[3, :length], by_place[4, :length], by_place[5, :length]
        inner, hidden = by_place[6, :length], by_place[7, : length + 1]
        gates, of_gates, of_recurrent = wide[0, :length], wide[1, :length], wide[2, :length]
        moments[:], row_moments[:] = 0, 0
        before, step = np.nan, 0
        for epoch in range(epochs):
            if dropped > 0:
                _draw_kept(stream[user], 2 * epoch, dropped, scale, keep_in)
                _draw_kept(stream[user], 2 * epoch + 1, dropped, scale, keep_out)
            else:
                keep_in[:], keep_out[:] = 1, 1
            for t in range(length):
                _multiply(table[read[t]], keep_in[t], embedded[t])
                gates[t] = b
                _add_sum_of_rows(embedded[t], w_in, gates[t])
            _recur(gates, inner, hidden, u, b_hidden, recurrent, small, exponents, powers)
            for t in range(length):
                _multiply(hidden[t + 1], keep_out[t], told[t])
                states[t] = b_out
                _add_sum_of_rows(told[t], w_out, states[t])
            row_gradient[:] = 0
            loss = _meet(
                table, states, liked, others, share, logits, small, exponents, powers, of_states, row_gradient
            )  # fmt: skip
            _sums_of_outer_products(told, of_states, column, of_w_out)
            _sums(of_states, of_b_out)
            _products_of_rows(of_states, w_out, told)
            for t in range(length):
                _multiply(told[t], keep_out[t], told[t])
            _back_through_time(gates, inner, hidden, u, told, of_gates, of_recurrent, carried)
            _sums_of_outer_products(hidden[:length], of_recurrent, column, of_u)
            _sums(of_recurrent, of_b_hidden)
            _sums_of_outer_products(embedded, of_gates, column, of_w_in)
            _sums(of_gates, of_b)
            _products_of_rows(of_gates, w_in, embedded)
            for t in range(length):
                _multiply(embedded[t], keep_in[t], embedded[t])
                _add(embedded[t], row_gradient[read[t]])
            step += 1
            numbers[5], numbers[6] = 1.0 / (1.0 - 0.9**step), 1.0 / (1.0 - 0.999**step)
            if decaying:
                for a in range(len(rates)):
                    for i in range(bounds[a], bounds[a + 1]):
                        gradient[i] += decays[a] * network[i]
            flat, of_flat = table.reshape(-1), row_gradient.reshape(-1)
            if item_decay > 0:
                for i in range(len(flat)):
                    of_flat[i] += item_decay * flat[i]
            if adam:
                _adam(flat, of_flat, row_moments[0], row_moments[1], item_rate, numbers)
            else:
                _sgd(flat, of_flat, item_rate)
            for a in range(len(rates)):
                low, high = bounds[a], bounds[a + 1]
                if adam:
                    _adam(
                        network[low:high], gradient[low:high], moments[0, low:high], moments[1, low:high], rates[a],
                        numbers,
                    )  # fmt: skip
                else:
                    _sgd(network[low:high], gradient[low:high], rates[a])
            losses[user] = loss / size
            if tolerance > 0:
                if abs(before - losses[user]) <= tolerance * abs(before):
                    break
                before = losses[user]
        steps[user] = step


@_compile
def read_users(
    begin, end, embedded, lengths, input_weight, hidden_weight, input_bias, hidden_bias, output_weight, output_bias, out
):  # fmt: skip
    """What users begin … end - 1 are met with after the last item of their histories, each by a network of its own.

    Args:
        embedded: [k, L, d] embeddings of the items, oldest first; lengths: [k] how many there are, at least 1.
        input_weight, …, output_bias: [k, …] as the model declares them.
        out: [k, d] receives s_t of the last place.
    """
    longest, d, dtype = embedded.shape[1], embedded.shape[2], embedded.dtype
    gates, inner = np.empty((longest, 3 * d), dtype), np.empty((longest, d), dtype)
    hidden, recurrent, small = np.empty((longest + 1, d), dtype), np.empty(3 * d, dtype), np.empty(3 * d, dtype)
    exponents = np.empty(3 * d, np.int32)
    powers = exponents.view(np.float32)
    for user in range(begin, end):
        length = lengths[user]
        for t in range(length):
            gates[t] = input_bias[user]
            _add_sum_of_rows(embedded[user, t], input_weight[user], gates[t])
        _recur(
            gates[:length], inner[:length], hidden[: length + 1], hidden_weight[user], hidden_bias[user], recurrent,
            small, exponents, powers,
        )  # fmt: skip
        out[user] = output_bias[user]
        _add_sum_of_rows(hidden[length], output_weight[user], out[user])


@_compile
def _matrix(values, start, rows, columns):
    return values[start : start + rows * columns].reshape((rows, columns))


@_compile
def _multiply(left, right, out):
    for j in range(len(out)):
        out[j] = left[j] * right[j]


@_compile
def _add(values, out):
    for j in range(len(out)):
        out[j] += values[j]


@_compile
def _sums(rows, out):
    """out = Σ_t rows[t]."""
    out[:] = 0
    for t in range(len(rows)):
        _add(rows[t], out)
