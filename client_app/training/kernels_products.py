"""Compiled products of small matrices that lie by rows: of one user's network with what its sequence was read into.

A library's product costs more to call than such a product takes, and starts threads of its own. Where a row of the
result is a sum of rows, eight of these are read for every time that it is; where each value is a product of two rows,
eight of those are computed side by side. Copied and compiled with the kernels beside it (see `compiler`).
"""

from __future__ import annotations

from .kernels_compile import _compile


@_compile
def _add_sum_of_rows(weights, rows, out):
    """out += Σ_k weights[k] rows[k]: a vector times a matrix.

    Args:
        weights: [n], rows: [n, m], out: [m].
    """
    count, width = len(weights), len(out)
    whole = count - count % 8
    for k in range(0, whole, 8):
        a0, a1, a2, a3 = weights[k], weights[k + 1], weights[k + 2], weights[k + 3]
        a4, a5, a6, a7 = weights[k + 4], weights[k + 5], weights[k + 6], weights[k + 7]
        r0, r1, r2, r3 = rows[k], rows[k + 1], rows[k + 2], rows[k + 3]
        r4, r5, r6, r7 = rows[k + 4], rows[k + 5], rows[k + 6], rows[k + 7]
        for j in range(width):
            half = a0 * r0[j] + a1 * r1[j] + a2 * r2[j] + a3 * r3[j]
            out[j] += half + (a4 * r4[j] + a5 * r5[j] + a6 * r6[j] + a7 * r7[j])
    for k in range(whole, count):
        a0, r0 = weights[k], rows[k]
        for j in range(width):
            out[j] += a0 * r0[j]


@_compile
def _products_with_rows(rows, vector, out):
    """out[k] = rows[k] · vector: a matrix times a vector.

    Args:
        rows: [n, m], vector: [m], out: [n].
    """
    count, width, zero = len(out), len(vector), out.dtype.type(0)
    whole = count - count % 8
    for k in range(0, whole, 8):
        r0, r1, r2, r3 = rows[k], rows[k + 1], rows[k + 2], rows[k + 3]
        r4, r5, r6, r7 = rows[k + 4], rows[k + 5], rows[k + 6], rows[k + 7]
        s0, s1, s2, s3, s4, s5, s6, s7 = zero, zero, zero, zero, zero, zero, zero, zero
        for j in range(width):
            x = vector[j]
            s0, s1, s2, s3 = s0 + x * r0[j], s1 + x * r1[j], s2 + x * r2[j], s3 + x * r3[j]
            s4, s5, s6, s7 = s4 + x * r4[j], s5 + x * r5[j], s6 + x * r6[j], s7 + x * r7[j]
        out[k], out[k + 1], out[k + 2], out[k + 3] = s0, s1, s2, s3
        out[k + 4], out[k + 5], out[k + 6], out[k + 7] = s4, s5, s6, s7
    for k in range(whole, count):
        r0, s0 = rows[k], zero
        for j in range(width):
            s0 += vector[j] * r0[j]
        out[k] = s0


@_compile
def _products_of_rows(left, right, out):
    """out[i, k] = left[i] · right[k]: left times the transpose of right.

    Args:
        left: [n, m], right: [p, m], out: [n, p].
    """
    count, others, width, zero = len(left), len(right), left.shape[1], out.dtype.type(0)
    whole, pairs = count - count % 4, others - others % 2
    for i in range(0, whole, 4):
        l0, l1, l2, l3 = left[i], left[i + 1], left[i + 2], left[i + 3]
        for k in range(0, pairs, 2):
            r0, r1 = right[k], right[k + 1]
            s0, s1, s2, s3, u0, u1, u2, u3 = zero, zero, zero, zero, zero, zero, zero, zero
            for j in range(width):
                x, y = r0[j], r1[j]
                s0, s1, s2, s3 = s0 + x * l0[j], s1 + x * l1[j], s2 + x * l2[j], s3 + x * l3[j]
                u0, u1, u2, u3 = u0 + y * l0[j], u1 + y * l1[j], u2 + y * l2[j], u3 + y * l3[j]
            out[i, k], out[i + 1, k], out[i + 2, k], out[i + 3, k] = s0, s1, s2, s3
            out[i, k + 1], out[i + 1, k + 1], out[i + 2, k + 1], out[i + 3, k + 1] = u0, u1, u2, u3
        for k in range(pairs, others):
            for a in range(i, i + 4):
                out[a, k] = _dot(left[a], right[k])
    for i in range(whole, count):
        _products_with_rows(right, left[i], out[i])


@_compile
def _dot(left, right):
    total = left.dtype.type(0)
    for j in range(len(left)):
        total += left[j] * right[j]
    return total


@_compile
def _sums_of_outer_products(left, right, column, out):
    """out[k] = Σ_t left[t, k] right[t]: the gradient of a matrix from what it met and what came of it.

    Args:
        left: [t, n], right: [t, m], out: [n, m].
        column: [t] scratch.
    """
    count = len(left)
    for k in range(len(out)):
        for t in range(count):
            column[t] = left[t, k]
        out[k, :] = 0
        _add_sum_of_rows(column[:count], right, out[k])
