"""Compiled steps of Fed3CR (eq. 9 to 19) on matrix factorisation, one user after another: SGD, all rows of the tables.

With C the user's copy of the consensus, V its own table, W its transfer matrix, E = C Wᵀ and p the user's vector, a
step computes

    z_r = p · (E_r + V_r),    c_r = ((a_r + b_r) σ(z_r) - a_r) / N          as in `kernels`
    K = Eᵀ V                                                                 eq. 17
    s_r, t_r = cos(p^P, V_r), cos(W p^G, E_r),    P, Q = softmax s, softmax t   eq. 15
    G^E = c pᵀ + ∂L_a/∂E + V Kᵀ f,    G^V = c pᵀ + ∂L_a/∂V + E K f,    f = 2 β_o / (d · divisor²)
    ∂L/∂W = G^Eᵀ C + (∂L/∂(W p^G)) p^Gᵀ,    ∂L/∂C = G^E W and what the prototypes get

with ∂L_a as in `client_app.personalization.fed3cr`. A step visits the tables twice: for E, its rankings and K, and
then, tile by tile, for gradients and new values at once. Without a network W is the identity, and E is C.

Rows lie in tiles by columns, as in `kernels_ncf`, whose products these are; the width must be a multiple of 4. Copied
and compiled with the kernels beside it (see `compiler`). Every user writes to its own slices only.
"""

from __future__ import annotations

import math

import numba
import numpy as np

from .kernels import _FAST, _exponentials, _log1p, _order
from .kernels_ncf import _ROWS, _STRIDE, _add_outer, _add_product

_compile = numba.njit(cache=True, nogil=True, fastmath=_FAST, error_model="numpy")

# What a tile holds: the consensus, the user's own table, the enhanced one.
_C, _V, _E = 0, 1, 2
_GROUPS = 3
# Rows shorter than this have no direction.
_TINY = 1e-8


@_compile
def _place(tile, group, width):
    """The first unit of a group in a tile."""
    return np.uint64((tile * _GROUPS + group) * width)


@_compile
def _load(table, memory, tiles, sizes, group, width):
    """A table [m, d] into tiles."""
    for tile in range(tiles):
        at, base = _place(tile, group, width) * _STRIDE, np.uint64(tile * _ROWS)
        for i in range(sizes[tile]):
            for k in range(np.uint64(width)):
                memory[at + k * _STRIDE + i] = table[base + i, k]


@_compile
def _store(memory, tiles, sizes, group, width, less, table):
    """table = what the tiles hold - less, [m, d] each."""
    for tile in range(tiles):
        at, base = _place(tile, group, width) * _STRIDE, np.uint64(tile * _ROWS)
        for i in range(sizes[tile]):
            for k in range(np.uint64(width)):
                table[base + i, k] = memory[at + k * _STRIDE + i] - less[base + i, k]


@_compile
def _mean_of(memory, group, width, items, mean):
    """The mean of some rows: eq. 10."""
    mean[:] = 0
    for n in range(len(items)):
        at = _place(items[n] // _ROWS, group, width) * _STRIDE + np.uint64(items[n] % _ROWS)
        for k in range(np.uint64(width)):
            mean[k] += memory[at + k * _STRIDE]
    if len(items) > 0:
        mean /= mean.dtype.type(len(items))


@_compile
def _add_to(memory, group, width, items, values):
    """Add a vector to some rows."""
    for n in range(len(items)):
        at = _place(items[n] // _ROWS, group, width) * _STRIDE + np.uint64(items[n] % _ROWS)
        for k in range(np.uint64(width)):
            memory[at + k * _STRIDE] += values[k]


@_compile
def _direction(vector, out):
    """out = vector / its length, which is returned."""
    total = 0.0
    for k in range(len(vector)):
        total += vector[k] * vector[k]
    length = max(math.sqrt(total), _TINY)
    for k in range(len(vector)):
        out[k] = vector[k] / length
    return length


@_compile
def _network(weights, widths, weight_at, bias_at, signals, signal_at):
    """Layers of a fully connected network, rectified between them: signals of all of them, the first being given."""
    zero = weights.dtype.type(0)
    for layer in range(len(widths) - 1):
        source, target, outputs = signal_at[layer], signal_at[layer + 1], widths[layer + 1]
        signals[target : target + outputs] = weights[bias_at[layer] : bias_at[layer] + outputs]
        for k in range(widths[layer]):
            value, start = signals[source + k], weight_at[layer] + k * outputs
            if value != zero:
                for j in range(outputs):
                    signals[target + j] += value * weights[start + j]
        if layer < len(widths) - 2:
            for j in range(outputs):
                signals[target + j] = max(signals[target + j], zero)


@_compile
def _network_step(weights, widths, weight_at, bias_at, signals, signal_at, deltas, rate):
    """From ∂L/∂output, the last of `deltas`, to ∂L/∂input, its first; weights take a step of SGD on the way."""
    zero = weights.dtype.type(0)
    for layer in range(len(widths) - 2, -1, -1):
        source, target, outputs = signal_at[layer], signal_at[layer + 1], widths[layer + 1]
        for k in range(widths[layer]):
            start, step, total = weight_at[layer] + k * outputs, rate * signals[source + k], zero
            for j in range(outputs):
                weight = weights[start + j]
                total += weight * deltas[target + j]
                weights[start + j] = weight - step * deltas[target + j]
            deltas[source + k] = zero if layer > 0 and signals[source + k] <= zero else total
        for j in range(outputs):
            weights[bias_at[layer] + j] -= rate * deltas[target + j]


@_compile
def _look(memory, at, size, width, direction, norms, cosines):
    """Lengths of the rows of one table of a tile, and their cosines with a direction."""
    tiny = memory.dtype.type(_TINY)
    norms[:size], cosines[:size] = 0, 0
    for k in range(np.uint64(width)):
        begin, factor = at + k * _STRIDE, direction[k]
        for i in range(size):
            value = memory[begin + i]
            norms[i] += value * value
            cosines[i] += factor * value
    for i in range(size):
        norms[i] = max(np.sqrt(norms[i]), tiny)
        cosines[i] /= norms[i]


@_compile
def _rank(cosines, small, exponents, powers, spare, ranking, log):
    """The softmax of cosines, and its logarithm: eq. 15. As cos <= 1, exp(cos - 1) is that of no positive number."""
    one, count = cosines.dtype.type(1), len(cosines)
    for i in range(count):
        spare[i] = one - cosines[i]
    _exponentials(spare, count, small, exponents, powers)
    total = 0.0
    for i in range(count):
        total += small[i]
    share, shift = cosines.dtype.type(1.0 / total), cosines.dtype.type(1.0 + math.log(total))
    for i in range(count):
        ranking[i] = small[i] * share
        log[i] = cosines[i] - shift


@_compile
def _pull_rankings(ranking, other, log, weight, slopes):
    """slopes = β_a ∂L_a/∂cosines of one view: - ½ P (log Q - Σ P log Q) - ½ (Q - P), times the weight."""
    mean, half = 0.0, ranking.dtype.type(-0.5) * weight
    for i in range(len(ranking)):
        mean += ranking[i] * log[i]
    centre = ranking.dtype.type(mean)
    for i in range(len(ranking)):
        slopes[i] = half * (ranking[i] * (log[i] - centre) + other[i] - ranking[i])


@_compile
def _by_cosines(slopes, norms, cosines, base, size, per_row, along):
    """Of ∂L/∂cos: what a row gets of the direction, and of itself; returns Σ ∂L/∂cos · cos."""
    total = slopes.dtype.type(0)
    for i in range(size):
        slope, norm, cosine = slopes[base + i], norms[base + i], cosines[base + i]
        per_row[i] = slope / norm
        along[i] = slope * cosine / (norm * norm)
        total += slope * cosine
    return total


@_compile
def _begin_gradient(memory, at, size, width, slopes, p, per_row, direction, along, target, to, towards):
    """target = c pᵀ + per_row directionᵀ - along table of one tile; towards += Σ per_row table."""
    for k in range(np.uint64(width)):
        begin, out, total = at + k * _STRIDE, to + k * _STRIDE, p.dtype.type(0)
        mine, way = p[k], direction[k]
        for i in range(size):
            value = memory[begin + i]
            target[out + i] = slopes[i] * mine + per_row[i] * way - along[i] * value
            total += per_row[i] * value
        towards[k] += total


@_compile
def train_views(
    begin, end, sample_indptr, num_positives, items, liked_indptr, liked, consensus, own, vectors, network, widths,
    weight_at, bias_at, signal_at, identity, stream, epochs, batch_size, rates, weights, divisor, of_consensus,
    of_network, losses, steps,
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
        divisor: what K is divided by.
        of_consensus: [k, m, d] receives what training changed in C, of_network: [k, …] in θ.
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
    theta = np.empty(len(network), dtype)
    signals, deltas = np.zeros(signal_at[-1] + widths[-1], dtype), np.zeros(signal_at[-1] + widths[-1], dtype)
    matrix, scaled, outer, slope_of_matrix = (
        np.zeros(d * d, dtype), np.zeros(d * d, dtype), np.zeros(d * d, dtype), np.zeros(d * d, dtype)
    )  # fmt: skip
    by_rows, by_columns = np.zeros(d * d, dtype), np.zeros(d * d, dtype)
    centre, own_centre, moved = np.zeros(d, dtype), np.zeros(d, dtype), np.zeros(d, dtype)
    way_e, way_v, towards_e, towards_v = (
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
        p, size, step, loss = vectors[user], len(here), 0, 0.0
        losses[user] = np.nan
        _load(consensus, memory, tiles, sizes, _C, d)
        _load(own[user], memory, tiles, sizes, _V, d)
        theta[:] = network
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
                _mean_of(memory, _V, d, mine, own_centre)
                moved[:] = centre
                if has_network:
                    signals[:d], signals[d : 2 * d] = centre, own_centre
                    _network(theta, widths, weight_at, bias_at, signals, signal_at)
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
                outer[:] = 0
                for tile in range(tiles):
                    rows, base = sizes[tile], tile * _ROWS
                    at_c, at_v = _place(tile, _C, d), _place(tile, _V, d)
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
                for j in range(d):
                    for k in range(d):
                        by_rows[j * d + k] = factor * outer[j * d + k]
                        by_columns[k * d + j] = factor * outer[j * d + k]
                # Gradients, and new tables.
                towards_e[:], towards_v[:], of_p[:], slope_of_matrix[:] = 0, 0, 0, 0
                along_e, along_v = dtype.type(0), dtype.type(0)
                for tile in range(tiles):
                    rows, base = sizes[tile], tile * _ROWS
                    at_c, at_v = _place(tile, _C, d), _place(tile, _V, d)
                    at_e = _place(tile, enhanced, d)
                    here_slopes = slopes[base : base + np.int64(rows)]
                    for k in range(width):
                        first, second, total = (at_e + k) * _STRIDE, (at_v + k) * _STRIDE, dtype.type(0)
                        for i in range(rows):
                            total += here_slopes[i] * (memory[first + i] + memory[second + i])
                        of_p[k] += total
                    along_e += _by_cosines(slope_e, norm_e, cos_e, np.uint64(base), rows, per_row, along)
                    _begin_gradient(
                        memory, at_e * _STRIDE, rows, d, here_slopes, p, per_row, way_e, along, spare, of_e, towards_e
                    )
                    along_v += _by_cosines(slope_v, norm_v, cos_v, np.uint64(base), rows, per_row, along)
                    _begin_gradient(
                        memory, at_v * _STRIDE, rows, d, here_slopes, p, per_row, way_v, along, spare, of_v, towards_v
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
                    _network_step(theta, widths, weight_at, bias_at, signals, signal_at, deltas, rate_n)
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
                    _add_to(memory, _V, d, mine, of_own_centre)
                for k in range(d):
                    p[k] -= rate_p * of_p[k]
            if last:
                losses[user] = loss / size
        steps[user] = step
        _store(memory, tiles, sizes, _C, d, consensus, of_consensus[user])
        _store(memory, tiles, sizes, _V, d, nothing, own[user])
        of_network[user] = theta - network
