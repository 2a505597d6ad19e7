"""Where the rows of three tables of one user lie: in tiles by columns, as in `kernels_ncf`; and what is done to them.

Copied and compiled with the kernels beside it (see `compiler`).
"""

from __future__ import annotations

import numpy as np

from .kernels_compile import _compile
from .kernels_ncf import _ROWS, _STRIDE

# What a tile holds: the common table, the user's own one, the enhanced one.
_C, _OWN, _E = 0, 1, 2
_GROUPS = 3


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
