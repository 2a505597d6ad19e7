"""Rows of varying length in two flat arrays: the shape of all histories in this project."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class Ragged:
    """n rows of integers, row r being `values[indptr[r]:indptr[r + 1]]`.

    Attributes:
        indptr: [n + 1] int64, starts at 0 and never falls.
        values: [indptr[n]] int32.
    """

    indptr: NDArray[np.int64]
    values: NDArray[np.int32]

    @classmethod
    def from_pairs(cls, rows: ArrayLike, values: ArrayLike, num_rows: int) -> Ragged:
        """Group `values` by `rows`, keeping the given order inside a row.

        Args:
            rows: [nnz] row of every value, in any order.
            values: [nnz].
            num_rows: n; rows without values are empty.
        """
        rows = np.asarray(rows)
        order = np.argsort(rows, kind="stable")
        return cls.from_lengths(np.bincount(rows, minlength=num_rows), np.asarray(values)[order])

    @classmethod
    def from_lengths(cls, lengths: ArrayLike, values: ArrayLike) -> Ragged:
        """Rows of the given lengths [n], taken one after another from `values`."""
        indptr = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        return cls(indptr.astype(np.int64), np.asarray(values, dtype=np.int32))

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """[n] number of values in every row."""
        return np.diff(self.indptr)

    @property
    def row_of_value(self) -> NDArray[np.int64]:
        """[nnz] the row that each value belongs to."""
        return np.repeat(np.arange(len(self), dtype=np.int64), self.lengths)

    def row(self, index: int) -> NDArray[np.int32]:
        """The values of one row (a view)."""
        return self.values[self.indptr[index] : self.indptr[index + 1]]

    def take(self, rows: ArrayLike) -> Ragged:
        """The given rows [k], in that order, as a new Ragged; rows that follow one another as views."""
        rows = np.asarray(rows, dtype=np.int64)
        if follow_one_another(rows):
            return self.between(slice(int(rows[0]), int(rows[-1]) + 1))
        lengths = self.lengths[rows]
        starts = np.repeat(self.indptr[rows], lengths)
        return Ragged.from_lengths(lengths, self.values[starts + positions(lengths)])

    def between(self, rows: slice) -> Ragged:
        """Neighbouring rows start:stop, as views."""
        indptr = self.indptr[rows.start : rows.stop + 1]
        return Ragged(indptr - indptr[0], self.values[indptr[0] : indptr[-1]])


def one_after_another(first: Ragged, second: Ragged) -> Ragged:
    """Row by row, the values of the first and then of the second."""
    values = np.empty(len(first.values) + len(second.values), np.int32)
    # A value of the first stands behind all of the second's rows before its own, one of the second also behind its row.
    for part, behind in ((first, second.indptr[:-1]), (second, first.indptr[1:])):
        values[np.arange(len(part.values)) + np.repeat(behind, part.lengths)] = part.values
    return Ragged(first.indptr + second.indptr, values)


def follow_one_another(rows: NDArray[np.int64]) -> bool:
    """Whether rows [k] are n, n + 1, …, so that a slice holds them."""
    return len(rows) > 0 and rows[-1] - rows[0] == len(rows) - 1 and bool((np.diff(rows) == 1).all())


def picked(values: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
    """values[rows]; rows that follow one another are not copied."""
    if follow_one_another(rows):
        return values[int(rows[0]) : int(rows[-1]) + 1]
    return values[rows]


def positions(lengths: NDArray[np.integer]) -> NDArray[np.int64]:
    """0, 1, …, length - 1 for every row, one row after another: [sum(lengths)]."""
    ends = np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total, dtype=np.int64) - np.repeat(ends - lengths, lengths)
