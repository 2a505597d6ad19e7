"""Compiled loops over the rows of users' tables: which rows there are, and sums of them over users.

As `kernels`, this module imports nothing of the project and is compiled from a copy.
"""

from __future__ import annotations

import numba
import numpy as np

_compile = numba.njit(cache=True, nogil=True)


@_compile
def add_weighted(table, indptr, rows, values, weights):
    """table[rows[i]] += weights[u] * values[i] for the rows i of every user u; table in float64."""
    for user in range(len(weights)):
        for i in range(indptr[user], indptr[user + 1]):
            target, value = table[rows[i]], values[i]
            for j in range(len(value)):
                target[j] += weights[user] * value[j]


@_compile
def add_whole(total, values, weights):
    """total += Σ_u weights[u] values[u], of values [k, n]; total [n] in float64."""
    for begin in range(0, len(total), 1024):  # stays in the first cache while the users come by
        part = total[begin : begin + 1024]
        for user in range(len(weights)):
            weight, added = weights[user], values[user, begin : begin + 1024]
            for j in range(len(part)):
                part[j] += weight * added[j]


@_compile
def take_own(tables, users, indptr, rows, out):
    """out[i] = tables[users[u], rows[i]] for the rows i of every user u; tables [n, m, d]."""
    for user in range(len(users)):
        table = tables[users[user]]
        for i in range(indptr[user], indptr[user + 1]):
            before, found = table[rows[i]], out[i]
            for j in range(len(found)):
                found[j] = before[j]


@_compile
def put_own(tables, users, indptr, rows, values):
    """tables[users[u], rows[i]] = values[i] for the rows i of every user u."""
    for user in range(len(users)):
        table = tables[users[user]]
        for i in range(indptr[user], indptr[user + 1]):
            target, value = table[rows[i]], values[i]
            for j in range(len(value)):
                target[j] = value[j]


@_compile
def add_own(tables, users, indptr, rows, values, share):
    """tables[users[u], rows[i]] += share * values[i] for the rows i of every user u."""
    for user in range(len(users)):
        table = tables[users[user]]
        for i in range(indptr[user], indptr[user + 1]):
            target, value = table[rows[i]], values[i]
            for j in range(len(value)):
                target[j] += share * value[j]


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def norms_outside(tables, users, indptr, rows, out):
    """out[u] = Σ of squares of the table of user u but for its rows rows[i], in float64; tables [n, m, d]."""
    for user in range(len(users)):
        table, i = tables[users[user]], indptr[user]
        out[user] = 0.0
        for row in range(len(table)):
            if i < indptr[user + 1] and rows[i] == row:  # they are ascending
                i += 1
                continue
            values, total = table[row], table.dtype.type(0)
            for j in range(len(values)):
                total += values[j] * values[j]
            out[user] += total


@_compile
def rows_after(table, rows, changes, out):
    """out[i] = table[rows[i]] + changes[i]."""
    for i in range(len(rows)):
        before, change, after = table[rows[i]], changes[i], out[i]
        for j in range(len(change)):
            after[j] = before[j] + change[j]


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def score_rows(vectors, indptr, rows, values, scores):
    """scores[u, rows[i]] = ⟨vectors[u], values[i]⟩ for the rows i of every user u."""
    for user in range(len(vectors)):
        for i in range(indptr[user], indptr[user + 1]):
            total = np.float32(0)
            for j in range(vectors.shape[1]):
                total += vectors[user, j] * values[i, j]
            scores[user, rows[i]] = total


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def score_sums(vectors, common, tables, scores):
    """scores[u, i] = ⟨vectors[u], common[i] + tables[u, i]⟩ for every row i of every user u; tables [k, m, d]."""
    for user in range(len(vectors)):
        for i in range(common.shape[0]):
            total = np.float32(0)
            for j in range(vectors.shape[1]):
                total += vectors[user, j] * (common[i, j] + tables[user, i, j])
            scores[user, i] = total


@_compile
def mix_words(words, begins, ends, keys, factor, states):
    """Take words begins[u] … ends[u] - 1 of every user u into its state (`client_app.state.checksums`)."""
    for user in range(len(begins)):
        state = states[user]
        for begin in range(begins[user], ends[user], len(keys)):
            block = words[begin : min(begin + len(keys), ends[user])]
            total = np.uint64(0)
            for j in range(len(block)):
                total += keys[j] * np.uint64(block[j])
            state = (state ^ total) * factor
            state ^= state >> np.uint64(29)
        states[user] = state


@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract"}, error_model="numpy")
def gram(table, indptr, rows, centred, out):
    """out[u] = Σ_i q qᵀ over the rows i of every user u, of the table [n, m, d]; in float64.

    With `centred`, q is a row less the mean of the user's rows: Σ q qᵀ - n μ μᵀ around the first row, which keeps the
    digits that rows far from zero would lose. Rows lie by columns, because loops over a column fill vector registers.
    """
    d, longest = table.shape[2], 0
    for user in range(len(indptr) - 1):
        longest = max(longest, indptr[user + 1] - indptr[user])
    columns, total, origin = np.empty((d, longest)), np.empty(d), np.zeros(d)
    for user in range(len(indptr) - 1):
        begin, count = indptr[user], indptr[user + 1] - indptr[user]
        mine, result = table[user], out[user]
        if centred and count > 0:
            for a in range(d):
                origin[a] = mine[rows[begin], a]
        for i in range(count):
            row = mine[rows[begin + i]]
            for a in range(d):
                columns[a, i] = row[a] - origin[a]
        for a in range(d):
            left, mean = columns[a], 0.0
            for i in range(count):
                mean += left[i]
            total[a] = mean
            for b in range(a + 1):
                right, product = columns[b], 0.0
                for i in range(count):
                    product += left[i] * right[i]
                if centred and count > 0:
                    product -= total[a] * total[b] / count
                result[a, b] = result[b, a] = product


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
