"""Compiled passes over tables that lie in tiles by columns: a layer's standardisation, and its way back.

A group of `width` units begins with unit `at` of a tile; C are columns without their mean, w the shares of rows, of
which `row` is that of the tile's first. Copied and compiled with the kernels beside it (see `compiler`).
"""

from __future__ import annotations

import numpy as np

from .kernels_compile import _compile
from .kernels_ncf import _STRIDE


@_compile
def _fill(memory, at, width, size, values, factor):
    """factor · values[unit] in all rows."""
    for unit in range(np.uint64(width)):
        begin, value = (at + unit) * _STRIDE, factor * values[unit]
        for i in range(size):
            memory[begin + i] = value


@_compile
def _add_means(memory, at, width, size, shares, row, means):
    """means += Σ w x."""
    for unit in range(np.uint64(width)):
        begin, total = (at + unit) * _STRIDE, memory.dtype.type(0)
        for i in range(size):
            total += shares[row + i] * memory[begin + i]
        means[unit] += total


@_compile
def _add_moments(memory, at, width, size, shares, row, variances, means):
    """variances += Σ w C², means += Σ w relu(C)."""
    zero = memory.dtype.type(0)
    for unit in range(np.uint64(width)):
        begin, total, total_active = (at + unit) * _STRIDE, zero, zero
        for i in range(size):
            value = memory[begin + i]
            weighted = shares[row + i] * value
            total += weighted * value
            total_active += zero if value <= zero else weighted
        variances[unit] += total
        means[unit] += total_active


@_compile
def _rectify(memory, at, width, size, spare, to):
    """spare = relu(C)."""
    zero = memory.dtype.type(0)
    for unit in range(np.uint64(width)):
        begin, out = (at + unit) * _STRIDE, (to + unit) * _STRIDE
        for i in range(size):
            value = memory[begin + i]
            spare[out + i] = zero if value <= zero else value


@_compile
def _weigh(memory, at, width, size, shares, row, means, spare, centred, weighted):
    """In `spare`: B = relu(C) - mean, and w B."""
    zero = memory.dtype.type(0)
    for unit in range(np.uint64(width)):
        begin, mean = (at + unit) * _STRIDE, means[unit]
        out, to = (centred + unit) * _STRIDE, (weighted + unit) * _STRIDE
        for i in range(size):
            value = memory[begin + i]
            value = (zero if value <= zero else value) - mean
            spare[out + i] = value
            spare[to + i] = shares[row + i] * value


@_compile
def _mask(memory, slope, of, width, size, totals, alongs):
    """h = slope [C > 0]; totals += Σ h, alongs += Σ h C."""
    zero = memory.dtype.type(0)
    for unit in range(np.uint64(width)):
        begin, source, total, along = (slope + unit) * _STRIDE, (of + unit) * _STRIDE, zero, zero
        for i in range(size):
            # Read whatever comes of it: a load on a condition keeps the loop from vector registers.
            value, part = memory[source + i], memory[begin + i]
            part = zero if value <= zero else part
            memory[begin + i] = part
            total += part
            along += part * value
        totals[unit] += total
        alongs[unit] += along


@_compile
def _through(memory, slope, of, width, size, shares, row, totals, alongs, scales):
    """h - w (Σ h + C s² Σ h C) in the place of h."""
    for unit in range(np.uint64(width)):
        begin, source = (slope + unit) * _STRIDE, (of + unit) * _STRIDE
        total, along = totals[unit], alongs[unit] * scales[unit] * scales[unit]
        for i in range(size):
            memory[begin + i] -= shares[row + i] * (total + along * memory[source + i])
