"""Some users of a task at once, for compiled loops: which rows each of them touches, and their values."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from bouquet.ragged import Ragged
from client_app.training.task import LocalTask


class Block:
    """Some users, and the rows that each of them touches.

    Args:
        task: of all users.
        users: [c] positions among them.
        code: the row kernels.

    Attributes:
        positives, negatives: [c] rows of items.
        touched: [c] the distinct items of each user's samples, ascending.
        place: [samples] where each sample's item is among its user's; positives of a user before its negatives, users
            one after another.
        sample_indptr: [c + 1] the samples of each user in `place`.
    """

    def __init__(self, task: LocalTask, users: NDArray[np.int64], code: ModuleType) -> None:
        self.task, self.users, self.code = task, users, code
        self.positives, self.negatives = task.positives.take(users), task.negatives.take(users)
        self.sample_indptr = self.positives.indptr + self.negatives.indptr
        samples = len(self.positives.values) + len(self.negatives.values)
        row_indptr, rows = np.empty(len(users) + 1, np.int64), np.empty(samples, np.int32)
        self.place = np.empty(samples, np.int32)
        parts = [part for ragged in (self.positives, self.negatives) for part in (ragged.indptr, ragged.values)]
        code.touched_rows(*parts, task.num_items, row_indptr, rows, self.place)
        self.touched = Ragged(row_indptr, rows[: row_indptr[-1]].copy())

    def own_rows(self, tables: NDArray[np.floating]) -> NDArray[np.floating]:
        """[nnz, d] the touched rows of tables [n, m, d] of all users."""
        found = np.empty((len(self.touched.values), tables.shape[2]), self.task.dtype)
        self.code.take_own(tables, self.users, self.touched.indptr, self.touched.values, found)
        return found

    def keep(self, tables: NDArray[np.floating], values: NDArray[np.floating]) -> None:
        """Write what became of `own_rows` back."""
        self.code.put_own(tables, self.users, self.touched.indptr, self.touched.values, values)


def blocks(task: LocalTask, bytes_of_user: NDArray[np.integer], most: int) -> Iterator[NDArray[np.int64]]:
    """Positions of users who follow one another, in blocks of about `most` bytes."""
    number = (np.cumsum(bytes_of_user) // most).astype(np.int64)
    for block in np.split(np.arange(len(task.users)), np.flatnonzero(np.diff(number)) + 1):
        if len(block):
            yield block
