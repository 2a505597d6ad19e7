"""Compiled inner loops of the numba backend: matrix factorisation, one user after another.

With a dot product the batch gradient of an item row is a number times p: for row r with a positives and b negatives
in a batch of N samples,

    c_r = ((a + b) σ(z_r) - a) / N,    ∂L/∂q_r = c_r p,    ∂L/∂p = Σ_r c_r q_r,

so nothing d-wide is gathered or scattered inside the loop. The table of a user lies in the processor's cache in one
of two layouts: by columns [d, rows] where a step visits all or a good part of its rows, because loops over a column
fill vector registers, and by rows where a step visits few of them. Every user writes to its own slices only, so the
result does not depend on how many threads there are.

This module imports nothing of the project but the kernels beside it: they are compiled from copies in a per-user
folder, where the compiled code is found again by every later process (see `compiler`).
"""

from __future__ import annotations

import numpy as np

from .kernels_batches import _count, _count_all, _order, _take
from .kernels_compile import _compile
from .kernels_logistic import _exponentials, _log1p, _loss, _slopes

# Up to so many rows per sample of a batch it is cheaper to visit all rows by columns than the batch's rows one by one.
ROWS_PER_SAMPLE = 2


@_compile
def _logits_by_columns(columns, p, logits):
    size = columns.shape[1]
    logits[:size] = 0
    for j in range(len(p)):
        column, factor = columns[j], p[j]
        for r in range(size):
            logits[r] += factor * column[r]


@_compile
def _sgd_by_columns(columns, p, slopes, rate, keep, gradient):
    """gradient = Σ c_r q_r with the old rows, and q_r ← keep q_r - rate c_r p."""
    for j in range(len(p)):
        column, step, total = columns[j], rate * p[j], p.dtype.type(0)
        for r in range(len(column)):
            total += slopes[r] * column[r]
            column[r] = keep * column[r] - step * slopes[r]
        gradient[j] = total


@_compile
def _adam(weight, gradient, factor, first, second, numbers):
    """One step of Adam along factor · gradient; returns Σ gradient · weight with the old weights.

    Args:
        numbers: β1, 1 - β1, β2, 1 - β2, ε, rate / (1 - β1^t), 1 / (1 - β2^t).
    """
    keep_1, take_1, keep_2, take_2, epsilon = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
    rate, scale, total = numbers[5], numbers[6], weight.dtype.type(0)
    for i in range(len(weight)):
        g = factor * gradient[i]
        m = keep_1 * first[i] + take_1 * g
        v = keep_2 * second[i] + take_2 * g * g
        total += gradient[i] * weight[i]
        first[i], second[i] = m, v
        weight[i] -= rate * m / (np.sqrt(scale * v) + epsilon)
    return total


@_compile
def _drawn(weight, gradient, factor, near, held, out):
    """out = factor · gradient + held (weight - near); returns Σ gradient · weight."""
    total = weight.dtype.type(0)
    for i in range(len(weight)):
        out[i] = factor * gradient[i] + held * (weight[i] - near[i])
        total += gradient[i] * weight[i]
    return total


@_compile
def _adam_by_columns(columns, p, slopes, nearby, held, drawn, first, second, numbers, moments, user_numbers, logits):
    """As `_sgd_by_columns` with p's step, and the logits after both, for which a column is read while it is near.

    Moments move rows that are not in the batch too.

    Args:
        nearby: [d, r] what the columns are drawn to where held > 0, which takes memory `drawn` [r].
        moments, user_numbers: [2, d] as `first` and `second`, and as `numbers`, of p.
    """
    size = columns.shape[1]
    logits[:size] = 0
    for j in range(len(p)):
        column = columns[j]
        if held > 0:
            gradient = _drawn(column, slopes, p[j], nearby[j], held, drawn)
            _adam(column, drawn, p.dtype.type(1), first[j], second[j], numbers)
        else:
            gradient = _adam(column, slopes, p[j], first[j], second[j], numbers)
        m = user_numbers[0] * moments[0, j] + user_numbers[1] * gradient
        v = user_numbers[2] * moments[1, j] + user_numbers[3] * gradient * gradient
        moments[0, j], moments[1, j] = m, v
        p[j] -= user_numbers[5] * m / (np.sqrt(user_numbers[6] * v) + user_numbers[4])
        factor = p[j]
        for r in range(size):
            logits[r] += factor * column[r]


@_compile
def _draw_near(columns, nearby, factor):
    """columns += factor · nearby."""
    for j in range(len(columns)):
        column, near = columns[j], nearby[j]
        for r in range(len(column)):
            column[r] += factor * near[r]


@_compile
def _logits_by_rows(table, p, listed, active, logits):
    zero = p.dtype.type(0)
    for i in range(active):
        row, total = table[listed[i]], zero
        for j in range(len(p)):
            total += row[j] * p[j]
        logits[i] = total


@_compile
def _sgd_by_rows(table, p, listed, active, slopes, rate, keep, gradient):
    """As `_sgd_by_columns`, for the listed rows."""
    gradient[:] = 0
    for i in range(active):
        row, c = table[listed[i]], slopes[i]
        step = rate * c
        for j in range(len(p)):
            gradient[j] += c * row[j]
            row[j] = keep * row[j] - step * p[j]


@_compile
def _catch_up(table, listed, active, step, seen, powers):
    """Give the listed rows the decay of the steps that they were not in; powers[n] = decay factor of n steps."""
    for i in range(active):
        row = listed[i]
        missed = step - seen[row] - 1
        if missed > 0:
            for j in range(table.shape[1]):
                table[row, j] *= powers[missed]
        seen[row] = step


@_compile
def _load(origin, rows, table):
    """table = origin[rows]."""
    for r in range(len(rows)):
        for j in range(origin.shape[1]):
            table[r, j] = origin[rows[r], j]


@_compile
def _store(table, origin, rows, as_change, out):
    """out = table, or its change from origin[rows]."""
    for r in range(len(rows)):
        for j in range(origin.shape[1]):
            out[r, j] = table[r, j] - origin[rows[r], j] if as_change else table[r, j]


@_compile
def train_users(
    begin, end, row_indptr, rows, origin, as_change, tables, sample_indptr, num_positives, place, vectors, stream,
    epochs, batch_size, adam, item_rate, user_rate, item_decay, user_decay, near, held, pull, tolerance, losses, steps,
):  # fmt: skip
    """Train users begin … end - 1; `vectors` [k, d] change in place, `tables` [nnz, d] receive trained rows.

    Args:
        row_indptr: [k + 1] working rows of each user in `rows` and `tables`.
        rows: [nnz] where in `origin` [*, d] each working row starts from.
        as_change: whether `tables` receive the rows' changes instead.
        sample_indptr: [k + 1] samples of each user in `place`; the first num_positives[u] are positives.
        place: [samples] row of each sample in its user's table.
        stream: [k] keyed stream of the batch order.
        item_rate, user_rate: of the tables' type.
        item_decay, user_decay: weight decay, added to the gradient as decay · weight; SGD only; of the tables' type.
        near: [nnz, d] Q' of the working rows Q, where a term of the loss has the gradient held Q - pull Q': held = pull
            draws them to it, and held = 0 moves them along it; without decay only, the latter with SGD only.
        held, pull: of the tables' type, and both 0 where there is no such term.
        tolerance: a user ends after an epoch that changed its loss by at most this share; 0: all epochs.
        losses: [k] receives the mean loss of the last epoch, steps: [k] the number of steps taken.
    """
    d, dtype = vectors.shape[1], tables.dtype
    most_rows, most_samples = 1, 1
    for user in range(begin, end):
        most_rows = max(most_rows, row_indptr[user + 1] - row_indptr[user])
        most_samples = max(most_samples, sample_indptr[user + 1] - sample_indptr[user])
    memory, gradient = np.empty(most_rows * d, dtype), np.empty(d, dtype)
    near_memory, drawn = np.empty(most_rows * d if pull != 0 else 0, dtype), np.empty(most_rows, dtype)
    moments, user_moments = np.empty((2, most_rows * d if adam else 0), dtype), np.empty((2, d), dtype)
    positives_by_row, samples_by_row = np.zeros(most_rows, dtype), np.zeros(most_rows, dtype)
    positives, samples = np.empty(most_rows, dtype), np.empty(most_rows, dtype)
    logits, small, slopes = np.empty(most_rows, dtype), np.empty(most_rows, dtype), np.empty(most_rows, dtype)
    exponents, listed, all_rows = np.empty(most_rows, np.int32), np.empty(most_rows, np.int64), np.arange(most_rows)
    powers, seen = exponents.view(np.float32), np.empty(most_rows, np.int64)
    keys, buckets = np.empty(most_samples, np.uint64), np.empty(most_samples + 1, np.int32)
    bucket_of, order = np.empty(most_samples, np.int32), np.empty(most_samples, np.int32)
    # Numbers of the tables' own type: a single float64 among them would make all arithmetic float64.
    scale = np.empty(1, dtype)
    numbers = np.array([0.9, 0.1, 0.999, 0.001, 1e-8, 0.0, 0.0]).astype(dtype)
    user_numbers = numbers.copy()
    most_steps = epochs * -(-most_samples // batch_size)
    kept = ((1.0 - np.float64(item_rate) * item_decay) ** np.arange(most_steps + 1)).astype(dtype)
    item_kept, user_kept = dtype.type(1) - item_rate * item_decay, dtype.type(1) - user_rate * user_decay
    for user in range(begin, end):
        mine = rows[row_indptr[user] : row_indptr[user + 1]]
        here = place[sample_indptr[user] : sample_indptr[user + 1]]
        p, size, count, step, active, before = vectors[user], len(here), len(mine), 0, 0, np.nan
        by_columns = adam or pull != 0 or count <= ROWS_PER_SAMPLE * min(batch_size, size)
        table, columns = memory[: count * d].reshape((count, d)), memory[: count * d].reshape((d, count))
        if by_columns:
            _load(origin, mine, columns.T)
        else:
            _load(origin, mine, table)
        near_used = count * d if pull != 0 else 0
        nearby = near_memory[:near_used].reshape((d, near_used // d))
        if pull != 0:
            _load(near[row_indptr[user] : row_indptr[user + 1]], all_rows[:count], nearby.T)
        used = count * d if adam else 0
        first, second = moments[0, :used].reshape((d, used // d)), moments[1, :used].reshape((d, used // d))
        first[:], second[:], user_moments[:], seen[:count], losses[user] = 0, 0, 0, 0, np.nan
        positives_by_row[:count], samples_by_row[:count] = 0, 0
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
                    if by_columns:
                        active = count
                        positives[:count], samples[:count] = 0, 0
                        _count_all(here, order, start, stop, num_positives[user], positives, samples)
                    else:
                        active = _count(
                            here, order, start, stop, num_positives[user], positives_by_row, samples_by_row, listed
                        )
                        _take(positives_by_row, listed, active, positives)
                        _take(samples_by_row, listed, active, samples)
                if by_columns:
                    if step == 1 or not adam:
                        _logits_by_columns(columns, p, logits)
                else:
                    if item_decay > 0:
                        _catch_up(table, listed, active, step, seen, kept)
                    _logits_by_rows(table, p, listed, active, logits)
                _exponentials(logits, active, small, exponents, powers)
                _slopes(positives, samples, active, logits, small, scale[0], slopes)
                if with_loss:
                    _log1p(small, active, small)
                    loss += _loss(positives, samples, active, logits, small)
                if adam:
                    numbers[5], numbers[6] = item_rate / (1.0 - 0.9**step), 1.0 / (1.0 - 0.999**step)
                    user_numbers[5], user_numbers[6] = user_rate / (1.0 - 0.9**step), numbers[6]
                    _adam_by_columns(
                        columns, p, slopes, nearby, held, drawn, first, second, numbers, user_moments, user_numbers,
                        logits,
                    )  # fmt: skip
                else:
                    if by_columns:
                        _sgd_by_columns(columns, p, slopes, item_rate, item_kept - item_rate * held, gradient)
                        if pull != 0:
                            _draw_near(columns, nearby, item_rate * pull)
                    else:
                        _sgd_by_rows(table, p, listed, active, slopes, item_rate, item_kept, gradient)
                    for j in range(d):
                        p[j] = user_kept * p[j] - user_rate * gradient[j]
            if with_loss:
                losses[user] = loss / size
            if tolerance > 0 and abs(before - losses[user]) <= tolerance * abs(before):
                break
            before = losses[user]
        steps[user] = step
        if by_columns:
            _store(columns.T, origin, mine, as_change, tables[row_indptr[user] : row_indptr[user + 1]])
        else:
            if item_decay > 0:
                _catch_up(table, all_rows, count, step + 1, seen, kept)
            _store(table, origin, mine, as_change, tables[row_indptr[user] : row_indptr[user + 1]])
