"""What the server keeps of single users, where that is little enough for memory: the files are for checkpoints alone.

Rows are read and changed where they lie, and those that have changed are written when a checkpoint is due. A run
without checkpoints writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Array, Arrays
from bouquet.ragged import follow_one_another
from strategies.federation.user_rows import Indices, UserRows

# Rows of so many users are written at once.
_USERS_AT_ONCE = 32


class HeldRows(UserRows):
    """As `UserRows`; `places` says where rows were when the last checkpoint was due."""

    def __init__(self, folder: Path, kind: str, initial: Arrays, count: int) -> None:
        super().__init__(folder, kind, initial, count)
        # Memory that is never written to is none: that of users without rows.
        self._values = {name: np.empty((count, *values.shape), np.float32) for name, values in initial.items()}
        self._there, self._unwritten = np.zeros((2, count), bool)

    @property
    def there(self) -> NDArray[np.bool_]:
        return self._there

    def read(self, name: str, users: Indices) -> Array:
        """As `UserRows.read`; those of users who follow one another and all have rows are not copied."""
        values, there = self._values[name], self._there[users]
        if there.all() and follow_one_another(users):
            found = values[int(users[0]) : int(users[-1]) + 1]
            found.flags.writeable = False
            return found
        found = values[users]
        found[~there] = self._initial[name]
        return found

    def to_change(self, name: str, users: Indices) -> Array:
        """As `UserRows.to_change`; what follows one another is changed where it lies."""
        values, missing = self._values[name], users[~self._there[users]]
        if not follow_one_another(users):
            return values[users] if not len(missing) else np.array(self.read(name, users))
        values[missing] = self._initial[name]
        return values[int(users[0]) : int(users[-1]) + 1]

    def room(self, name: str, users: Indices) -> Array:
        """As `UserRows.room`, where it is for users who follow one another the place of their rows."""
        if follow_one_another(users):
            return self._values[name][int(users[0]) : int(users[-1]) + 1]
        return super().room(name, users)

    def write(self, users: Indices, values: Mapping[str, Array]) -> None:
        for name, rows in values.items():
            if len(users) and rows.ctypes.data != self._values[name][users[0]].ctypes.data:
                self._values[name][users] = rows  # else they were changed where they lie
        self._there[users] = self._unwritten[users] = True

    def drop(self, users: Indices) -> None:
        self._there[users] = False
        self._unwritten[users] = True

    def checkpoint_due(self) -> None:
        users = np.flatnonzero(self._unwritten)
        super().drop(users[~self._there[users]])
        users = users[self._there[users]]
        for begin in range(0, len(users), _USERS_AT_ONCE):
            some = users[begin : begin + _USERS_AT_ONCE]
            super().write(some, {name: self.read(name, some) for name in self._values})
        self._unwritten[:] = False
        super().checkpoint_due()

    def restore(self, index: Mapping[str, NDArray[Any]]) -> None:
        super().restore(index)
        self._there, self._unwritten = self.places > 0, np.zeros(len(self.places), bool)
        users = np.flatnonzero(self._there)
        for name, initial in self._initial.items():
            values = self._values[name] = np.empty((len(self._there), *initial.shape), np.float32)
            for begin in range(0, len(users), _USERS_AT_ONCE):
                some = users[begin : begin + _USERS_AT_ONCE]
                values[some] = super().read(name, some)

    def users_joined(self, count: int) -> None:
        super().users_joined(count)
        for name, values in self._values.items():
            self._values[name] = np.concatenate([values, np.empty((count, *values.shape[1:]), np.float32)])
        self._there, self._unwritten = (
            np.concatenate([marks, np.zeros(count, bool)]) for marks in (self._there, self._unwritten)
        )

    def users_forgotten(self, positions: Indices) -> None:
        super().users_forgotten(positions)
        self._values = {name: np.delete(values, positions, axis=0) for name, values in self._values.items()}
        self._there, self._unwritten = (np.delete(marks, positions) for marks in (self._there, self._unwritten))
