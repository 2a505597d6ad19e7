"""Compiled steps of two item tables under matrix factorisation, one user after another: PLGC, FedRAP, and both; SGD.

With V^l the rows of the user's own table, V^g those of the common one and p the user's vector, a step computes

    μ = tr G^l / (tr G^l + tr G^g),    z_r = p · (μ V^l_r + (1 - μ) V^g_r),    c_r as in `kernels`
    ∂L/∂p = Σ_r c_r (μ V^l_r + (1 - μ) V^g_r),    ∂L/∂V^l_r = μ c_r p + what `kernels_redundancy` says.

FedRAP trains both tables, D = V^l and C = V^g. It adds them, so that both weights are 1 in place of μ and 1 - μ, and
with w_r the share of row r in the batch its two terms are Σ_r w_r (- a ‖C_r - D_r‖² + b ‖C_r‖₁), which give D_r
2 a w_r (C_r - D_r), and C_r the opposite and b w_r sign C_r.

Rows lie in tiles by columns as there. A user with a single batch in an epoch stays there; others come and go by step.
Copied and compiled with the kernels beside it (see `compiler`). Every user writes to its own slices only.
"""

from __future__ import annotations

import numpy as np

from .kernels_batches import _count, _order, _take
from .kernels_compile import _compile
from .kernels_logistic import _exponentials, _log1p, _loss
from .kernels_logistic import _slopes as _slopes_of_logits
from .kernels_ncf import _ROWS, _STRIDE
from .kernels_redundancy import _INPUT, _SLOPE, _memory, _place, _slopes


@_compile
def _load(table, rows, listed, active, memory, group, width):
    """Rows table[rows[listed]] into the tiles."""
    for i in range(active):
        row = rows[listed[i]]
        at = _place(i // _ROWS, group, width) * _STRIDE + np.uint64(i % _ROWS)
        for k in range(np.uint64(table.shape[1])):
            memory[at + k * _STRIDE] = table[row, k]


@_compile
def _store(memory, group, width, listed, active, table):
    """Rows of the tiles back to table[listed]."""
    for i in range(active):
        row = listed[i]
        at = _place(i // _ROWS, group, width) * _STRIDE + np.uint64(i % _ROWS)
        for k in range(np.uint64(table.shape[1])):
            table[row, k] = memory[at + k * _STRIDE]


@_compile
def _squares(table):
    """Σ of the squares of all values, in float64."""
    found = 0.0
    for row in range(len(table)):
        total = table.dtype.type(0)
        for k in range(table.shape[1]):
            total += table[row, k] * table[row, k]
        found += total
    return found


@_compile
def _squares_in_tiles(memory, group, width, active):
    found = 0.0
    for start in range(0, active, _ROWS):
        at, total = _place(start // _ROWS, group, width), memory.dtype.type(0)
        for k in range(np.uint64(width)):
            begin = (at + k) * _STRIDE
            for i in range(np.uint64(min(_ROWS, active - start))):
                total += memory[begin + i] * memory[begin + i]
        found += total
    return found


@_compile
def _logits(memory, width, active, p, shares, logits):
    """z_r; shares: of both views."""
    logits[:active] = 0
    for start in range(0, active, _ROWS):
        at, base, d = _place(start // _ROWS, _INPUT, width), np.uint64(start), np.uint64(width)
        for k in range(np.uint64(len(p))):
            first, second = (at + k) * _STRIDE, (at + d + k) * _STRIDE
            mine, other = shares[0] * p[k], shares[1] * p[k]
            for i in range(np.uint64(min(_ROWS, active - start))):
                logits[base + i] += mine * memory[first + i] + other * memory[second + i]


@_compile
def _step(memory, width, active, p, shares, slopes, pulled, rate, user_rate):
    """V^l and p after a step; `pulled`: 1 where the tiles have a slope of V^l beside that of the logits, else 0."""
    d = np.uint64(width)
    for k in range(np.uint64(len(p))):
        gradient, factor = p.dtype.type(0), rate * shares[0] * p[k]
        for start in range(0, active, _ROWS):
            at, base = _place(start // _ROWS, _INPUT, width) + k, np.uint64(start)
            first, second = at * _STRIDE, (at + d) * _STRIDE
            slope = (_place(start // _ROWS, _SLOPE, width) + k) * _STRIDE
            for i in range(np.uint64(min(_ROWS, active - start))):
                value, c = memory[first + i], slopes[base + i]
                gradient += c * (shares[0] * value + shares[1] * memory[second + i])
                memory[first + i] = value - factor * c - rate * pulled * memory[slope + i]
        p[k] -= user_rate * gradient


@_compile
def _step_of_both(memory, width, active, p, shares, slopes, row_shares, second_table, pulled, rates):
    """V^l, V^g and p after a step; `pulled`: as for `_step`, of both tables."""
    d, one, nothing = np.uint64(width), memory.dtype.type(1), memory.dtype.type(0)
    rate, user_rate, common_rate = rates[0], rates[1], second_table[0]
    away, sparse = second_table[1] + second_table[1], second_table[2]
    for k in range(np.uint64(len(p))):
        gradient, mine, other = p.dtype.type(0), shares[0] * p[k], shares[1] * p[k]
        for start in range(0, active, _ROWS):
            at, base = _place(start // _ROWS, _INPUT, width) + k, np.uint64(start)
            first, second = at * _STRIDE, (at + d) * _STRIDE
            slope = (_place(start // _ROWS, _SLOPE, width) + k) * _STRIDE
            beside = slope + d * _STRIDE
            for i in range(np.uint64(min(_ROWS, active - start))):
                value, common, c, share = memory[first + i], memory[second + i], slopes[base + i], row_shares[base + i]
                gradient += c * (shares[0] * value + shares[1] * common)
                apart = away * share * (common - value)
                sign = one if common > nothing else (-one if common < nothing else nothing)
                memory[first + i] = value - rate * (mine * c + apart + pulled * memory[slope + i])
                change = other * c - apart + sparse * share * sign + pulled * memory[beside + i]
                memory[second + i] = common - common_rate * change
        p[k] -= user_rate * gradient


@_compile
def train_mixed(
    begin, end, row_indptr, rows, common, own, outside, sample_indptr, num_positives, place, vectors, second_table,
    networks, stream, epochs, batch_size, weights, strength, kappa, rates, losses, steps,
):  # fmt: skip
    """Train users begin … end - 1; `own` [nnz, d], `vectors` [k, d] and `networks` [k, 4, w · w] change in place.

    So does `common` [nnz, d], whose rows are each user's own then, if it is trained.

    Args:
        row_indptr: [k + 1] working rows of each user in `rows` and `own`.
        rows: [nnz] where in `common` [*, d] V^g of each of them is.
        outside: [2, k] what rows that are not worked on add to tr G^l and tr G^g.
        sample_indptr: [k + 1] samples of each user in `place`; the first num_positives[u] are positives.
        place: [samples] row of each sample in its user's rows.
        second_table: [3] the rate of V^g, negative where it is frozen, and a and b of FedRAP's terms.
        networks: W₁ to W₄, padded by zeros to a width w that 4 divides.
        stream: [k] keyed stream of the batch order.
        weights: [2] of V^l and V^g in what the model sees, μ and 1 - μ; the first is negative where traces make them.
        strength, kappa: λ and κ; λ = 0: there is no redundancy reduction. Of the tables' type, as are all weights and
        rates: of V^l, p and the networks.
        losses: [k] receives the mean loss of the last epoch's samples, steps: [k] the number of steps taken.
    """
    dtype, width = own.dtype, 4 * -(-own.shape[1] // 4)
    most_rows, most_samples = 1, 1
    for user in range(begin, end):
        most_rows = max(most_rows, row_indptr[user + 1] - row_indptr[user])
        most_samples = max(most_samples, sample_indptr[user + 1] - sample_indptr[user])
    parts = _memory(most_rows, width, dtype)
    memory, row_shares = parts[0], parts[2]
    positives_by_row, samples_by_row = np.zeros(most_rows, dtype), np.zeros(most_rows, dtype)
    positives, samples = np.empty(most_rows, dtype), np.empty(most_rows, dtype)
    logits, small, slopes = np.empty(most_rows, dtype), np.empty(most_rows, dtype), np.empty(most_rows, dtype)
    exponents, listed, itself = np.empty(most_rows, np.int32), np.empty(most_rows, np.int64), np.arange(most_rows)
    powers = exponents.view(np.float32)
    keys, buckets = np.empty(most_samples, np.uint64), np.empty(most_samples + 1, np.int64)
    bucket_of, order = np.empty(most_samples, np.int64), np.empty(most_samples, np.int64)
    of_networks = np.zeros((4, width * width), dtype)
    # Numbers of the tables' own type: a single float64 among them would make all arithmetic float64.
    scale, shares, pulled = np.empty(1, dtype), np.empty(2, dtype), dtype.type(1 if strength > 0 else 0)
    both = second_table[0] >= 0
    trained = 2 if both else 1
    for user in range(begin, end):
        mine, table = rows[row_indptr[user] : row_indptr[user + 1]], own[row_indptr[user] : row_indptr[user + 1]]
        beside = common[row_indptr[user] : row_indptr[user + 1]] if both else common[:0]
        here = place[sample_indptr[user] : sample_indptr[user + 1]]
        p, size, step, active = vectors[user], len(here), 0, 0
        losses[user] = np.nan
        single = size <= batch_size
        trace_common = outside[1, user]
        if weights[0] < 0 and not both:
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
                    active = _count(
                        here, order, start, stop, num_positives[user], positives_by_row, samples_by_row, listed
                    )
                    _take(positives_by_row, listed, active, positives)
                    _take(samples_by_row, listed, active, samples)
                    _load(table, itself, listed, active, memory, _INPUT, width)
                    _load(common, mine, listed, active, memory, _INPUT + 1, width)
                    row_shares[:] = 0
                    for i in range(active):
                        row_shares[i] = samples[i] * scale[0]
                shares[:] = weights
                if weights[0] < 0:
                    trace = _squares_in_tiles(memory, _INPUT, width, active) if single else _squares(table)
                    trace += outside[0, user]
                    if both:
                        traced = _squares_in_tiles(memory, _INPUT + 1, width, active) if single else _squares(beside)
                        trace_common = outside[1, user] + traced
                    shares[0] = trace / (trace + trace_common) if trace + trace_common > 0 else 0.5
                    shares[1] = dtype.type(1) - shares[0]
                _logits(memory, width, active, p, shares, logits)
                _exponentials(logits, active, small, exponents, powers)
                _slopes_of_logits(positives, samples, active, logits, small, scale[0], slopes)
                if last:
                    _log1p(small, active, small)
                    loss += _loss(positives, samples, active, logits, small)
                if strength > 0:
                    of_networks[:] = 0
                    _slopes(parts, active, networks[user], strength, kappa, of_networks, width, trained)
                if both:
                    _step_of_both(
                        memory, width, active, p, shares, slopes, row_shares, second_table, pulled, rates
                    )  # fmt: skip
                else:
                    _step(memory, width, active, p, shares, slopes, pulled, rates[0], rates[1])
                if strength > 0:
                    for layer in range(4):
                        for i in range(width * width):
                            networks[user, layer, i] -= rates[2] * of_networks[layer, i]
                if not single:
                    _store(memory, _INPUT, width, listed, active, table)
                    if both:
                        _store(memory, _INPUT + 1, width, listed, active, beside)
            if last:
                losses[user] = loss / size
        if single:
            _store(memory, _INPUT, width, listed, active, table)
            if both:
                _store(memory, _INPUT + 1, width, listed, active, beside)
        steps[user] = step
