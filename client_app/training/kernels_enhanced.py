"""Compiled steps of ACE (Fed3CR, eq. 9 to 11) on matrix factorisation, one user after another: SGD.

With C the rows of the user's copy of the common table, p the user's vector and W its transfer matrix, the turned rows
are seen by an inner product alone, so that none of them is made:

    z_r = p · W C_r = q · C_r  with q = Wᵀ p,    c_r as in `kernels`,    s = Σ_r c_r C_r
    ∂L/∂p = W s,    ∂L/∂W = p sᵀ,    ∂L/∂C_r = c_r q, and for liked rows what their mean p^P gets of the network.

Tables lie by columns. Copied and compiled with the kernels beside it (see `compiler`). Every user writes to its own
slices only.
"""

from __future__ import annotations

import numpy as np

from .kernels import _load, _logits_by_columns, _sgd_by_columns, _store
from .kernels_batches import _count, _order
from .kernels_compile import _compile
from .kernels_logistic import _exponentials, _log1p, _loss, _slopes
from .kernels_products import _dot
from .kernels_transfer import _KEPT, _add, _add_steps, _back, _layers, _matrix, _pull, _store_network


@_compile
def train_enhanced(
    begin, end, row_indptr, rows, origin, frozen, changes, sample_indptr, num_positives, place, vectors, network,
    widths, weight_at, bias_at, signal_at, identity, stream, epochs, batch_size, rates, of_weights, of_biases, losses,
    steps,
):  # fmt: skip
    """Train users begin … end - 1; `vectors` [k, d] change in place.

    Args:
        row_indptr: [k + 1] working rows of each user in `rows` and `changes`.
        rows: [nnz] their items; origin: C, [m, d], where everybody starts, and frozen: the table of p^G.
        changes: [nnz, d] receives what training changed in C.
        sample_indptr: [k + 1] samples of each user in `place`; the first num_positives[u] are positives, and liked.
        place: [samples] row of each sample in its user's rows.
        network: θ, layer by layer, where everybody starts; widths, weight_at, bias_at and signal_at say where in it
            and in a row of signals each layer is.
        identity: 1 where W has the identity added to what the network says, else 0.
        stream: [k] keyed stream of the batch order.
        rates: of C, p and θ, of the tables' type.
        of_weights, of_biases: by layer [k · inputs · outputs] and [k · outputs], one layer after another, receive what
            training changed in θ.
        losses: [k] receives the mean loss of the last epoch's samples, steps: [k] the number of steps taken.
    """
    d, dtype, layers, count = vectors.shape[1], changes.dtype, len(widths) - 1, len(vectors)
    most_rows, most_samples = 1, 1
    for user in range(begin, end):
        most_rows = max(most_rows, row_indptr[user + 1] - row_indptr[user])
        most_samples = max(most_samples, sample_indptr[user + 1] - sample_indptr[user])
    memory = np.empty(most_rows * d, dtype)
    positives, samples = np.zeros(most_rows, dtype), np.zeros(most_rows, dtype)
    logits, small, slopes = np.empty(most_rows, dtype), np.empty(most_rows, dtype), np.empty(most_rows, dtype)
    exponents, listed, likes = np.empty(most_rows, np.int32), np.empty(most_rows, np.int64), np.empty(most_rows, dtype)
    powers = exponents.view(np.float32)
    keys, buckets = np.empty(most_samples, np.uint64), np.empty(most_samples + 1, np.int64)
    bucket_of, order = np.empty(most_samples, np.int64), np.empty(most_samples, np.int64)
    hidden, inputs = signal_at[layers], widths[layers - 1]
    last = hidden - inputs
    signals, slopes_of = np.zeros(hidden, dtype), np.zeros(hidden, dtype)
    seen, deltas = np.zeros((_KEPT, hidden), dtype), np.zeros((_KEPT, hidden + d * d), dtype)
    before_p, before_s = np.zeros((_KEPT, d), dtype), np.zeros((_KEPT, d), dtype)
    matrix, pulled = np.zeros(d * d, dtype), np.zeros((inputs, d), dtype)
    q, s, of_p, own_network = np.zeros(d, dtype), np.zeros(d, dtype), np.zeros(d, dtype), np.zeros(0, dtype)
    scale, none = np.empty(1, dtype), dtype.type(0)
    for user in range(begin, end):
        mine = rows[row_indptr[user] : row_indptr[user + 1]]
        here = place[sample_indptr[user] : sample_indptr[user + 1]]
        p, size, rated, step, kept = vectors[user], len(here), len(mine), 0, 0
        columns, base, settled = memory[: rated * d].reshape((d, rated)), network, False
        likes[:rated], positives[:rated], samples[:rated], losses[user] = 0, 0, 0, np.nan
        for i in range(num_positives[user]):
            likes[here[i]] = 1
        liked = max(np.sum(likes[:rated]), dtype.type(1))
        for i in range(rated):
            likes[i] /= liked
        _load(frozen, mine, columns.T)
        for k in range(d):
            signals[k] = _dot(likes[:rated], columns[k])
        _load(origin, mine, columns.T)
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
                step += 1
                if kept == _KEPT:
                    if not settled:
                        own_network, settled = network.copy(), True
                    _add_steps(
                        widths, weight_at, bias_at, signal_at, rates[2], seen, deltas, kept, own_network
                    )  # fmt: skip
                    base, kept = own_network, 0
                for k in range(d):
                    signals[d + k] = _dot(likes[:rated], columns[k])
                _layers(
                    base, widths, weight_at, bias_at, signal_at, signals, rates[2], seen, deltas, kept, layers - 1
                )  # fmt: skip
                _matrix(
                    base, weight_at[layers - 1], bias_at[layers - 1], signals[last:], p, identity, rates[2],
                    seen[:, last:], before_p, before_s, kept, matrix, pulled,
                )  # fmt: skip
                q[:] = 0
                for j in range(d):
                    _add(q, p[j], matrix[j * d : (j + 1) * d])
                _logits_by_columns(columns, q, logits)
                _exponentials(logits, rated, small, exponents, powers)
                _slopes(positives, samples, rated, logits, small, scale[0], slopes)
                if with_loss:
                    _log1p(small, rated, small)
                    loss += _loss(positives, samples, rated, logits, small)
                _sgd_by_columns(columns, q, slopes[:rated], rates[0], dtype.type(1), s)
                for j in range(d):
                    of_p[j] = _dot(matrix[j * d : (j + 1) * d], s)
                _pull(
                    signals[last:], rates[2], seen[:, last:], before_p, before_s, kept, pulled, p, s, slopes_of[last:]
                )  # fmt: skip
                _back(
                    base, widths, weight_at, signal_at, signals, rates[2], seen, deltas, kept, layers - 1, d, slopes_of
                )  # fmt: skip
                for k in range(d):
                    if slopes_of[d + k] != none:
                        _add(columns[k], -rates[0] * slopes_of[d + k], likes[:rated])
                seen[kept], deltas[kept, :hidden], before_p[kept], before_s[kept] = signals, slopes_of, p, s
                for j in range(d):
                    for k in range(d):
                        deltas[kept, hidden + j * d + k] = p[j] * s[k]
                kept += 1
                _add(p, -rates[1], of_p)
            if with_loss:
                losses[user] = loss / size
        steps[user] = step
        _store(columns.T, origin, mine, True, changes[row_indptr[user] : row_indptr[user + 1]])
        _store_network(
            widths, weight_at, bias_at, signal_at, rates[2], seen, deltas, kept, network, settled, own_network, user,
            count, of_weights, of_biases,
        )  # fmt: skip
