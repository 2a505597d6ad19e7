"""Compiled steps of Fed3CR (eq. 9 to 19) on matrix factorisation, one user after another: SGD, all rows of the tables.

With C the user's copy of the consensus, V its own table, W its transfer matrix, E = C Wᵀ and p the user's vector, a
step computes

    z_r = p · (E_r + V_r),    c_r = ((a_r + b_r) σ(z_r) - a_r) / N          as in `kernels`
    K = Eᵀ V                                                                 eq. 17, or of columns' directions
    s_r, t_r = cos(p^P, V_r), cos(W p^G, E_r),    P, Q = softmax s, softmax t   eq. 15
    G^E = c pᵀ + ∂L_a/∂E + V Kᵀ f,    G^V = c pᵀ + ∂L_a/∂V + E K f,    f = 2 β_o / (d · divisor²)
    ∂L/∂W = G^Eᵀ C + (∂L/∂(W p^G)) p^Gᵀ,    ∂L/∂C = G^E W and what the prototypes get

with ∂L_a as in `client_app.personalization.fed3cr`. A step visits the tables twice: for E, its rankings and K, and
then, tile by tile, for gradients and new values at once. Without a network W is the identity, and E is C.

Rows lie in tiles by columns, as in `kernels_ncf`, whose products these are; the width must be a multiple of 4. Copied
and compiled with the kernels beside it (see `compiler`). Every user writes to its own slices only.
"""

from __future__ import annotations

import numpy as np

from .kernels_batches import _order
from .kernels_compile import _compile
from .kernels_constraints import (
    _add_squares,
    _begin_gradient,
    _by_cosines,
    _by_lengths,
    _direction,
    _look,
    _pull_rankings,
    _rank,
)
from .kernels_logistic import _exponentials, _log1p
from .kernels_ncf import _ROWS, _STRIDE, _add_outer, _add_product
from .kernels_tiles import _C, _E, _GROUPS, _OWN, _add_to, _load, _mean_of, _place, _store
from .kernels_transfer import _KEPT, _add_steps, _back, _layers, _store_network


@_compile
def train_views(
    begin, end, sample_indptr, num_positives, items, liked_indptr, liked, consensus, own, vectors, network, widths,
    weight_at, bias_at, signal_at, identity, stream, epochs, batch_size, rates, weights, divisor, by_cosines,
    of_consensus, of_weights, of_biases, losses, steps,
):  # fmt: skip
    """Train users begin … end - 1; `own` [k, m, d] and `vectors` [k, d] change in place.

    Args:
        sample_indptr: [k + 1] samples of each user in `items`; the first num_positives[u] are positives.
        liked_indptr, liked: the items whose mean rows are the prototypes, each once.
        consensus: C, [m, d], where everybody starts.
        network: θ, layer by layer, where everybody starts; widths, weight_at, bias_at and signal_at say where in it
            and in a row of signals each layer is. Of widths [0] there is none, and W is the identity.
        identity: 1 where W has the identity added to what the network says, else 0.
        stream: [k] keyed stream of the batch order.
        rates: of C, V, p and θ; weights: β_a and 2 β_o / d; of the tables' type.
        divisor: what K is divided by; by_cosines: whether by the lengths of columns instead.
        of_consensus: [k, m, d] receives what training changed in C, of_weights and of_biases in θ, as in
            `kernels_transfer`.
        losses: [k] receives the mean loss of the last epoch's samples, steps: [k] the number of steps taken.
    """
    m, d, dtype = consensus.shape[0], consensus.shape[1], consensus.dtype
    width, none, one = np.uint64(d), np.uint64(0), np.uint64(1)
    tiles = -(-m // _ROWS)
    sizes = np.full(tiles, _ROWS, np.uint64)
    sizes[tiles - 1] = m - (tiles - 1) * _ROWS
    has_network = len(widths) > 1
    enhanced = _E if has_network else _C
    memory = np.zeros(tiles * _GROUPS * d * np.int64(_STRIDE), dtype)
    spare = np.zeros(2 * d * np.int64(_STRIDE), dtype)
    of_e, of_v = np.uint64(0), width * _STRIDE
    layers, total = len(widths) - 1, signal_at[-1] + widths[-1]
    signals, deltas = np.zeros(total, dtype), np.zeros(total, dtype)
    kept_signals, kept_deltas = np.zeros((_KEPT, total), dtype), np.zeros((_KEPT, total), dtype)
    own_network = np.zeros(0, dtype)
    matrix, scaled, outer, slope_of_matrix = (
        np.zeros(d * d, dtype), np.zeros(d * d, dtype), np.zeros(d * d, dtype), np.zeros(d * d, dtype)
    )  # fmt: skip
    by_rows, by_columns = np.zeros(d * d, dtype), np.zeros(d * d, dtype)
    centre, own_centre, moved = np.zeros(d, dtype), np.zeros(d, dtype), np.zeros(d, dtype)
    way_e, way_v, towards_e, towards_v = (
        np.zeros(d, dtype), np.zeros(d, dtype), np.zeros(d, dtype), np.zeros(d, dtype)
    )  # fmt: skip
    squares_e, squares_v, straight_e, straight_v = (
        np.zeros(d, dtype), np.zeros(d, dtype), np.zeros(d, dtype), np.zeros(d, dtype)
    )  # fmt: skip
    of_p, of_centre, of_own_centre = np.zeros(d, dtype), np.zeros(d, dtype), np.zeros(d, dtype)
    norm_e, norm_v, cos_e, cos_v = np.zeros(m, dtype), np.zeros(m, dtype), np.zeros(m, dtype), np.zeros(m, dtype)
    rank_e, rank_v, log_e, log_v = np.zeros(m, dtype), np.zeros(m, dtype), np.zeros(m, dtype), np.zeros(m, dtype)
    slope_e, slope_v, logits, slopes = np.zeros(m, dtype), np.zeros(m, dtype), np.zeros(m, dtype), np.zeros(m, dtype)
    positives, samples, small, line = np.zeros(m, dtype), np.zeros(m, dtype), np.zeros(m, dtype), np.zeros(m, dtype)
    per_row, along = np.zeros(_ROWS, dtype), np.zeros(_ROWS, dtype)
    exponents = np.empty(m, np.int32)
    powers = exponents.view(np.float32)
    most = 1
    for user in range(begin, end):
        most = max(most, sample_indptr[user + 1] - sample_indptr[user])
    keys, buckets = np.empty(most, np.uint64), np.empty(most + 1, np.int64)
    bucket_of, order = np.empty(most, np.int64), np.empty(most, np.int64)
    nothing = np.zeros((m, d), dtype)
    rate_c, rate_v, rate_p, rate_n = rates[0], rates[1], rates[2], rates[3]
    factor = dtype.type(weights[1] / (np.float64(divisor) * np.float64(divisor)))
    scale = np.empty(1, dtype)
    for user in range(begin, end):
        here = items[sample_indptr[user] : sample_indptr[user + 1]]
        mine = liked[liked_indptr[user] : liked_indptr[user + 1]]
        p, size, step, loss, kept = vectors[user], len(here), 0, 0.0, 0
        base_network, settled = network, False
        losses[user] = np.nan
        _load(consensus, memory, tiles, sizes, _C, d)
        _load(own[user], memory, tiles, sizes, _OWN, d)
        for i in range(size):
            order[i] = i
        for epoch in range(epochs if size > 0 else 0):
            loss, last = 0.0, epoch == epochs - 1
            if size > batch_size:
                _order(stream[user], epoch, size, batch_size, keys, buckets, bucket_of, order)
            for start in range(0, size, batch_size):
                stop = min(start + batch_size, size)
                step, scale[0] = step + 1, 1.0 / (stop - start)
                if step == 1 or size > batch_size:
                    positives[:], samples[:] = 0, 0
                    for n in range(start, stop):
                        samples[here[order[n]]] += 1
                        if order[n] < num_positives[user]:
                            positives[here[order[n]]] += 1
                # What the user likes, its matrix, and the enhanced prototype.
                _mean_of(memory, _C, d, mine, centre)
                _mean_of(memory, _OWN, d, mine, own_centre)
                moved[:] = centre
                if has_network:
                    signals[:d], signals[d : 2 * d] = centre, own_centre
                    if kept == _KEPT:
                        if not settled:
                            own_network, settled = network.copy(), True
                        _add_steps(
                            widths, weight_at, bias_at, signal_at, rate_n, kept_signals, kept_deltas, kept, own_network
                        )
                        base_network, kept = own_network, 0
                    _layers(
                        base_network, widths, weight_at, bias_at, signal_at, signals, rate_n, kept_signals,
                        kept_deltas, kept, layers,
                    )  # fmt: skip
                    matrix[:] = signals[signal_at[-1] : signal_at[-1] + d * d]
                    for k in range(d):
                        matrix[k * d + k] += identity
                    for j in range(d):
                        moved[j] = 0
                        for k in range(d):
                            moved[j] += matrix[j * d + k] * centre[k]
                    scaled[:] = -rate_c * matrix
                length_e, length_v = _direction(moved, way_e), _direction(own_centre, way_v)
                # Both views, row by row.
                outer[:], squares_e[:], squares_v[:] = 0, 0, 0
                for tile in range(tiles):
                    rows, base = sizes[tile], tile * _ROWS
                    at_c, at_v = _place(tile, _C, d), _place(tile, _OWN, d)
                    at_e = _place(tile, enhanced, d)
                    if has_network:
                        for k in range(width):
                            memory[(at_e + k) * _STRIDE : (at_e + k) * _STRIDE + rows] = 0
                        _add_product(matrix, none, one, width, width, width, memory, at_c, memory, at_e, rows)
                    top = base + np.int64(rows)
                    _look(memory, at_e * _STRIDE, rows, d, way_e, norm_e[base:top], cos_e[base:top])
                    _look(memory, at_v * _STRIDE, rows, d, way_v, norm_v[base:top], cos_v[base:top])
                    part = logits[base:top]
                    part[:] = 0
                    for k in range(width):
                        first, second, mass = (at_e + k) * _STRIDE, (at_v + k) * _STRIDE, p[k]
                        for i in range(rows):
                            part[i] += mass * (memory[first + i] + memory[second + i])
                    if factor > 0:
                        _add_outer(outer, none, width, width, memory, at_e, memory, at_v, rows)
                    if by_cosines:
                        _add_squares(memory, at_e * _STRIDE, rows, d, squares_e)
                        _add_squares(memory, at_v * _STRIDE, rows, d, squares_v)
                # Slopes of all losses.
                _exponentials(logits, m, small, exponents, powers)
                for i in range(m):
                    numerator = dtype.type(1) if logits[i] >= 0 else small[i]
                    slopes[i] = (samples[i] * (numerator / (dtype.type(1) + small[i])) - positives[i]) * scale[0]
                if last:
                    _log1p(small, m, small)
                    for i in range(m):
                        loss += samples[i] * (small[i] + max(logits[i], 0)) - positives[i] * logits[i]
                slope_e[:], slope_v[:] = 0, 0
                if weights[0] > 0:
                    _rank(cos_e, small, exponents, powers, line, rank_e, log_e)
                    _rank(cos_v, small, exponents, powers, line, rank_v, log_v)
                    _pull_rankings(rank_e, rank_v, log_v, weights[0], slope_e)
                    _pull_rankings(rank_v, rank_e, log_e, weights[0], slope_v)
                if by_cosines:
                    _by_lengths(outer, squares_e, squares_v, factor, straight_e, straight_v)
                else:
                    outer *= factor
                for j in range(d):
                    for k in range(d):
                        by_rows[j * d + k] = outer[j * d + k]
                        by_columns[k * d + j] = outer[j * d + k]
                # Gradients, and new tables.
                towards_e[:], towards_v[:], of_p[:], slope_of_matrix[:] = 0, 0, 0, 0
                along_e, along_v = dtype.type(0), dtype.type(0)
                for tile in range(tiles):
                    rows, base = sizes[tile], tile * _ROWS
                    at_c, at_v = _place(tile, _C, d), _place(tile, _OWN, d)
                    at_e = _place(tile, enhanced, d)
                    here_slopes = slopes[base : base + np.int64(rows)]
                    for k in range(width):
                        first, second, total = (at_e + k) * _STRIDE, (at_v + k) * _STRIDE, dtype.type(0)
                        for i in range(rows):
                            total += here_slopes[i] * (memory[first + i] + memory[second + i])
                        of_p[k] += total
                    along_e += _by_cosines(slope_e, norm_e, cos_e, np.uint64(base), rows, per_row, along)
                    _begin_gradient(
                        memory,
                        at_e * _STRIDE,
                        rows,
                        d,
                        here_slopes,
                        p,
                        per_row,
                        way_e,
                        along,
                        straight_e,
                        spare,
                        of_e,
                        towards_e,
                    )
                    along_v += _by_cosines(slope_v, norm_v, cos_v, np.uint64(base), rows, per_row, along)
                    _begin_gradient(
                        memory,
                        at_v * _STRIDE,
                        rows,
                        d,
                        here_slopes,
                        p,
                        per_row,
                        way_v,
                        along,
                        straight_v,
                        spare,
                        of_v,
                        towards_v,
                    )
                    if factor > 0:
                        # G^E_j += Σ_l K_jl V_l and G^V_l += Σ_j K_jl E_j, both times f.
                        _add_product(by_columns, none, width, one, width, width, memory, at_v, spare, none, rows)
                        _add_product(by_rows, none, width, one, width, width, memory, at_e, spare, width, rows)
                    if has_network:
                        _add_outer(slope_of_matrix, none, width, width, spare, none, memory, at_c, rows)
                        _add_product(scaled, none, width, one, width, width, spare, none, memory, at_c, rows)
                    for k in range(width):
                        target, source = (at_v + k) * _STRIDE, of_v + k * _STRIDE
                        for i in range(rows):
                            memory[target + i] -= rate_v * spare[source + i]
                        if not has_network:
                            target, source = (at_c + k) * _STRIDE, of_e + k * _STRIDE
                            for i in range(rows):
                                memory[target + i] -= rate_c * spare[source + i]
                # What the prototypes get, the network's step, and what of it comes back to the liked rows.
                for k in range(d):
                    of_centre[k] = (towards_e[k] - along_e * way_e[k]) / length_e
                    of_own_centre[k] = (towards_v[k] - along_v * way_v[k]) / length_v
                if has_network:
                    last_layer = signal_at[-1]
                    for j in range(d):
                        for k in range(d):
                            deltas[last_layer + j * d + k] = slope_of_matrix[j * d + k] + of_centre[j] * centre[k]
                    _back(
                        base_network, widths, weight_at, signal_at, signals, rate_n, kept_signals, kept_deltas, kept,
                        layers, 0, deltas,
                    )  # fmt: skip
                    kept_signals[kept], kept_deltas[kept] = signals, deltas
                    kept += 1
                    for k in range(d):
                        total = deltas[k]
                        for j in range(d):
                            total += of_centre[j] * matrix[j * d + k]
                        moved[k] = total
                        of_own_centre[k] += deltas[d + k]
                    of_centre[:] = moved
                if len(mine) > 0:
                    share = dtype.type(1.0 / len(mine))
                    for k in range(d):
                        of_centre[k] *= -rate_c * share
                        of_own_centre[k] *= -rate_v * share
                    _add_to(memory, _C, d, mine, of_centre)
                    _add_to(memory, _OWN, d, mine, of_own_centre)
                for k in range(d):
                    p[k] -= rate_p * of_p[k]
            if last:
                losses[user] = loss / size
        steps[user] = step
        _store(memory, tiles, sizes, _C, d, consensus, of_consensus[user])
        _store(memory, tiles, sizes, _OWN, d, nothing, own[user])
        _store_network(
            widths, weight_at, bias_at, signal_at, rate_n, kept_signals, kept_deltas, kept, network, settled,
            own_network, user, len(vectors), of_weights, of_biases,
        )  # fmt: skip
