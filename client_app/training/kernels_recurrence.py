"""The recurrence of `models.gru4rec_recurrence` and its gradient, compiled, of one user's sequence.

    ∂L/∂n̂ = ∂L/∂h (1 - z) (1 - n²)      ∂L/∂r̂ = ∂L/∂n̂ (U_n h_{t-1} + b') r (1 - r)
    ∂L/∂ẑ = ∂L/∂h (h_{t-1} - n) z (1 - z)
    what h_t hands back to h_{t-1}: (∂L/∂r̂, ∂L/∂ẑ, r ∂L/∂n̂) Uᵀ + z ∂L/∂h

where a hat is before σ or tanh. Copied and compiled with the kernels beside it (see `compiler`).
"""

from __future__ import annotations

from .kernels_compile import _compile
from .kernels_logistic import _exponentials
from .kernels_products import _add_sum_of_rows, _products_with_rows


@_compile
def _sigmoids(values, small, exponents, powers, out):
    """out = σ(values), NaN where they are; `small`, `exponents` and `powers` are scratch of `_exponentials`."""
    one = out.dtype.type(1)
    _exponentials(values, len(values), small, exponents, powers)
    for j in range(len(values)):
        z = values[j]
        out[j] = (one if z >= 0 else small[j]) / (one + small[j]) if z == z else z


@_compile
def _tanhs(values, small, exponents, powers, out):
    """out = tanh(values / 2), NaN where they are."""
    one = out.dtype.type(1)
    _exponentials(values, len(values), small, exponents, powers)
    for j in range(len(values)):
        z, size = values[j], (one - small[j]) / (one + small[j])
        out[j] = (size if z >= 0 else -size) if z == z else z


@_compile
def _recur(gates, inner, hidden, weight, bias, recurrent, small, exponents, powers):
    """The recurrence from hidden[0] = 0.

    Args:
        gates: [L, 3 d] W x_t + b in the order r, z, n; receives r, z, n.
        inner: [L, d] receives U_n h_{t-1} + b'; hidden: [L + 1, d] receives h_t at t + 1.
        recurrent: [3 d] scratch.
    """
    length, d, two = len(gates), hidden.shape[1], gates.dtype.type(2)
    hidden[0, :] = 0
    for t in range(length):
        before, after, gate, kept = hidden[t], hidden[t + 1], gates[t], inner[t]
        recurrent[:] = bias
        _add_sum_of_rows(before, weight, recurrent)
        both, new = recurrent[: 2 * d], recurrent[2 * d :]
        for j in range(2 * d):
            both[j] += gate[j]
        _sigmoids(both, small, exponents, powers, gate[: 2 * d])
        r, z, n = gate[:d], gate[d : 2 * d], gate[2 * d :]
        for j in range(d):
            kept[j] = new[j]
            new[j] = two * (n[j] + r[j] * new[j])
        _tanhs(new, small, exponents, powers, n)
        for j in range(d):
            after[j] = n[j] + z[j] * (before[j] - n[j])


@_compile
def _back_through_time(gates, inner, hidden, weight, of_hidden, of_gates, of_recurrent, carried):
    """∂L/∂(W x_t + b) and ∂L/∂(U h_{t-1} + b') from ∂L/∂h_t of everything but the recurrence; arguments as in `_recur`.

    Args:
        of_hidden: [L, d]; of_gates, of_recurrent: [L, 3 d]; carried: [d] scratch.
    """
    d, one = hidden.shape[1], gates.dtype.type(1)
    carried[:] = 0
    for t in range(len(gates) - 1, -1, -1):
        before, slope, gate, kept = hidden[t], of_hidden[t], gates[t], inner[t]
        r, z, n = gate[:d], gate[d : 2 * d], gate[2 * d :]
        of_gate, of_product = of_gates[t], of_recurrent[t]
        of_r, of_z, of_n = of_gate[:d], of_gate[d : 2 * d], of_gate[2 * d :]
        for j in range(d):
            slope[j] += carried[j]
            of_n[j] = slope[j] * (one - z[j]) * (one - n[j] * n[j])
            of_r[j] = of_n[j] * kept[j] * r[j] * (one - r[j])
            of_z[j] = slope[j] * (before[j] - n[j]) * z[j] * (one - z[j])
        of_product[: 2 * d] = of_gate[: 2 * d]
        of_last = of_product[2 * d :]
        for j in range(d):
            of_last[j] = of_n[j] * r[j]
        _products_with_rows(weight, of_product, carried)
        for j in range(d):
            carried[j] += slope[j] * z[j]
