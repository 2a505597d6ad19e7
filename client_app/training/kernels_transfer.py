"""Compiled transfer network of Fed3CR (eq. 9) for one user who takes few steps of SGD from where everybody starts.

A step changes the weights of a layer by the product of two vectors, W ← W - η x δᵀ, so what t steps have made of the
common weights W⁰ is never written down while they are taken:

    Wᵀ x = W⁰ᵀ x - η Σ_τ (x^τ · x) δ^τ,    W δ = W⁰ δ - η Σ_τ x^τ (δ^τ · δ),    b = b⁰ - η Σ_τ δ^τ

Of the last layer, which has most of the weights, δ is the outer product of p and s: the model takes the inner product
of p and the turned rows, and s = Σ c_r C_r. One pass over the rows of W⁰ whose input is not zero gives both what goes
forward, W, and v_i = Σ_j W⁰_i[j, ·] p_j, from which v_i · s goes back. After `_KEPT` steps the weights are written down
after all, and what was remembered is forgotten.

Copied and compiled with the kernels beside it (see `compiler`).
"""

from __future__ import annotations

import numba
import numpy as np

from .kernels import _FAST

_compile = numba.njit(cache=True, nogil=True, fastmath=_FAST, error_model="numpy")

# So many steps are remembered as vectors: with more, adding them up would cost more than weights do.
_KEPT = 64


@_compile
def _dot(a, b):
    total = a.dtype.type(0)
    for i in range(len(a)):
        total += a[i] * b[i]
    return total


@_compile
def _add(target, factor, values):
    for i in range(len(target)):
        target[i] += factor * values[i]


@_compile
def _hidden(base, widths, weight_at, bias_at, signal_at, signals, rate, seen, deltas, kept):
    """Signals of the hidden layers from those of the input, rectified.

    Args:
        base: weights and biases, layer by layer; widths, weight_at, bias_at and signal_at say where each layer is.
        seen, deltas: [_KEPT, …] signals and their slopes in the `kept` steps before.
    """
    zero, one = base.dtype.type(0), base.dtype.type(1)
    for layer in range(len(widths) - 2):
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
        for j in range(outputs):
            value = out[j]
            out[j] = zero if value <= zero else value


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
def _back(
    base, widths, weight_at, signal_at, signals, rate, seen, deltas, before_p, before_s, kept, pulled, p, s, slopes,
):  # fmt: skip
    """From p and s to the slopes of all signals: in `slopes`, as `signals` lie, of the input the second half only."""
    zero, last = base.dtype.type(0), len(widths) - 2
    for layer in range(last, -1, -1):
        inputs, source, target = widths[layer], signal_at[layer], signal_at[layer + 1]
        outputs = widths[layer + 1]
        x, out = signals[source : source + inputs], slopes[source : source + inputs]
        begin = inputs // 2 if layer == 0 else 0
        for k in range(begin, inputs):
            if layer > 0 and x[k] <= zero:
                out[k] = zero
            elif layer == last:
                out[k] = _dot(pulled[k], s)
            else:
                start = weight_at[layer] + k * outputs
                out[k] = _dot(base[start : start + outputs], slopes[target : target + outputs])
        for step in range(kept):
            if layer == last:
                factor = -rate * _dot(before_p[step], p) * _dot(before_s[step], s)
            else:
                factor = -rate * _dot(deltas[step, target : target + outputs], slopes[target : target + outputs])
            for k in range(begin, inputs):
                if layer == 0 or x[k] > zero:
                    out[k] += factor * seen[step, source + k]


@_compile
def _changes(widths, signal_at, rate, seen, deltas, before_p, before_s, kept, layer, adds, weights, bias, outers):
    """What the remembered steps change in a layer's weights [inputs · outputs] and bias; added to them if `adds`.

    Args:
        outers: [_KEPT, d · d] memory.
    """
    inputs, outputs, d = widths[layer], widths[layer + 1], before_p.shape[1]
    last = layer == len(widths) - 2
    if not adds:
        bias[:] = 0
    for step in range(kept):
        if last:
            for j in range(d):
                for k in range(d):
                    outers[step, j * d + k] = before_p[step, j] * before_s[step, k]
        else:
            outers[step, :outputs] = deltas[step, signal_at[layer + 1] : signal_at[layer + 1] + outputs]
        _add(bias, -rate, outers[step, :outputs])
    for i in range(inputs):
        row = weights[i * outputs : (i + 1) * outputs]
        fresh = not adds
        for step in range(kept):
            factor = -rate * seen[step, signal_at[layer] + i]
            if factor == 0:
                continue
            if fresh:
                for j in range(outputs):
                    row[j] = factor * outers[step, j]
                fresh = False
            else:
                _add(row, factor, outers[step, :outputs])
        if fresh:
            row[:] = 0
