"""Sums over users of sparse matrices: what a device says of which items it met, and after which.

A single user's cells are multiples of a power of two, 2^-16 or finer, and so is every sum of them. In float64 such sums
are exact, so they do not depend on how users are spread over nodes, and what is taken off again has never been there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

QUANTUM = 2.0**-16
# What a float32 holds of a value up to 1; sums in float64 are exact up to 2^29.
FINE = 2.0**-24
# Up to so many cells a matrix is added up as a whole, which is quicker than sorting.
_WHOLE = 2**24

Values = TypeVar("Values", float, NDArray[np.float64])


def quantized(values: Values, quantum: float = QUANTUM) -> Values:
    """The nearest multiples of a power of two."""
    return np.round(values / quantum) * quantum


@dataclass(frozen=True)
class CellSpec:
    """One matrix of sums.

    Attributes:
        shape: rows and columns; a vector is one row.
        symmetric: only cells on and above the diagonal travel.
    """

    shape: tuple[int, int]
    symmetric: bool = False

    @property
    def size(self) -> int:
        """How many cells can travel."""
        rows, columns = self.shape
        return rows * (rows + 1) // 2 if self.symmetric else rows * columns


@dataclass(frozen=True)
class Cells:
    """The cells of a matrix that are not zero, row after row.

    Attributes:
        rows: [r] int32, ascending; the others are empty.
        lengths: [r] int32, above 0: cells of each of them.
        columns: [c] int32, ascending within a row.
        values: [c] float32 where that is exact, else float64.
    """

    rows: NDArray[np.int32]
    lengths: NDArray[np.int32]
    columns: NDArray[np.int32]
    values: NDArray[np.floating]

    @classmethod
    def of_keys(cls, keys: NDArray[np.int64], values: NDArray[np.float64], spec: CellSpec) -> Cells:
        """From ascending keys, row * columns + column; cells of zero are dropped."""
        kept = values != 0
        if not kept.all():
            keys, values = keys[kept], values[kept]
        rows, width = spec.shape
        lengths = np.diff(np.searchsorted(keys, np.arange(rows + 1) * width))
        columns = (keys - np.repeat(np.arange(rows) * width, lengths)).astype(np.int32)
        filled = np.flatnonzero(lengths)
        narrow = values.astype(np.float32)
        exact = np.array_equal(narrow, values)
        return cls(filled.astype(np.int32), lengths[filled].astype(np.int32), columns, narrow if exact else values)

    def keys(self, spec: CellSpec) -> NDArray[np.int64]:
        """[c] row * columns + column."""
        return np.repeat(self.rows.astype(np.int64) * spec.shape[1], self.lengths) + self.columns

    def minus(self, other: Cells, spec: CellSpec) -> Cells:
        """The difference."""
        total = Total(spec)
        total.add(self.keys(spec), self.values.astype(np.float64))
        total.add(other.keys(spec), -other.values.astype(np.float64))
        return total.cells()

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.rows.nbytes + self.lengths.nbytes + self.columns.nbytes + self.values.nbytes


Run = tuple[NDArray[np.int64], NDArray[np.float64]]


class Total:
    """Adds up cells, whatever order they come in.

    What came is kept as runs of ascending keys, each more than twice as long as the next: so a cell is moved some
    times, and sorted once.

    Args:
        spec: of the matrix.
    """

    def __init__(self, spec: CellSpec) -> None:
        self._spec = spec
        self._keys: list[NDArray[np.int64]] = []
        self._values: list[NDArray[np.float64]] = []
        self._waiting = 0
        self._runs: list[Run] = []
        self._whole: NDArray[np.float64] | None = None

    def add(self, keys: NDArray[np.int64], values: NDArray[np.float64] | float) -> None:
        """Add values [c], or one for all, to the cells with these keys [c]; a key may come several times."""
        self._keys.append(keys)
        self._values.append(np.broadcast_to(np.asarray(values, np.float64), keys.shape))
        self._waiting += len(keys)
        if self._waiting > _WHOLE // 2:
            self._settle()

    def cells(self) -> Cells:
        """What has been added, with what cancelled out left away."""
        self._settle()
        if self._whole is not None:
            keys = np.flatnonzero(self._whole)
            return Cells.of_keys(keys, self._whole[keys], self._spec)
        while len(self._runs) > 1:
            self._runs.append(_merged(self._runs.pop(), self._runs.pop()))
        keys, values = self._runs[0]
        return Cells.of_keys(keys, values, self._spec)

    def _settle(self) -> None:
        """Put together what is waiting."""
        keys = np.concatenate([np.zeros(0, np.int64), *self._keys])
        values = np.concatenate([np.zeros(0), *self._values])
        self._keys, self._values, self._waiting = [], [], 0
        size = self._spec.shape[0] * self._spec.shape[1]
        if size <= _WHOLE and (self._whole is not None or len(keys) > size // 16):
            self._whole = np.zeros(size) if self._whole is None else self._whole
            for some, added in [*self._runs, (keys, values)]:
                self._whole += np.bincount(some, added, minlength=size)
            self._runs = []
            return
        order = np.argsort(keys)
        keys, values = keys[order], values[order]
        starts = np.flatnonzero(np.diff(keys, prepend=-1))
        self._runs.append((keys[starts], np.add.reduceat(values, starts) if len(starts) else values))
        while len(self._runs) > 1 and 2 * len(self._runs[-1][0]) >= len(self._runs[-2][0]):
            self._runs.append(_merged(self._runs.pop(), self._runs.pop()))


def _merged(one: Run, other: Run) -> Run:
    """Two runs as one, written into the longer one where it has all keys of the other."""
    (keys, values), (more, added) = sorted((one, other), key=lambda run: -len(run[0]))
    place = np.searchsorted(keys, more)
    known = place < len(keys)
    known[known] = keys[place[known]] == more[known]
    values[place[known]] += added[known]
    if known.all():
        return keys, values
    place = place[~known] + np.arange(len(more) - int(known.sum()))
    old = np.ones(len(keys) + len(place), dtype=np.bool_)
    old[place] = False
    merged = np.empty(len(old), np.int64), np.empty(len(old))
    for whole, before, new in zip(merged, (keys, values), (more, added), strict=True):
        whole[old], whole[place] = before, new[~known]
    return merged
