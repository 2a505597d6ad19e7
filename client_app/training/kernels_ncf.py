"""Compiled inner loops of the numba backend: the layers of neural collaborative filtering, and what a step needs.

A step (`kernels_nested`) visits the distinct rows of its batch, with how often each is a positive (a) and any sample
(s) of N:

    c_r = (s σ(z_r) - a) / N = ∂L/∂z_r,    δ_L = c hᵀ [x_L > 0],    δ_{l-1} = (δ_l W_lᵀ) [x_{l-1} > 0],
    ∂L/∂W_l = x_{l-1}ᵀ δ_l,    ∂L/∂b_l = Σ_r δ_l,    ∂L/∂q_r = W_q δ_1,    ∂L/∂p = W_p ∂L/∂b_1,

where W_1 = [W_p; W_q]: the user's half of the first product is the same for all rows.

Layers are narrow and batches long, so signals lie by columns: the values of one unit for up to `_ROWS` rows stand
side by side, and every inner loop runs along them. Products are taken in tiles of 4 inputs by 2 outputs, because what
a loop of 4 by 4 holds is more than the 16 vector registers of many processors. The caller pads widths to multiples of
4 with zeros, which stay zero: a unit without weights is off and has no gradient. Indices in inner loops are unsigned,
because an index that might be negative keeps loops from vector registers.

This module imports nothing of the project but the kernels beside it, with which it is copied and compiled (see
`compiler`).
"""

from __future__ import annotations

import math

import numpy as np

from .kernels_compile import _compile

_0, _1, _2, _3, _4 = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)
_ROWS = 256  # rows whose signals are computed at once: they stay in the first caches
_STRIDE = np.uint64(_ROWS + 16)  # between units; no power of two, so that units do not share places in the cache
_LANES = 16  # rows are computed in multiples of this many, which fill vector registers


@_compile
def _add_product(weights, start, per_input, per_output, inputs, outputs, signals, source, target_of, target, size):
    """target_of[j] += Σ_k w[k, j] signals[k], where w[k, j] = weights[start + k per_input + j per_output].

    Args:
        inputs, outputs: how many, multiples of 4.
        source, target: the first units of x in `signals` and of z in `target_of`.
        size: rows.
    """
    for j in range(_0, outputs, _2):
        z0 = (target + j) * _STRIDE
        z1 = z0 + _STRIDE
        for k in range(_0, inputs, _4):
            x0 = (source + k) * _STRIDE
            x1, x2, x3 = x0 + _STRIDE, x0 + _2 * _STRIDE, x0 + _3 * _STRIDE
            w0 = start + k * per_input + j * per_output
            w1, w2, w3 = w0 + per_input, w0 + _2 * per_input, w0 + _3 * per_input
            w00, w01, w10, w11 = weights[w0], weights[w0 + per_output], weights[w1], weights[w1 + per_output]
            w20, w21, w30, w31 = weights[w2], weights[w2 + per_output], weights[w3], weights[w3 + per_output]
            for i in range(size):
                a, b, c, d = signals[x0 + i], signals[x1 + i], signals[x2 + i], signals[x3 + i]
                target_of[z0 + i] += w00 * a + w10 * b + w20 * c + w30 * d
                target_of[z1 + i] += w01 * a + w11 * b + w21 * c + w31 * d


@_compile
def _add_outer(gradient, start, inputs, outputs, signals, source, deltas, target, size):
    """gradient[start + k outputs + j] += Σ_i signals[k, i] deltas[j, i]; arguments as in `_add_product`."""
    zero = gradient.dtype.type(0)
    for k in range(_0, inputs, _4):
        x0 = (source + k) * _STRIDE
        x1, x2, x3 = x0 + _STRIDE, x0 + _2 * _STRIDE, x0 + _3 * _STRIDE
        for j in range(_0, outputs, _2):
            z0 = (target + j) * _STRIDE
            z1 = z0 + _STRIDE
            g00, g01, g10, g11, g20, g21, g30, g31 = zero, zero, zero, zero, zero, zero, zero, zero
            for i in range(size):
                a, b, c, d = signals[x0 + i], signals[x1 + i], signals[x2 + i], signals[x3 + i]
                e, f = deltas[z0 + i], deltas[z1 + i]
                g00, g01, g10, g11 = g00 + a * e, g01 + a * f, g10 + b * e, g11 + b * f
                g20, g21, g30, g31 = g20 + c * e, g21 + c * f, g30 + d * e, g31 + d * f
            at = start + k * outputs + j
            _add_2(gradient, at, g00, g01)
            _add_2(gradient, at + outputs, g10, g11)
            _add_2(gradient, at + _2 * outputs, g20, g21)
            _add_2(gradient, at + _3 * outputs, g30, g31)


@_compile
def _add_2(gradient, at, first, second):
    gradient[at] += first
    gradient[at + _1] += second


@_compile
def _add_4(gradient, at, first, second, third, fourth):
    gradient[at] += first
    gradient[at + _1] += second
    gradient[at + _2] += third
    gradient[at + _3] += fourth


@_compile
def _gather(table, d, columns, padded, listed, begin, active, size, signals):
    """signals[k, i] = table[listed[begin + i], k] for the first columns, 0 for the padded ones and for other rows.

    Args:
        d: columns of a row of the table.
    """
    for i in range(active):
        row = listed[begin + i] * d
        for k in range(columns):
            signals[k * _STRIDE + i] = table[row + k]
    for k in range(columns):
        signals[k * _STRIDE + active : k * _STRIDE + size] = 0
    for k in range(columns, padded):
        signals[k * _STRIDE : k * _STRIDE + size] = 0


@_compile
def _scatter(deltas, d, columns, listed, begin, active, out):
    """out[listed[begin + i], k] += deltas[k, i] for the first columns."""
    for i in range(active):
        row = listed[begin + i] * d
        for k in range(columns):
            out[row + k] += deltas[k * _STRIDE + i]


@_compile
def _hidden_layers(weights, widths, weight_at, bias_at, offset, signals, size):
    """Signals of all hidden layers from those of the items; offset = b_1 + W_pᵀ p. Returns the last layer's place."""
    zero, source = weights.dtype.type(0), _0
    for layer in range(len(widths) - 1):
        inputs, outputs = widths[layer], widths[layer + 1]
        target = source + inputs
        for j in range(outputs):
            value = offset[j] if layer == 0 else weights[bias_at[layer] + j]
            z = (target + j) * _STRIDE
            for i in range(size):
                signals[z + i] = value
        _add_product(
            weights, weight_at[layer], outputs, _1, inputs, outputs, signals, source, signals, target, size
        )  # fmt: skip
        for j in range(outputs):
            z = (target + j) * _STRIDE
            for i in range(size):
                value = signals[z + i]
                signals[z + i] = zero if value <= zero else value
        source = target
    return source


@_compile
def _output(weights, start, width, signals, source, size, logits):
    logits[:size] = weights[start + width]
    for j in range(width):
        z, factor = (source + j) * _STRIDE, weights[start + j]
        for i in range(size):
            logits[i] += factor * signals[z + i]


@_compile
def _back(weights, widths, weight_at, bias_at, output_at, signals, deltas, source, slopes, size, gradient):
    """Add the gradients of the network's arrays; leaves those of the items in the first units of `deltas`."""
    zero = weights.dtype.type(0)
    last = len(widths) - 1
    for j in range(widths[last]):
        z, factor, total = (source + j) * _STRIDE, weights[output_at + j], zero
        for i in range(size):
            value = signals[z + i]
            total += slopes[i] * value
            deltas[z + i] = zero if value <= zero else factor * slopes[i]
        gradient[output_at + j] += total
    total = zero
    for i in range(size):
        total += slopes[i]
    gradient[output_at + widths[last]] += total
    target = source
    for layer in range(last - 1, -1, -1):
        inputs, outputs = widths[layer], widths[layer + 1]
        source = target - inputs
        for j in range(outputs):
            z, total = (target + j) * _STRIDE, zero
            for i in range(size):
                total += deltas[z + i]
            gradient[bias_at[layer] + j] += total
        _add_outer(gradient, weight_at[layer], inputs, outputs, signals, source, deltas, target, size)
        for k in range(inputs):
            x = (source + k) * _STRIDE
            for i in range(size):
                deltas[x + i] = zero
        _add_product(weights, weight_at[layer], _1, outputs, outputs, inputs, deltas, target, deltas, source, size)
        if layer > 0:
            for k in range(inputs):
                x = (source + k) * _STRIDE
                for i in range(size):
                    deltas[x + i] = zero if signals[x + i] <= zero else deltas[x + i]
        target = source


@_compile
def _user_half(weights, user_at, bias_at, size, width, offset):
    """offset = b_1 + W_pᵀ p, with p the first `size` weights and W_p from `user_at` on."""
    for j in range(width):
        offset[j] = weights[bias_at + j]
    for k in range(size):
        p, w = weights[k], user_at + k * width
        for j in range(width):
            offset[j] += p * weights[w + j]


@_compile
def _back_to_user(weights, user_at, bias_at, size, width, gradient):
    """∂L/∂p, added to what is there, and ∂L/∂W_p from ∂L/∂b_1."""
    for k in range(size):
        p, w, total = weights[k], user_at + k * width, weights.dtype.type(0)
        for j in range(width):
            slope = gradient[bias_at + j]
            gradient[w + j] = p * slope
            total += slope * weights[w + j]
        gradient[k] += total


@_compile
def _count(here, order, start, stop, num_positives, counts, listed, positives, samples):
    """The distinct rows of a batch, and how often each is a positive and any sample.

    Args:
        counts: [2, rows] zeros, and zeros again afterwards.
    """
    active = 0
    for i in range(start, stop):
        row = here[order[i]]
        if counts[1, row] == 0:
            listed[active] = row
            active += 1
        counts[1, row] += 1
        if order[i] < num_positives:
            counts[0, row] += 1
    for i in range(active):
        row = listed[i]
        positives[i], samples[i] = counts[0, row], counts[1, row]
        counts[0, row], counts[1, row] = 0, 0
    return active


@_compile
def _slopes(positives, samples, begin, active, logits, small, scale, slopes):
    """c_r of the module's equation, NaN where z is; scale = 1 / N, small = exp(-|z|)."""
    one = slopes.dtype.type(1)
    for i in range(active):
        z = logits[i]
        sigmoid = (one if z >= 0 else small[i]) / (one + small[i])
        slopes[i] = (samples[begin + i] * sigmoid - positives[begin + i]) * scale if z == z else z


@_compile
def _loss(positives, samples, begin, active, logits, small):
    """Σ s softplus(z) - a z."""
    total = 0.0
    for i in range(active):
        softplus = math.log1p(small[i]) + max(logits[i], 0)
        total += samples[begin + i] * softplus - positives[begin + i] * logits[i]
    return total


@_compile
def _sgd(weights, gradient, rate):
    for i in range(len(weights)):
        weights[i] -= rate * gradient[i]


@_compile
def _adam(weights, gradient, first, second, rate, numbers):
    """One step of Adam; numbers: β1, 1 - β1, β2, 1 - β2, ε, and both bias corrections."""
    keep_1, take_1, keep_2, take_2, epsilon = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
    step, scale = rate * numbers[5], numbers[6]
    for i in range(len(weights)):
        g = gradient[i]
        m = keep_1 * first[i] + take_1 * g
        v = keep_2 * second[i] + take_2 * g * g
        first[i], second[i] = m, v
        weights[i] -= step * m / (np.sqrt(scale * v) + epsilon)


@_compile
def _places(rows, items, where, out):
    """out = the position of each item among the rows; `where` [num_items] is scratch."""
    for i in range(len(rows)):
        where[rows[i]] = i
    for i in range(len(items)):
        out[i] = where[items[i]]
