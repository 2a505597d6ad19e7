"""Files of rows, [slots, users, …] float32, that are read and replaced one by one: plain, or sealed.

A row has a place of fixed size and may fill the first part of it only: what was never written takes no disk.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bouquet.errors import StateError
from bouquet.files import open_private
from bouquet.row_batches import Indices, RowBatch, Seen, groups
from bouquet.sealing import OVERHEAD, Seal

SLOTS = 3

# 64-bit words that a checksum adds up at a time: a prime number, so that no two pages of a file are alike to it.
_WORDS = 1021

# Rows that follow one another in the file are read and written together, up to so many bytes and rows.
_RUN_BYTES, _RUN_ROWS = 2**17, 512

Row = tuple[NDArray[np.float32], ...]
"""Values that lie in memory in one part or in several, and in the file one after another."""

Place = tuple[int, int, Row]
"""A version of one user's row: slot, position, values."""


class Rows(Protocol):
    """One private array of all hosted users, in SLOTS versions."""

    path: Path

    def create(self) -> None:
        """Make the file if it is not there."""

    def read(self, wanted: Iterable[Place]) -> Iterator[Place]:
        """Read versions, each into its row and as much as that holds; gives each as soon as it is there.

        Raises:
            StateError: the file is missing, damaged, of another shape, or sealed with another key.
        """

    def write(self, rows: Iterable[Place], durable: bool) -> None:
        """Replace versions."""

    def read_batch(self, slots: Indices, positions: Indices, which: Indices, rows: RowBatch, seen: Seen) -> None:
        """Read the rows `which` [k] of a batch from where they lie, slots and positions [k]; raises as `read`."""

    def write_batch(
        self, slots: Indices, positions: Indices, which: Indices, rows: RowBatch, seen: Seen, durable: bool
    ) -> None:
        """Replace versions by the rows `which` of a batch, as for `read_batch`."""


class PlainRows:
    """A `.npy` file, as numpy reads and maps it.

    Args:
        path: of the file.
        users: how many.
        shape: of one row, or of the longest.
        slots: how many versions there is room for of each.
    """

    def __init__(self, path: Path, users: int, shape: tuple[int, ...], slots: int = SLOTS) -> None:
        self.path, self._shape = path, (slots, users, *shape)
        self._row_bytes = 4 * int(np.prod(shape))
        self._offset_of_rows: int | None = None

    def create(self) -> None:
        if not self.path.exists():
            header = self._header()
            with open_private(self.path) as file:
                file.write(header)
                file.truncate(len(header) + self._shape[0] * self._shape[1] * self._row_bytes)

    def read(self, wanted: Iterable[Place]) -> Iterator[Place]:
        # Read, not mapped: memory that is used again and again is faster than pages that are mapped anew.
        start = self._begin()
        with self.path.open("rb", buffering=0) as file:
            for run in self._runs(wanted):
                parts = [part.data for _, _, row in run for part in row]
                if os.preadv(file.fileno(), parts, self._offset(start, *run[0][:2])) != sum(
                    part.nbytes for part in parts
                ):
                    raise StateError(f"{self.path} is damaged: it ends before its last row.")
                yield from run

    def write(self, rows: Iterable[Place], durable: bool) -> None:
        start = self._begin()
        with self.path.open("r+b", buffering=0) as file:
            for run in self._runs(rows):
                # Plain writes, not a writable map: a full disk is then an error and not a killed process.
                write_all(
                    file.fileno(), [part.data for _, _, row in run for part in row], self._offset(start, *run[0][:2])
                )
            if durable:
                os.fsync(file.fileno())

    def read_batch(self, slots: Indices, positions: Indices, which: Indices, rows: RowBatch, seen: Seen) -> None:
        start = self._begin()
        with self.path.open("rb", buffering=0) as file:
            number = file.fileno()
            for some, runs in groups(slots, positions, which, rows, self._row_bytes):
                for slot, position, views, nbytes in runs:
                    if os.preadv(number, views, self._offset(start, slot, position)) != nbytes:
                        raise StateError(f"{self.path} is damaged: it ends before its last row.")
                seen(some)

    def write_batch(
        self, slots: Indices, positions: Indices, which: Indices, rows: RowBatch, seen: Seen, durable: bool
    ) -> None:
        start = self._begin()
        with self.path.open("r+b", buffering=0) as file:
            number = file.fileno()
            for some, runs in groups(slots, positions, which, rows, self._row_bytes):
                seen(some)
                for slot, position, views, nbytes in runs:
                    write_all(number, views, self._offset(start, slot, position), nbytes)
            if durable:
                os.fsync(number)

    def sync(self) -> None:
        """Force what was written to the disk."""
        with self.path.open("r+b", buffering=0) as file:
            os.fsync(file.fileno())

    def clear_from(self, position: int) -> None:
        """Make zeros, which take no disk, of all rows of the last version from this position on.

        Also of a file that a killed process has left too short there.
        """
        end = len(self._header()) + self._shape[0] * self._shape[1] * self._row_bytes
        with self.path.open("r+b", buffering=0) as file:
            file.truncate(end - (self._shape[1] - position) * self._row_bytes)
            file.truncate(end)

    def _header(self) -> bytes:
        written = BytesIO()
        header = {"descr": "<f4", "fortran_order": False, "shape": self._shape}
        np.lib.format.write_array_header_1_0(written, header)
        return written.getvalue()

    def _runs(self, places: Iterable[Place]) -> Iterator[list[Place]]:
        """Versions that follow one another in the file."""
        run: list[Place] = []
        longest = min(_RUN_ROWS, 1 + _RUN_BYTES // self._row_bytes)
        for place in places:
            if run:
                slot, position, row = run[-1]
                whole = len(row) == 1 and row[0].nbytes == self._row_bytes
                if not whole or len(run) == longest or place[:2] != (slot, position + 1):
                    yield run
                    run = []
            run.append(place)
        if run:
            yield run

    def _offset(self, start: int, slot: int, position: int) -> int:
        return start + (slot * self._shape[1] + position) * self._row_bytes

    def _begin(self) -> int:
        """Where the first row begins."""
        if self._offset_of_rows is None:
            try:
                stored: np.memmap[Any, Any] = np.lib.format.open_memmap(self.path, mode="r")
            except Exception as error:  # numpy hands a damaged header to Python's own parser
                raise StateError(f"{self.path} cannot be read ({error}).") from None
            if stored.shape != self._shape or stored.dtype != np.float32:
                found, expected = list(stored.shape), list(self._shape)
                raise StateError(f"{self.path} holds {found} values where {expected} are expected.")
            self._offset_of_rows = int(stored.offset)
        return self._offset_of_rows


class SealedRows:
    """A file of sealed rows; a row that was never written is zeros, which no key opens.

    Args:
        path: of the file.
        users: [K] keys of the users; a row belongs to its user.
        shape: of one row, or of the longest.
        seal: the node's key.
        belongs_to: authenticated with every row.
    """

    def __init__(
        self, path: Path, users: NDArray[np.uint64], shape: tuple[int, ...], seal: Seal, belongs_to: str
    ) -> None:
        self.path, self._users = path, users
        self._seal, self._belongs_to = seal, belongs_to
        self._record = 4 * int(np.prod(shape)) + OVERHEAD

    def create(self) -> None:
        if not self.path.exists():
            with open_private(self.path) as file:
                file.truncate(self._size)

    def read(self, wanted: Iterable[Place]) -> Iterator[Place]:
        try:
            with self.path.open("rb", buffering=0) as file:
                if os.fstat(file.fileno()).st_size != self._size:
                    raise StateError(f"{self.path} is damaged: it has not the size that {len(self._users)} users take.")
                for slot, position, row in wanted:
                    size = OVERHEAD + sum(part.nbytes for part in row)
                    sealed = os.pread(file.fileno(), size, self._offset(slot, position))
                    values = np.frombuffer(self._seal.open(sealed, self._owner(position), self.path), np.float32)
                    for part in row:
                        part[:] = values[: part.size].reshape(part.shape)
                        values = values[part.size :]
                    yield slot, position, row
        except OSError as error:
            raise StateError(f"{self.path} cannot be read ({error}).") from None

    def write(self, rows: Iterable[Place], durable: bool) -> None:
        with self.path.open("r+b", buffering=0) as file:
            for slot, position, row in rows:
                sealed = self._seal.close(b"".join(part.tobytes() for part in row), self._owner(position))
                write_all(file.fileno(), [memoryview(sealed)], self._offset(slot, position))
            if durable:
                os.fsync(file.fileno())

    def read_batch(self, slots: Indices, positions: Indices, which: Indices, rows: RowBatch, seen: Seen) -> None:
        for _ in self.read(in_order(slots, positions, [rows.row(k) for k in which.tolist()])):
            pass
        seen(which)

    def write_batch(
        self, slots: Indices, positions: Indices, which: Indices, rows: RowBatch, seen: Seen, durable: bool
    ) -> None:
        seen(which)
        self.write(in_order(slots, positions, [rows.row(k) for k in which.tolist()]), durable)

    @property
    def _size(self) -> int:
        return SLOTS * len(self._users) * self._record

    def _offset(self, slot: int, position: int) -> int:
        return (slot * len(self._users) + position) * self._record

    def _owner(self, position: int) -> str:
        return f"{self._belongs_to}/{int(self._users[position]):016x}"


def write_all(file: int, parts: Sequence[memoryview], offset: int, nbytes: int | None = None) -> None:
    """Write all of it: a disk that is nearly full takes a part of what it is given, and refuses only the rest."""
    done = os.pwritev(file, parts, offset)
    if done < (sum(part.nbytes for part in parts) if nbytes is None else nbytes):
        whole = memoryview(b"".join(parts))
        while done < len(whole):
            done += os.pwrite(file, whole[done:], offset + done)


def in_order(slots: NDArray[np.int64], positions: NDArray[np.int64], rows: Sequence[Row]) -> list[Place]:
    """Versions in the order of the file, so that neighbours are read and written together."""
    order = np.lexsort((positions, slots)).tolist()
    at, whose = slots.tolist(), positions.tolist()
    return [(at[k], whose[k], rows[k]) for k in order]


def checksum(row: Row) -> int:
    """CRC-32 of a row; of a long part that of sums of its words, which takes a tenth of the time.

    The sums wrap around and say where a word was but for the row of `_WORDS` that it stood in, so that one damaged
    word, or a page that was never written, is always seen.
    """
    found = 0
    for part in row:
        flat = part.reshape(-1)
        rows = len(flat) // (2 * _WORDS)
        if rows >= 4:
            words = flat[: 2 * _WORDS * rows].view(np.uint64).reshape(rows, _WORDS)
            found = zlib.crc32(np.add.reduce(words, axis=0).data, found)
            flat = flat[2 * _WORDS * rows :]
        found = zlib.crc32(flat.data, found)
    return found
