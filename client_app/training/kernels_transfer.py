"""Compiled transfer network of Fed3CR (eq. 9) for one user who takes few steps of SGD from where everybody starts.

A step changes the weights of a layer by the product of two vectors, W ← W - η x δᵀ, so what t steps have made of the
common weights W⁰ is never written down while they are taken:

    Wᵀ x = W⁰ᵀ x - η Σ_τ (x^τ · x) δ^τ,    W δ = W⁰ δ - η Σ_τ x^τ (δ^τ · δ),    b = b⁰ - η Σ_τ δ^τ

Where an inner product with p is all that is asked of turned rows, δ of the last layer, which has most of the weights,
is the outer product of p and s = Σ c_r C_r. Then one pass over the rows of W⁰ whose input is not zero gives both what
goes forward, the transfer matrix, and v_i = Σ_j W⁰_i[j, ·] p_j, from which v_i · s goes back. After `_KEPT` steps the
weights are written down after all, and what was remembered is forgotten.

Copied and compiled with the kernels beside it (see `compiler`).
"""

from __future__ import annotations

import numpy as np

from .kernels_compile import _compile
from .kernels_products import _dot

# So many steps are remembered as vectors: with more, adding them up would cost more than weights do.
_KEPT = 64


@_compile
def _add(target, factor, values):
    for i in range(len(target)):
        target[i] += factor * values[i]


@_compile
def _layers(base, widths, weight_at, bias_at, signal_at, signals, rate, seen, deltas, kept, layers):
    """Signals of the first `layers` layers from those of the input; rectified, but for the network's last layer.

    Args:
        base: weights and biases, layer by layer; widths, weight_at, bias_at and signal_at say where each layer is.
        seen, deltas: [_KEPT, …] signals and their slopes in the `kept` steps before.
    """
    zero, one = base.dtype.type(0), base.dtype.type(1)
    for layer in range(layers):
        inputs, outputs = widths[layer], widths[layer + 1]
        source, target = signal_at[layer], signal_at[layer + 1]
        x, out = signals[source : source + inputs], signals[target : target + outputs]
        out[:] = base[bias_at[layer] : bias_at[layer] + outputs]
        for k in range(inputs):
            if x[k] != zero:
                start = weight_at[layer] + k * outputs
                _add(out, x[k], base[start : start + outputs])
        for step in range(kept):
            factor = -rate * (_dot(seen[step, source : source + inputs], x) + one)
            _add(out, factor, deltas[step, target : target + outputs])
        if layer < len(widths) - 2:
            for j in range(outputs):
                value = out[j]
                out[j] = zero if value <= zero else value


@_compile
def _back(base, widths, weight_at, signal_at, signals, rate, seen, deltas, kept, layers, begin, slopes):
    """From the slopes of what the first `layers` layers give to those of all signals before, which lie as `signals` do.

    Args:
        begin: where the input's part begins whose slopes are asked for.
    """
    zero = base.dtype.type(0)
    for layer in range(layers - 1, -1, -1):
        inputs, outputs = widths[layer], widths[layer + 1]
        source, target = signal_at[layer], signal_at[layer + 1]
        x, out, given = (
            signals[source : source + inputs], slopes[source : source + inputs], slopes[target : target + outputs]
        )  # fmt: skip
        first = begin if layer == 0 else 0
        for k in range(first, inputs):
            if layer > 0 and x[k] <= zero:
                out[k] = zero
            else:
                start = weight_at[layer] + k * outputs
                out[k] = _dot(base[start : start + outputs], given)
        for step in range(kept):
            factor = -rate * _dot(deltas[step, target : target + outputs], given)
            _add_active(out, factor, seen[step, source : source + inputs], x, first, layer > 0)


@_compile
def _add_active(out, factor, values, x, first, rectified):
    """out += factor · values, from `first` on, and of rectified signals where they are on."""
    for k in range(first, len(out)):
        if not rectified or x[k] > 0:
            out[k] += factor * values[k]


@_compile
def _matrix(base, at, bias_at, x, p, identity, rate, seen, before_p, before_s, kept, matrix, pulled):
    """W [d · d] of the last layer's input x, and v_i in `pulled` [inputs, d] where x_i is not zero; 4 divides d.

    Args:
        seen: [_KEPT, inputs] the inputs of the steps before, before_p, before_s: [_KEPT, d] their p and s.
    """
    d, one, zero = np.uint64(len(p)), np.uint64(1), base.dtype.type(0)
    two, three, four = np.uint64(2), np.uint64(3), np.uint64(4)
    matrix[:] = base[bias_at : bias_at + len(matrix)]
    for i in range(len(x)):
        factor = x[i]
        if factor == zero:
            continue
        rows, image = base[at + i * len(matrix) : at + (i + 1) * len(matrix)], pulled[i]
        image[:] = 0
        for j in range(np.uint64(0), d, four):
            r0 = j * d
            r1, r2, r3 = r0 + d, r0 + two * d, r0 + three * d
            p0, p1, p2, p3 = p[j], p[j + one], p[j + two], p[j + three]
            for k in range(d):
                a, b, c, e = rows[r0 + k], rows[r1 + k], rows[r2 + k], rows[r3 + k]
                image[k] += p0 * a + p1 * b + p2 * c + p3 * e
                matrix[r0 + k] += factor * a
                matrix[r1 + k] += factor * b
                matrix[r2 + k] += factor * c
                matrix[r3 + k] += factor * e
    for step in range(kept):
        factor = -rate * (_dot(seen[step], x) + base.dtype.type(1))
        for j in range(d):
            _add(matrix[j * d : (j + one) * d], factor * before_p[step, j], before_s[step])
    for k in range(d):
        matrix[k * d + k] += identity


@_compile
def _pull(x, rate, seen, before_p, before_s, kept, pulled, p, s, slopes):
    """The slopes of x, the last layer's input, where those of its output are p sᵀ; arguments as in `_matrix`."""
    zero = x.dtype.type(0)
    for i in range(len(x)):
        slopes[i] = zero if x[i] <= zero else _dot(pulled[i], s)
    for step in range(kept):
        factor = -rate * _dot(before_p[step], p) * _dot(before_s[step], s)
        _add_active(slopes, factor, seen[step], x, 0, True)


@_compile
def _add_steps(
    widths, weight_at, bias_at, signal_at, rate, seen, deltas, kept, network,
):  # fmt: skip
    """Have `network` take the remembered steps."""
    for layer in range(len(widths) - 1):
        inputs, outputs = widths[layer], widths[layer + 1]
        weights = network[weight_at[layer] : weight_at[layer] + inputs * outputs]
        bias = network[bias_at[layer] : bias_at[layer] + outputs]
        _add_outers(signal_at[layer], signal_at[layer + 1], rate, seen, deltas, kept, True, weights, bias)


@_compile
def _add_outers(source, target, rate, seen, deltas, kept, adds, weights, bias):
    """-η Σ_τ x^τ δ^τᵀ in a layer's weights, flat, and -η Σ_τ δ^τ in its bias; added to what is there if `adds`."""
    outputs = len(bias)
    if not adds:
        bias[:] = 0
    for step in range(kept):
        _add(bias, -rate, deltas[step, target : target + outputs])
    for i in range(len(weights) // outputs):
        row, fresh = weights[i * outputs : (i + 1) * outputs], not adds
        for step in range(kept):
            factor, given = -rate * seen[step, source + i], deltas[step, target : target + outputs]
            if factor == 0:
                continue
            if fresh:
                for j in range(outputs):
                    row[j] = factor * given[j]
                fresh = False
            else:
                _add(row, factor, given)
        if fresh:
            row[:] = 0


@_compile
def _store_network(
    widths, weight_at, bias_at, signal_at, rate, seen, deltas, kept, network, settled, own_network, user, users,
    of_weights, of_biases,
):  # fmt: skip
    """What a user's steps changed: those that are remembered, and with `settled` what is in `own_network`.

    Args:
        of_weights, of_biases: by layer [users · inputs · outputs] and [users · outputs], one layer after another.
    """
    weights_at, biases_at = 0, 0
    for layer in range(len(widths) - 1):
        outputs, numbers = widths[layer + 1], widths[layer] * widths[layer + 1]
        weights = of_weights[weights_at + user * numbers : weights_at + (user + 1) * numbers]
        bias = of_biases[biases_at + user * outputs : biases_at + (user + 1) * outputs]
        if settled:
            at, to = weight_at[layer], bias_at[layer]
            weights[:] = own_network[at : at + numbers] - network[at : at + numbers]
            bias[:] = own_network[to : to + outputs] - network[to : to + outputs]
        _add_outers(signal_at[layer], signal_at[layer + 1], rate, seen, deltas, kept, settled, weights, bias)
        weights_at, biases_at = weights_at + users * numbers, biases_at + users * outputs
