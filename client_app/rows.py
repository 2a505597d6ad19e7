"""Files of equal rows, [slots, users, …] float32, that are read and replaced one by one: plain, or sealed."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bouquet.errors import StateError
from bouquet.sealing import OVERHEAD, Seal

SLOTS = 3
Row = NDArray[np.float32]


class Rows(Protocol):
    """One private array of all hosted users, in SLOTS versions."""

    path: Path

    def create(self) -> None:
        """Make the file if it is not there."""

    def read(self, wanted: Iterable[tuple[int, int, Row]]) -> None:
        """Read versions, given as (slot, position, row), each into its row and one after another.

        Raises:
            StateError: the file is missing, damaged, of another shape, or sealed with another key.
        """

    def write(self, rows: Iterable[tuple[int, int, Row]], durable: bool) -> None:
        """Replace versions, given as (slot, position, row)."""


class PlainRows:
    """A `.npy` file, as numpy reads it.

    Args:
        path: of the file.
        users: how many.
        shape: of one row.
    """

    def __init__(self, path: Path, users: int, shape: tuple[int, ...]) -> None:
        self.path, self._shape = path, (SLOTS, users, *shape)
        self._offset_of_rows: int | None = None

    def create(self) -> None:
        if not self.path.exists():
            np.lib.format.open_memmap(self.path, mode="w+", dtype=np.float32, shape=self._shape)

    def read(self, wanted: Iterable[tuple[int, int, Row]]) -> None:
        # Read, not mapped: memory that is used again and again is faster than pages that are mapped anew.
        start = self._begin()
        with self.path.open("rb", buffering=0) as file:
            for slot, position, row in wanted:
                if os.preadv(file.fileno(), [row.data], self._place(start, slot, position, row)) != row.nbytes:
                    raise StateError(f"{self.path} is damaged: it ends before its last row.")

    def write(self, rows: Iterable[tuple[int, int, Row]], durable: bool) -> None:
        start = self._begin()
        with self.path.open("r+b", buffering=0) as file:
            for slot, position, row in rows:
                # Plain writes, not a writable map: a full disk is then an error and not a killed process.
                _write(file.fileno(), row.data.cast("B"), self._place(start, slot, position, row))
            if durable:
                os.fsync(file.fileno())

    def _place(self, start: int, slot: int, position: int, row: Row) -> int:
        return start + (slot * self._shape[1] + position) * row.nbytes

    def _begin(self) -> int:
        """Where the first row begins."""
        if self._offset_of_rows is None:
            try:
                stored: np.memmap[Any, Any] = np.lib.format.open_memmap(self.path, mode="r")
            except (OSError, ValueError) as error:
                raise StateError(f"{self.path} cannot be read ({error}).") from None
            if stored.shape != self._shape or stored.dtype != np.float32:
                found, expected = list(stored.shape), list(self._shape)
                raise StateError(f"{self.path} holds {found} values where {expected} are expected.")
            self._offset_of_rows = int(stored.offset)
        return self._offset_of_rows


class SealedRows:
    """A file of sealed rows of equal length; a row that was never written is zeros, which no key opens.

    Args:
        path: of the file.
        users: [K] keys of the users; a row belongs to its user.
        shape: of one row.
        seal: the node's key.
        belongs_to: authenticated with every row.
    """

    def __init__(
        self, path: Path, users: NDArray[np.uint64], shape: tuple[int, ...], seal: Seal, belongs_to: str
    ) -> None:
        self.path, self._users, self._shape = path, users, shape
        self._seal, self._belongs_to = seal, belongs_to
        self._record = 4 * int(np.prod(shape)) + OVERHEAD

    def create(self) -> None:
        if not self.path.exists():
            with self.path.open("wb") as file:
                file.truncate(self._size)

    def read(self, wanted: Iterable[tuple[int, int, Row]]) -> None:
        try:
            with self.path.open("rb", buffering=0) as file:
                if os.fstat(file.fileno()).st_size != self._size:
                    raise StateError(f"{self.path} is damaged: it has not the size that {len(self._users)} users take.")
                for slot, position, row in wanted:
                    sealed = os.pread(file.fileno(), self._record, self._offset(slot, position))
                    content = self._seal.open(sealed, self._owner(position), self.path)
                    row[:] = np.frombuffer(content, dtype=np.float32).reshape(self._shape)
        except OSError as error:
            raise StateError(f"{self.path} cannot be read ({error}).") from None

    def write(self, rows: Iterable[tuple[int, int, Row]], durable: bool) -> None:
        with self.path.open("r+b", buffering=0) as file:
            for slot, position, row in rows:
                sealed = self._seal.close(row.tobytes(), self._owner(position))
                _write(file.fileno(), memoryview(sealed), self._offset(slot, position))
            if durable:
                os.fsync(file.fileno())

    @property
    def _size(self) -> int:
        return SLOTS * len(self._users) * self._record

    def _offset(self, slot: int, position: int) -> int:
        return (slot * len(self._users) + position) * self._record

    def _owner(self, position: int) -> str:
        return f"{self._belongs_to}/{int(self._users[position]):016x}"


def _write(file: int, data: memoryview, offset: int) -> None:
    """Write all of it: a disk that is nearly full takes a part of a row, and refuses only the rest."""
    while data:
        done = os.pwrite(file, data, offset)
        data, offset = data[done:], offset + done
