"""Compiled logistic loss of the distinct rows of a batch, with c_r as in `kernels`.

Copied and compiled with the kernels beside it (see `compiler`).
"""

from __future__ import annotations

import math

import numpy as np

from .kernels_compile import _compile


@_compile
def _exponentials(logits, size, out, exponents, powers):
    """out = exp(-|logits|).

    In float32, exp(x) = 2^n 2^f with n + f = x log2(e) and a polynomial for 2^f (relative error 2e-7), in loops that
    the compiler turns into vector instructions; `powers` is the memory of `exponents` read as float32, so that a
    shifted integer is the power of two.
    """
    if out.itemsize == 8:
        for i in range(size):
            out[i] = math.exp(-abs(logits[i]))
        return
    for i in range(size):
        x = max(np.float32(-1.442695040888963) * abs(np.float32(logits[i])), np.float32(-126.0))
        n = np.floor(x)
        f = x - n
        y = np.float32(2.1579014e-4)
        y = y * f + np.float32(1.2474251e-3)
        y = y * f + np.float32(9.6752245e-3)
        y = y * f + np.float32(5.5485100e-2)
        y = y * f + np.float32(0.24022943)
        y = y * f + np.float32(0.69314703)
        out[i] = y * f + np.float32(1.0)
        exponents[i] = (np.int32(n) + np.int32(127)) << np.int32(23)
    for i in range(size):
        out[i] *= powers[i]


@_compile
def _log1p(values, size, out):
    """out = log(1 + values) for values in [0, 1]; in float32 by a polynomial (relative error 4e-7)."""
    if out.itemsize == 8:
        for i in range(size):
            out[i] = math.log1p(values[i])
        return
    for i in range(size):
        x = np.float32(values[i])
        y = np.float32(-0.00857468)
        y = y * x + np.float32(0.04421419)
        y = y * x + np.float32(-0.10785368)
        y = y * x + np.float32(0.17757024)
        y = y * x + np.float32(-0.24499612)
        y = y * x + np.float32(0.33276177)
        y = y * x + np.float32(-0.49997449)
        y = y * x + np.float32(0.99999981)
        out[i] = y * x


@_compile
def _slopes(positives, samples, size, logits, small, scale, slopes):
    """c_r; scale = 1 / N, small = exp(-|z|)."""
    one = slopes.dtype.type(1)
    for i in range(size):
        numerator = one if logits[i] >= 0 else small[i]
        slopes[i] = (samples[i] * (numerator / (one + small[i])) - positives[i]) * scale


@_compile
def _loss(positives, samples, size, logits, rest):
    """Σ samples softplus(z) - positives z, where softplus(z) = max(z, 0) + rest and rest = log(1 + exp(-|z|))."""
    total = 0.0
    for i in range(size):
        total += samples[i] * (rest[i] + max(logits[i], 0)) - positives[i] * logits[i]
    return total
