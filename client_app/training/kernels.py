"""Compiled inner loops of the numba backend: matrix factorisation, one user after another.

With a dot product the batch gradient of an item row is a number times p: for row r with a positives and b negatives
in a batch of N samples,

    c_r = ((a + b) σ(z_r) - a) / N,    ∂L/∂q_r = c_r p,    ∂L/∂p = Σ_r c_r q_r,

so nothing d-wide is gathered or scattered inside the loop. Every user writes to its own slices only, so the result
does not depend on how many threads there are.

This module imports nothing of the project: it is compiled from a copy in a per-user folder, where the compiled code
is found again by every later process (see `compiled`).
"""

from __future__ import annotations

import math

import numba
import numpy as np

# Sums may be reordered into vector registers; NaN and infinity keep their meaning.
_FAST = {"reassoc", "contract", "nsz", "arcp"}
_compile = numba.njit(cache=True, nogil=True, fastmath=_FAST)


@_compile
def _mix(word):
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@_compile
def _order(stream, epoch, size, batch_size, keys, buckets, first, order):
    """Positions 0 … size - 1 in batches, in ascending order of their random keys.

    Key i is number i + epoch * 2**32 of the stream, as in `task.batch_order`. Keys are uniform, so a sort into as
    many buckets as keys is almost complete; it is completed only where a batch ends inside a bucket, because the
    order within a batch changes nothing.
    """
    buckets[: size + 1] = 0
    for i in range(size):
        counter = np.uint64(i) + (np.uint64(epoch) << np.uint64(32)) + np.uint64(1)
        keys[i] = _mix(stream + counter * np.uint64(0x9E3779B97F4A7C15))
        first[i] = ((keys[i] >> np.uint64(32)) * np.uint64(size)) >> np.uint64(32)
        buckets[first[i] + 1] += 1
    for i in range(size):
        buckets[i + 1] += buckets[i]
    for i in range(size):
        order[buckets[first[i]]] = i
        buckets[first[i]] += 1
    for boundary in range(batch_size, size, batch_size):
        bucket = first[order[boundary]]
        begin = buckets[bucket - 1] if bucket > 0 else 0
        for i in range(begin + 1, buckets[bucket]):
            moved, j = order[i], i - 1
            while j >= begin and keys[order[j]] > keys[moved]:
                order[j + 1] = order[j]
                j -= 1
            order[j + 1] = moved


@_compile
def batch_orders(stream, indptr, epoch, batch_size, out):
    """The order of every user's samples in one epoch: out[indptr[u]:indptr[u + 1]] for user u."""
    longest = 0
    for user in range(len(stream)):
        longest = max(longest, indptr[user + 1] - indptr[user])
    keys, buckets = np.empty(longest, np.uint64), np.empty(longest + 1, np.int64)
    first = np.empty(longest, np.int64)
    for user in range(len(stream)):
        start, size = indptr[user], indptr[user + 1] - indptr[user]
        _order(stream[user], epoch, size, batch_size, keys, buckets, first, out[start : start + size])


@_compile
def gather(table, rows, out):
    """out = table[rows]."""
    for i in range(len(rows)):
        out[i] = table[rows[i]]


@_compile
def subtract_rows(out, table, rows):
    """out -= table[rows]."""
    for i in range(len(rows)):
        row, origin = out[i], table[rows[i]]
        for j in range(len(row)):
            row[j] -= origin[j]


@_compile
def add_weighted(table, indptr, rows, values, weights):
    """table[rows[i]] += weights[u] * values[i] for the rows i of every user u; table in float64."""
    for user in range(len(weights)):
        for i in range(indptr[user], indptr[user + 1]):
            target, value = table[rows[i]], values[i]
            for j in range(len(value)):
                target[j] += weights[user] * value[j]


@_compile
def touched_rows(positive_indptr, positives, negative_indptr, negatives, num_items, row_indptr, rows, place):
    """The distinct items of every user's samples, ascending, and where each sample's item is among them.

    Args:
        rows: [samples] filled per user from its first sample on; row_indptr: [k + 1] is filled with the counts.
        place: [samples], positives of a user before its negatives, users one after another.
    """
    where = np.full(num_items, -1, np.int32)
    filled, sample = 0, 0
    row_indptr[0] = 0
    for user in range(len(positive_indptr) - 1):
        start = filled
        for i in range(positive_indptr[user], positive_indptr[user + 1]):
            if where[positives[i]] < 0:
                where[positives[i]] = 0
                rows[filled] = positives[i]
                filled += 1
        for i in range(negative_indptr[user], negative_indptr[user + 1]):
            if where[negatives[i]] < 0:
                where[negatives[i]] = 0
                rows[filled] = negatives[i]
                filled += 1
        if 16 * (filled - start) > num_items:  # walking over the catalogue is cheaper than sorting
            filled = start
            for item in range(num_items):
                if where[item] == 0:
                    rows[filled] = item
                    filled += 1
        else:
            rows[start:filled] = np.sort(rows[start:filled])
        for i in range(start, filled):
            where[rows[i]] = i - start
        for i in range(positive_indptr[user], positive_indptr[user + 1]):
            place[sample] = where[positives[i]]
            sample += 1
        for i in range(negative_indptr[user], negative_indptr[user + 1]):
            place[sample] = where[negatives[i]]
            sample += 1
        for i in range(start, filled):
            where[rows[i]] = -1
        row_indptr[user + 1] = filled


@_compile
def _exponentials(logits, size, out, exponents, powers):
    """out = exp(-|logits|).

    In float32, exp(x) = 2^n 2^f with n + f = x log2(e) and a polynomial for 2^f (relative error 2e-7), in loops that
    the compiler turns into vector instructions; `powers` is the memory of `exponents` read as float32, so that a
    shifted integer is the power of two.
    """
    if out.itemsize == 8:
        for i in range(size):
            out[i] = math.exp(-abs(logits[i]))
        return
    for i in range(size):
        x = max(np.float32(-1.442695040888963) * abs(np.float32(logits[i])), np.float32(-126.0))
        n = np.floor(x)
        f = x - n
        y = np.float32(2.1579014e-4)
        y = y * f + np.float32(1.2474251e-3)
        y = y * f + np.float32(9.6752245e-3)
        y = y * f + np.float32(5.5485100e-2)
        y = y * f + np.float32(0.24022943)
        y = y * f + np.float32(0.69314703)
        out[i] = y * f + np.float32(1.0)
        exponents[i] = (np.int32(n) + np.int32(127)) << np.int32(23)
    for i in range(size):
        out[i] *= powers[i]


@_compile
def _count(here, order, start, stop, positives, counts, listed):
    """Count a batch into counts[0] (positives) and counts[1] (negatives) by row, and list its distinct rows."""
    active = 0
    for i in range(start, stop):
        row = here[order[i]]
        if counts[0, row] == 0 and counts[1, row] == 0:
            listed[active] = row
            active += 1
        counts[0 if order[i] < positives else 1, row] += 1
    return active


@_compile
def _logits(table, p, listed, active, logits):
    for i in range(active):
        row = table[listed[i]]
        logits[i] = 0
        for j in range(len(p)):
            logits[i] += row[j] * p[j]


@_compile
def _slopes(counts, listed, active, logits, small, scale, slopes):
    """c_r of the module's equation, for the listed rows; scale = 1 / N, small = exp(-|z|)."""
    one = scale / scale
    for i in range(active):
        positive = counts[0, listed[i]]
        sigmoid = (one if logits[i] >= 0 else small[i]) / (one + small[i])
        slopes[i] = ((positive + counts[1, listed[i]]) * sigmoid - positive) * scale


@_compile
def _loss(counts, listed, active, logits, small):
    """Σ (a + b) softplus(z) - a z over the listed rows."""
    total = 0.0
    for i in range(active):
        positive = counts[0, listed[i]]
        softplus = math.log1p(small[i]) + max(logits[i], 0)
        total += (positive + counts[1, listed[i]]) * softplus - positive * logits[i]
    return total


@_compile
def _sgd_rows(table, p, listed, active, slopes, rate, gradient):
    """gradient = Σ c_r q_r with the old rows, and q_r ← q_r - rate c_r p."""
    gradient[:] = 0
    for i in range(active):
        row, c = table[listed[i]], slopes[i]
        step = rate * c
        for j in range(len(p)):
            gradient[j] += c * row[j]
            row[j] -= step * p[j]


@_compile
def _adam(weight, gradient, first, second, numbers):
    """One step of Adam on a row of weights; numbers: rate, β1, 1 - β1, β2, 1 - β2, ε, and both bias corrections."""
    rate, keep_1, take_1, keep_2, take_2 = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
    epsilon, scale_1, scale_2 = numbers[5], numbers[6], numbers[7]
    for j in range(len(weight)):
        m = keep_1 * first[j] + take_1 * gradient[j]
        v = keep_2 * second[j] + take_2 * gradient[j] * gradient[j]
        first[j], second[j] = m, v
        weight[j] -= rate * (scale_1 * m) / (np.sqrt(scale_2 * v) + epsilon)


@_compile
def _adam_rows(table, p, slopes_by_row, first, second, numbers, gradient, row_gradient):
    """As `_sgd_rows`, for all rows: moments move those that are not in the batch too."""
    gradient[:] = 0
    for r in range(len(table)):
        for j in range(len(p)):
            gradient[j] += slopes_by_row[r] * table[r, j]
            row_gradient[j] = slopes_by_row[r] * p[j]
        _adam(table[r], row_gradient, first[r], second[r], numbers)


@_compile
def train_users(
    begin, end, row_indptr, tables, sample_indptr, num_positives, place, vectors, stream,
    epochs, batch_size, adam, item_rate, user_rate, losses,
):  # fmt: skip
    """Train users begin … end - 1; `tables` [rows, d] and `vectors` [k, d] change in place.

    Args:
        row_indptr: [k + 1] rows of each user in `tables`.
        sample_indptr: [k + 1] samples of each user in `place`; the first num_positives[u] are positives.
        place: [samples] row of each sample in its user's table.
        stream: [k] keyed stream of the batch order.
        item_rate, user_rate: of the tables' type.
        losses: [k] receives the mean loss of the last epoch.
    """
    d, dtype = vectors.shape[1], tables.dtype
    most_rows, most_samples = 1, 1
    for user in range(begin, end):
        most_rows = max(most_rows, row_indptr[user + 1] - row_indptr[user])
        most_samples = max(most_samples, sample_indptr[user + 1] - sample_indptr[user])
    counts, listed = np.zeros((2, most_rows), dtype), np.empty(most_rows, np.int64)
    logits, small, slopes = np.empty(most_rows, dtype), np.empty(most_rows, dtype), np.empty(most_rows, dtype)
    by_row, exponents = np.empty(most_rows, dtype), np.empty(most_rows, np.int32)
    powers = exponents.view(np.float32)
    keys, buckets = np.empty(most_samples, np.uint64), np.empty(most_samples + 1, np.int64)
    bucket_of, order = np.empty(most_samples, np.int64), np.arange(most_samples)
    gradient, row_gradient = np.zeros(d, dtype), np.zeros(d, dtype)
    first = np.zeros((most_rows if adam else 1, d), dtype)
    second, user_moments = np.zeros_like(first), np.zeros((2, d), dtype)
    # Numbers of the tables' own type: a single float64 among them would make all arithmetic float64.
    scale = np.empty(1, dtype)
    numbers = np.array([0.0, 0.9, 0.1, 0.999, 0.001, 1e-8, 0.0, 0.0]).astype(dtype)
    user_numbers = numbers.copy()
    numbers[0], user_numbers[0] = item_rate, user_rate
    for user in range(begin, end):
        table = tables[row_indptr[user] : row_indptr[user + 1]]
        here = place[sample_indptr[user] : sample_indptr[user + 1]]
        p, size, positives = vectors[user], len(here), num_positives[user]
        batches, step, active = (size + batch_size - 1) // batch_size, 0, 0
        first[: len(table) if adam else 0], second[: len(table) if adam else 0], user_moments[:] = 0, 0, 0
        if batches == 1:
            for i in range(size):
                order[i] = i
            active = _count(here, order, 0, size, positives, counts, listed)
        for epoch in range(epochs):
            losses[user] = 0.0 if size else np.nan
            if batches > 1:
                _order(stream[user], epoch, size, batch_size, keys, buckets, bucket_of, order)
            for batch in range(batches):
                start, stop = batch * batch_size, min((batch + 1) * batch_size, size)
                if batches > 1:
                    active = _count(here, order, start, stop, positives, counts, listed)
                step += 1
                scale[0] = 1.0 / (stop - start)
                _logits(table, p, listed, active, logits)
                _exponentials(logits, active, small, exponents, powers)
                _slopes(counts, listed, active, logits, small, scale[0], slopes)
                if epoch == epochs - 1:
                    losses[user] += _loss(counts, listed, active, logits, small) / size
                if adam:
                    for these in (numbers, user_numbers):
                        these[6], these[7] = 1.0 / (1.0 - 0.9**step), 1.0 / (1.0 - 0.999**step)
                    by_row[: len(table)] = 0
                    for i in range(active):
                        by_row[listed[i]] = slopes[i]
                    _adam_rows(table, p, by_row, first, second, numbers, gradient, row_gradient)
                    _adam(p, gradient, user_moments[0], user_moments[1], user_numbers)
                else:
                    _sgd_rows(table, p, listed, active, slopes, item_rate, gradient)
                    for j in range(d):
                        p[j] -= user_rate * gradient[j]
                if batches > 1:
                    for i in range(active):
                        counts[0, listed[i]], counts[1, listed[i]] = 0, 0
        counts[:, : len(table)] = 0
