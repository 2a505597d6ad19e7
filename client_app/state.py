"""Private state on disk: what a node knows about its users and never sends.

Flower keeps a node's context in memory only, and a simulation hands a node's messages to whichever process is
free, so private arrays live in files: one `.npy` file per array with three versions of every user, and a small
index that says which round each version belongs to. A version becomes visible when the index is replaced, after
its values are written; a process that is killed in between leaves the older versions whole.

Three versions are what it takes to go back: the newest one up to the server's last checkpoint, the newest one of
all, and the one that is being written.

With a key, rows and index are sealed (`bouquet.sealing`) in files of their own; state from before the key was given is
taken over with the first write.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from bouquet.arrays import Specs
from bouquet.errors import StateError
from bouquet.files import write_atomically
from bouquet.randomness import Words
from bouquet.sealing import Seal
from client_app.rows import SLOTS, PlainRows, Row, Rows, SealedRows

_FORMAT = "2"
_INDEX, _SEALED_INDEX = "index.safetensors", "index.sealed"

# 64-bit words that a checksum adds up at a time: a prime number, so that no two pages of a file are alike to it.
_WORDS = 1021

Values = dict[str, NDArray[np.float32]]
Initial = Callable[[str, NDArray[np.int64]], NDArray[np.float32]]


class PrivateState:
    """The private arrays of the users of one node in one run series.

    Args:
        folder: where the files are; created when something is written.
        series: the run series that the state belongs to.
        users: [K] keys of the hosted users.
        specs: the private arrays, shapes for one user.
        initial: (name, positions [k]) -> [k, …], the values of users that have not trained yet.
        durable: force every version to the disk before it counts, for devices that can lose power.
        seal: encrypts everything; None: files are plain.
    Raises:
        StateError: the files are damaged, belong to other users, arrays or another series, or are encrypted and no key
            or another one is given.
    """

    def __init__(
        self,
        folder: Path,
        series: str,
        users: Words,
        specs: Specs,
        initial: Initial,
        durable: bool = False,
        seal: Seal | None = None,
    ) -> None:
        self.folder, self.series, self.users, self.specs = folder, series, users, dict(sorted(specs.items()))
        self._initial, self._durable, self._seal = initial, durable, seal
        self._rounds = np.zeros((SLOTS, len(users)), dtype=np.int32)
        self._checksums = np.zeros((len(self.specs), SLOTS, len(users)), dtype=np.uint32)
        self._rows = {name: self._rows_of(name, seal) for name in self.specs}
        if not seal and (sealed := self.folder / _SEALED_INDEX).exists():
            raise StateError(f"{sealed} is encrypted; give this node its key.")
        if self._index.exists():
            self._load_index(self._index, seal)
        elif seal and (plain := self.folder / _INDEX).exists():
            # Written before this node had a key.
            self._load_index(plain, None)
            self._take_over()

    @property
    def _index(self) -> Path:
        return self.folder / (_SEALED_INDEX if self._seal else _INDEX)

    def read(
        self, positions: NDArray[np.int64], before: int, trained: NDArray[np.bool_], but: Collection[str] = ()
    ) -> Values:
        """The newest values from before a round.

        Args:
            positions: [k] which of the users.
            before: versions of this round and later ones do not count.
            trained: [k] users that must have a version, because the server knows that they have trained.
            but: names of arrays that are not wanted.
        Returns:
            name -> [k, …] float32.
        Raises:
            StateError: a version is missing or damaged.
        """
        rounds = np.where(self._rounds[:, positions] < before, self._rounds[:, positions], 0)
        slots = rounds.argmax(axis=0)
        known = rounds.max(axis=0) > 0
        if (lost := trained & ~known).any():
            user = int(self.users[positions[np.flatnonzero(lost)[0]]])
            raise StateError(f"The private state of user {user:016x} is missing in {self.folder}.")
        values = {}
        for name in self.specs:
            if name in but:
                continue
            values[name] = np.empty((len(positions), *self.specs[name].shape), dtype=np.float32)
            if not known.all():
                values[name][~known] = self._initial(name, positions[~known])
            if known.any():
                places = [(int(slots[k]), int(positions[k]), values[name][k]) for k in np.flatnonzero(known)]
                self._rows[name].read(self._checked(name, places))
        return values

    def _checked(self, name: str, places: Sequence[tuple[int, int, Row]]) -> Iterator[tuple[int, int, Row]]:
        """The same; the checksum of each row is compared when the next one is asked for, and it is still at hand."""
        expected = self._checksums[list(self.specs).index(name)]
        for slot, position, row in places:
            yield slot, position, row
            if checksum(row) != expected[slot, position]:
                raise StateError(f"{self._rows[name].path} is damaged: a checksum does not fit.")

    def write(self, positions: NDArray[np.int64], round_: int, checkpoint_round: int, values: Values) -> None:
        """Write a version of some users; it counts after `commit`.

        Args:
            positions: [k] which of the users.
            round_: the round whose training ended with these values.
            checkpoint_round: the newest version up to this round is kept.
            values: name -> [k, …].
        """
        self._prepare()
        rounds = self._rounds[:, positions]
        columns = np.arange(len(positions))
        # Versions of this round or later are left over from a run that was stopped and resumed.
        rounds = np.where(rounds < round_, rounds, 0)
        kept = np.where(rounds <= checkpoint_round, rounds, 0).argmax(axis=0)
        newest = rounds.argmax(axis=0)
        free = np.ones(rounds.shape, dtype=bool)
        free[kept, columns] = free[newest, columns] = False
        slots = free.argmax(axis=0)
        for index, name in enumerate(self.specs):
            rows = np.ascontiguousarray(values[name], dtype=np.float32)
            self._rows[name].write(
                ((int(slots[k]), int(positions[k]), row) for k, row in enumerate(rows)), self._durable
            )
            self._checksums[index, slots, positions] = [checksum(row) for row in rows]
        stale = self._rounds[:, positions] >= round_
        self._rounds[:, positions] = np.where(stale, 0, self._rounds[:, positions])
        self._rounds[slots, positions] = round_

    def commit(self) -> None:
        """Make everything that was written since the last commit count, all at once."""
        arrays: dict[str, NDArray[Any]] = {"users": self.users, "rounds": self._rounds, "checksums": self._checksums}
        metadata = {"format": _FORMAT, "series": self.series, "arrays": ",".join(self.specs)}
        content = save(arrays, metadata)
        if self._seal:
            content = self._seal.close(content, self._belongs_to("index"))
        write_atomically(self._index, content, durable=self._durable)

    def _prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for rows in self._rows.values():
            rows.create()

    def _rows_of(self, name: str, seal: Seal | None) -> Rows:
        shape = self.specs[name].shape
        if seal:
            return SealedRows(self.folder / f"{name}.sealed", self.users, shape, seal, self._belongs_to(name))
        return PlainRows(self.folder / f"{name}.npy", len(self.users), shape)

    def _belongs_to(self, name: str) -> str:
        return f"{self.series}/{name}"

    def _take_over(self) -> None:
        """Seal what is there, and only then remove the plain files."""
        self._prepare()
        for name in self.specs:
            plain = self._rows_of(name, None)
            for slot, position in np.argwhere(self._rounds > 0).tolist():
                row = (slot, position, np.empty(self.specs[name].shape, np.float32))
                plain.read([row])
                self._rows[name].write([row], self._durable)
        self.commit()
        for path in [self.folder / _INDEX, *(self.folder / f"{name}.npy" for name in self.specs)]:
            path.unlink()

    def _load_index(self, path: Path, seal: Seal | None) -> None:
        try:
            content = path.read_bytes()
            if seal:
                content = seal.open(content, self._belongs_to("index"), path)
            metadata, arrays = metadata_of(content), load(content)
        except (OSError, ValueError, SafetensorError) as error:
            raise StateError(f"{path} is damaged and cannot be read ({error}).") from None
        expected = {"format": _FORMAT, "series": self.series, "arrays": ",".join(self.specs)}
        for key, value in expected.items():
            if metadata.get(key) != value:
                raise StateError(f"{path} has {key} '{metadata.get(key)}' where '{value}' is expected.")
        if not np.array_equal(arrays["users"], self.users):
            raise StateError(f"{path} belongs to other users than the {len(self.users)} hosted here.")
        self._rounds, self._checksums = arrays["rounds"].copy(), arrays["checksums"].copy()


def checksum(row: NDArray[np.float32]) -> int:
    """CRC-32 of a row; of a long one that of sums of its words, which takes a tenth of the time.

    The sums wrap around and say where a word was but for the row of `_WORDS` that it stood in, so that one damaged
    word, or a page that was never written, is always seen.
    """
    flat = row.reshape(-1)
    rows = len(flat) // (2 * _WORDS)
    if rows < 4:
        return zlib.crc32(flat.data)
    words = flat[: 2 * _WORDS * rows].view(np.uint64).reshape(rows, _WORDS)
    return zlib.crc32(flat[2 * _WORDS * rows :].data, zlib.crc32(np.add.reduce(words, axis=0).data))


def metadata_of(content: bytes) -> dict[str, str]:
    """The metadata of a safetensors file that is in memory.

    Raises:
        ValueError: it has none that can be read.
    """
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    return dict(header.get("__metadata__", {}))
