"""Private state on disk: what a node knows about its users and never sends.

Flower keeps a node's context in memory only, and a simulation hands a node's messages to whichever process is
free, so private arrays live in files: one `.npy` file per array with three versions of every user, and a small
index that says which round each version belongs to. A version becomes visible when the index is replaced, after
its values are written; a process that is killed in between leaves the older versions whole.

Three versions are what it takes to go back: the newest one up to the server's last checkpoint, the newest one of
all, and the one that is being written.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from bouquet.arrays import Specs
from bouquet.errors import StateError
from bouquet.files import write_atomically
from bouquet.randomness import Words

_FORMAT = "1"
_SLOTS = 3
_INDEX = "index.safetensors"

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
    Raises:
        StateError: the files are damaged, or belong to other users, arrays or another series.
    """

    def __init__(
        self, folder: Path, series: str, users: Words, specs: Specs, initial: Initial, durable: bool = False
    ) -> None:
        self.folder, self.series, self.users, self.specs = folder, series, users, dict(sorted(specs.items()))
        self._initial, self._durable = initial, durable
        self._rounds = np.zeros((_SLOTS, len(users)), dtype=np.int32)
        self._checksums = np.zeros((len(self.specs), _SLOTS, len(users)), dtype=np.uint32)
        if self._index.exists():
            self._load_index()

    @property
    def _index(self) -> Path:
        return self.folder / _INDEX

    def read(self, positions: NDArray[np.int64], before: int, trained: NDArray[np.bool_]) -> Values:
        """The newest values from before a round.

        Args:
            positions: [k] which of the users.
            before: versions of this round and later ones do not count.
            trained: [k] users that must have a version, because the server knows that they have trained.
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
        for index, name in enumerate(self.specs):
            values[name] = np.empty((len(positions), *self.specs[name].shape), dtype=np.float32)
            if not known.all():
                values[name][~known] = self._initial(name, positions[~known])
            if known.any():
                stored = self._open(name)
                for k in np.flatnonzero(known):
                    row = stored[slots[k], positions[k]]
                    if zlib.crc32(row.tobytes()) != self._checksums[index, slots[k], positions[k]]:
                        raise StateError(f"{self._path(name)} is damaged: a checksum does not fit.")
                    values[name][k] = row
        return values

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
            stored = self._open(name)
            offset, size = int(stored.offset), rows[0].nbytes
            with self._path(name).open("r+b", buffering=0) as file:
                for k, row in enumerate(rows):
                    # Plain writes, not a writable map: a full disk is then an error and not a killed process.
                    os.pwrite(file.fileno(), row, offset + (int(slots[k]) * len(self.users) + int(positions[k])) * size)
                    self._checksums[index, slots[k], positions[k]] = zlib.crc32(row)
                if self._durable:
                    os.fsync(file.fileno())
        stale = self._rounds[:, positions] >= round_
        self._rounds[:, positions] = np.where(stale, 0, self._rounds[:, positions])
        self._rounds[slots, positions] = round_

    def commit(self) -> None:
        """Make everything that was written since the last commit count, all at once."""
        arrays: dict[str, NDArray[Any]] = {"users": self.users, "rounds": self._rounds, "checksums": self._checksums}
        metadata = {"format": _FORMAT, "series": self.series, "arrays": ",".join(self.specs)}
        write_atomically(self._index, save(arrays, metadata), durable=self._durable)

    def _prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for name, spec in self.specs.items():
            if not self._path(name).exists():
                shape = (_SLOTS, len(self.users), *spec.shape)
                np.lib.format.open_memmap(self._path(name), mode="w+", dtype=np.float32, shape=shape)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.npy"

    def _open(self, name: str) -> np.memmap[Any, Any]:
        shape = (_SLOTS, len(self.users), *self.specs[name].shape)
        try:
            stored: np.memmap[Any, Any] = np.lib.format.open_memmap(self._path(name), mode="r")
        except (OSError, ValueError) as error:
            raise StateError(f"{self._path(name)} cannot be read ({error}).") from None
        if stored.shape != shape or stored.dtype != np.float32:
            raise StateError(f"{self._path(name)} holds {list(stored.shape)} values where {list(shape)} are expected.")
        return stored

    def _load_index(self) -> None:
        try:
            with safe_open(self._index, framework="numpy") as file:
                metadata = file.metadata() or {}
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise StateError(f"{self._index} is damaged and cannot be read ({error}).") from None
        expected = {"format": _FORMAT, "series": self.series, "arrays": ",".join(self.specs)}
        for key, value in expected.items():
            if metadata.get(key) != value:
                raise StateError(f"{self._index} has {key} '{metadata.get(key)}' where '{value}' is expected.")
        if not np.array_equal(arrays["users"], self.users):
            raise StateError(f"{self._index} belongs to other users than the {len(self.users)} hosted here.")
        self._rounds, self._checksums = arrays["rounds"].copy(), arrays["checksums"].copy()
