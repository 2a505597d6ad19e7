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
def _order(stream, epoch, size, keys, buckets, first, order):
    """Positions 0 … size - 1 in ascending order of their random keys: a bucket sort, since keys are uniform.

    Key i is number i + epoch * 2**32 of the stream, as in `task.batch_order`.
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
    for i in range(1, size):
        moved, j = order[i], i - 1
        while j >= 0 and keys[order[j]] > keys[moved]:
            order[j + 1] = order[j]
            j -= 1
        order[j + 1] = moved


@_compile
def batch_orders(stream, indptr, epoch, out):
    """The order of every user's samples in one epoch: out[indptr[u]:indptr[u + 1]] for user u."""
    longest = 0
    for user in range(len(stream)):
        longest = max(longest, indptr[user + 1] - indptr[user])
    keys, buckets = np.empty(longest, np.uint64), np.empty(longest + 1, np.int64)
    first = np.empty(longest, np.int64)
    for user in range(len(stream)):
        start, size = indptr[user], indptr[user + 1] - indptr[user]
        _order(stream[user], epoch, size, keys, buckets, first, out[start : start + size])


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
def train_users(
    begin, end, row_indptr, tables, sample_indptr, num_positives, place, vectors, stream,
    epochs, batch_size, adam, item_rate, user_rate, decay, losses,
):  # fmt: skip
    """Train users begin … end - 1; `tables` [rows, d] and `vectors` [k, d] change in place.

    Args:
        row_indptr: [k + 1] rows of each user in `tables`.
        sample_indptr: [k + 1] samples of each user in `place`; the first num_positives[u] are positives.
        stream: [k] keyed stream of the batch order.
        losses: [k] receives the mean loss of the last epoch.
    """
    d = vectors.shape[1]
    # Constants of the tables' own type: a single float64 among them would make all arithmetic float64.
    typed = np.array([0.0, 1.0, 0.9, 0.1, 0.999, 0.001, 1e-8, 0.0, 0.0, 0.0]).astype(tables.dtype)
    zero, one, keep_1, take_1, keep_2, take_2, epsilon = (
        typed[0], typed[1], typed[2], typed[3], typed[4], typed[5], typed[6],
    )  # fmt: skip
    most_rows, most_samples = 1, 1
    for user in range(begin, end):
        most_rows = max(most_rows, row_indptr[user + 1] - row_indptr[user])
        most_samples = max(most_samples, sample_indptr[user + 1] - sample_indptr[user])
    counts = np.zeros((2, most_rows), tables.dtype)
    listed = np.empty(most_rows, np.int64)
    keys, buckets = np.empty(most_samples, np.uint64), np.empty(most_samples + 1, np.int64)
    bucket_of, order = np.empty(most_samples, np.int64), np.empty(most_samples, np.int64)
    gradient = np.zeros(d, tables.dtype)
    moments = np.zeros((2, most_rows if adam else 1, d), tables.dtype)
    user_moments = np.zeros((2, d), tables.dtype)
    for user in range(begin, end):
        table = tables[row_indptr[user] : row_indptr[user + 1]]
        here = place[sample_indptr[user] : sample_indptr[user + 1]]
        p, num_rows, num_samples = vectors[user], len(table), len(here)
        positives = num_positives[user]
        losses[user] = np.nan
        if num_samples == 0:
            continue
        moments[:, : num_rows if adam else 1] = 0
        user_moments[:] = 0
        batches = (num_samples + batch_size - 1) // batch_size
        counts[:, :num_rows] = 0
        if batches == 1:
            for i in range(num_samples):
                counts[0 if i < positives else 1, here[i]] += 1
            for i in range(num_rows):
                listed[i] = i
        step = 0
        for epoch in range(epochs):
            if batches > 1:
                _order(stream[user], epoch, num_samples, keys, buckets, bucket_of, order)
            total = 0.0
            for batch in range(batches):
                start, stop = batch * batch_size, min((batch + 1) * batch_size, num_samples)
                active = num_rows
                if batches > 1:
                    dense = adam or decay > 0
                    if dense:
                        counts[:, :num_rows] = 0
                        for i in range(num_rows):
                            listed[i] = i
                    else:
                        active = 0
                    for i in range(start, stop):
                        sample = order[i]
                        row = here[sample]
                        if not dense and counts[0, row] == 0 and counts[1, row] == 0:
                            listed[active] = row
                            active += 1
                        counts[0 if sample < positives else 1, row] += 1
                step += 1
                typed[7] = 1.0 / (stop - start)
                typed[8], typed[9] = 1.0 / (1.0 - 0.9**step), 1.0 / (1.0 - 0.999**step)
                scale, correct_1, correct_2 = typed[7], typed[8], typed[9]
                gradient[:] = 0
                for i in range(active):
                    r = listed[i]
                    row = table[r]
                    z = zero
                    for j in range(d):
                        z += row[j] * p[j]
                    small = math.exp(-abs(z))
                    sigmoid = one / (one + small)
                    if z < 0:
                        sigmoid = small * sigmoid
                    count = counts[0, r] + counts[1, r]
                    c = (count * sigmoid - counts[0, r]) * scale
                    if epoch == epochs - 1:
                        total += count * (math.log1p(small) + max(z, zero)) - counts[0, r] * z
                    if adam:
                        for j in range(d):
                            gradient[j] += c * row[j]
                            g = c * p[j] + decay * row[j]
                            first = keep_1 * moments[0, r, j] + take_1 * g
                            second = keep_2 * moments[1, r, j] + take_2 * g * g
                            moments[0, r, j], moments[1, r, j] = first, second
                            row[j] -= item_rate * (correct_1 * first) / (np.sqrt(correct_2 * second) + epsilon)
                    else:
                        for j in range(d):
                            gradient[j] += c * row[j]
                            row[j] -= item_rate * (c * p[j] + decay * row[j])
                    if batches > 1 and not (adam or decay > 0):
                        counts[0, r] = counts[1, r] = 0
                for j in range(d):
                    g = gradient[j] + decay * p[j]
                    if adam:
                        first = keep_1 * user_moments[0, j] + take_1 * g
                        second = keep_2 * user_moments[1, j] + take_2 * g * g
                        user_moments[0, j], user_moments[1, j] = first, second
                        p[j] -= user_rate * (correct_1 * first) / (np.sqrt(correct_2 * second) + epsilon)
                    else:
                        p[j] -= user_rate * g
            losses[user] = total / num_samples
