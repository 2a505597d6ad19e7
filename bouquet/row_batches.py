"""Rows of many users that lie one after another in memory, and the groups in which they are read and written.

A row of its own is an object of Python for everything that is done with it. A node moves a thousand of them at once,
a few values each or a table: what the file system and checksums are asked for is then worked out for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

# What is read is checked, and what is checked is written, in groups of so many bytes: they are in the cache then.
_GROUP_BYTES = 2**19

Indices = NDArray[np.int64]

Seen = Callable[[Indices], None]
"""Is told which rows of a batch are in memory, and are about to be written or have just been read."""


@dataclass(frozen=True)
class RowBatch:
    """Rows of n users. Each consists of one part or several, which lie in the file one after another.

    Attributes:
        parts: of each part the values of all users, flat float32, and [n + 1] where those of a user begin.
    """

    parts: tuple[tuple[NDArray[np.float32], Indices], ...]

    @classmethod
    def whole(cls, values: NDArray[np.float32]) -> RowBatch:
        """The rows of an array [n, …]; contiguous, what is read is in it."""
        return cls(((values.reshape(-1), np.arange(len(values) + 1) * (values.size // max(len(values), 1))),))

    @classmethod
    def of(cls, arrays: Sequence[NDArray[np.float32]], indptr: Indices) -> RowBatch:
        """User u has in every array [nnz, …] the entries indptr[u]:indptr[u + 1]; contiguous, as `whole`."""
        return cls(tuple((a.reshape(-1), indptr * (a.size // max(len(a), 1))) for a in arrays))

    @property
    def nbytes(self) -> Indices:
        """[n] bytes of each row."""
        return np.asarray(sum(4 * np.diff(bounds) for _, bounds in self.parts))

    def row(self, user: int) -> tuple[NDArray[np.float32], ...]:
        """The parts of one row, as views."""
        return tuple(values[bounds[user] : bounds[user + 1]] for values, bounds in self.parts)

    def rows(self) -> list[tuple[NDArray[np.float32], ...]]:
        """All rows, as `row`."""
        return [self.row(user) for user in range(len(self.parts[0][1]) - 1)]


Run = tuple[int, int, list[memoryview], int]
"""Rows that lie one after another in the file and in memory: slot and position of the first, views, bytes in all."""


def groups(
    slots: Indices, positions: Indices, which: Indices, rows: RowBatch, row_bytes: int
) -> Iterator[tuple[Indices, list[Run]]]:
    """The rows `which` [k] in the order of the file, some at a time, and the runs that they are in.

    Args:
        slots, positions: [k] where each of them lies.
        row_bytes: of the place of a row in the file.
    """
    if not len(which):
        return
    order = np.lexsort((positions, slots))
    slots, positions, which = slots[order], positions[order], which[order]
    nbytes = rows.nbytes[which]
    group = (np.cumsum(nbytes) - nbytes) // _GROUP_BYTES
    apart = np.ones(len(which), bool)
    if len(rows.parts) == 1:
        apart[1:] = (nbytes[:-1] != row_bytes) | (np.diff(group) != 0) | (np.diff(slots) != 0)
        apart[1:] |= (np.diff(positions) != 1) | (np.diff(which) != 1)
    starts = np.flatnonzero(apart)
    last = which[np.append(starts[1:], len(which)) - 1] + 1
    views = [_views(values, (4 * b[which[starts]]).tolist(), (4 * b[last]).tolist()) for values, b in rows.parts]
    sizes = np.add.reduceat(nbytes, starts).tolist()
    at = (slots[starts].tolist(), positions[starts].tolist(), map(list, zip(*views, strict=True)), sizes)
    runs = zip(*at, strict=True)
    cuts = np.flatnonzero(np.diff(group, prepend=-1, append=group[-1] + 1))
    counts = np.diff(np.searchsorted(starts, cuts)).tolist()
    for begin, end, count in zip(cuts[:-1].tolist(), cuts[1:].tolist(), counts, strict=True):
        yield which[begin:end], list(islice(runs, count))


def _views(values: NDArray[np.float32], begins: list[int], ends: list[int]) -> Iterator[memoryview]:
    data = values.view(np.uint8).data
    return (data[begin:end] for begin, end in zip(begins, ends, strict=True))
