"""A file of pieces of rows, plain or sealed, anywhere in which a piece can lie."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bouquet.errors import StateError
from bouquet.files import open_private
from bouquet.randomness import Words
from bouquet.row_files import Row, checksum, write_all
from bouquet.sealing import OVERHEAD, Seal

# Pieces that follow one another in the file are written together, up to so many.
_TOGETHER = 256


class PieceFile:
    """Pieces, each the item numbers (int32) of its rows and then the rows.

    Args:
        path: of the file.
        users: [K] keys of the users; a piece belongs to its user.
        row_bytes: of a row and its item number.
        seal: encrypts every piece; None: they are plain.
        belongs_to: authenticated with every sealed piece.
    """

    def __init__(self, path: Path, users: Words, row_bytes: int, seal: Seal | None, belongs_to: str) -> None:
        self.path, self._users, self._row_bytes = path, users, row_bytes
        self._seal, self._belongs_to = seal, belongs_to

    def create(self) -> None:
        """Make the file if it is not there."""
        if not self.path.exists():
            open_private(self.path).close()

    def sizes(self, lengths: NDArray[np.integer]) -> NDArray[np.int64]:
        """[k] bytes of pieces of so many rows."""
        return lengths.astype(np.int64) * self._row_bytes + OVERHEAD * bool(self._seal)

    def read(
        self, offsets: NDArray[np.int64], positions: NDArray[np.int64], pieces: Sequence[Row],
        checksums: NDArray[np.uint32],
    ) -> None:  # fmt: skip
        """Fill pieces with what lies at these offsets of the users at these positions.

        Raises:
            StateError: the file is missing or damaged, or sealed with another key.
        """
        if not len(pieces):
            return
        try:
            with self.path.open("rb", buffering=0) as file:
                places = zip(offsets.tolist(), positions.tolist(), pieces, checksums.tolist(), strict=True)
                for offset, position, piece, expected in places:
                    if self._seal:
                        self._read_sealed(file.fileno(), offset, position, piece)
                    else:
                        found = os.preadv(file.fileno(), [part.data for part in piece], offset)
                        if found != sum(part.nbytes for part in piece):
                            raise StateError(f"{self.path} is damaged: it ends before its last piece.")
                    if checksum(piece) != expected:
                        raise StateError(f"{self.path} is damaged: a checksum does not fit.")
        except OSError as error:
            raise StateError(f"{self.path} cannot be read ({error}).") from None

    def write(
        self, offsets: NDArray[np.int64], positions: NDArray[np.int64], pieces: Sequence[Row], durable: bool
    ) -> None:  # fmt: skip
        """Put pieces at these offsets."""
        with self.path.open("r+b", buffering=0) as file:
            parts: list[memoryview] = []
            begin = end = 0
            for number in np.argsort(offsets).tolist():
                offset = int(offsets[number])
                if parts and (offset != end or len(parts) >= _TOGETHER):
                    write_all(file.fileno(), parts, begin)
                    parts = []
                if not parts:
                    begin = end = offset
                parts += self._parts(int(positions[number]), pieces[number])
                end = begin + sum(part.nbytes for part in parts)
            if parts:
                write_all(file.fileno(), parts, begin)
            if durable:
                os.fsync(file.fileno())

    def cut(self, end: int) -> None:
        """Give back what lies behind."""
        if self.path.exists() and self.path.stat().st_size > end:
            os.truncate(self.path, end)

    def _parts(self, position: int, piece: Row) -> list[memoryview]:
        if not self._seal:
            return [part.data for part in piece]
        return [memoryview(self._seal.close(b"".join(part.tobytes() for part in piece), self._owner(position)))]

    def _read_sealed(self, file: int, offset: int, position: int, piece: Row) -> None:
        assert self._seal is not None
        sealed = os.pread(file, OVERHEAD + sum(part.nbytes for part in piece), offset)
        values = np.frombuffer(self._seal.open(sealed, self._owner(position), self.path), np.float32)
        for part in piece:
            part[:] = values[: part.size].reshape(part.shape)
            values = values[part.size :]

    def _owner(self, position: int) -> str:
        return f"{self._belongs_to}/{int(self._users[position]):016x}"
