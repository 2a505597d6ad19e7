"""Private state on disk: what a node knows about its users and never sends.

Flower keeps a node's context in memory only, and a simulation hands a node's messages to whichever process is
free, so private arrays live in files: one `.npy` file per array with three versions of every user, and a small
index that says which round each version belongs to. A version becomes visible when the index is replaced, after
its values are written; a process that is killed in between leaves the older versions whole.

Three versions are what it takes to go back: the newest one up to the server's last checkpoint, the newest one of
all, and the one that is being written.

Of common tables of which every user has a version of its own, only the rows that training touched are kept, and which
common tables the others are from (`client_app.origins`).

With a key, rows and index are sealed (`bouquet.sealing`) in files of their own; state from before the key was given is
taken over with the first write.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from bouquet.arrays import Arrays, Specs
from bouquet.errors import StateError
from bouquet.files import write_atomically
from bouquet.ragged import Ragged
from bouquet.randomness import Words
from bouquet.sealing import Seal
from client_app.origins import Origins
from client_app.own_rows import OwnRows
from client_app.rows import SLOTS, Place, PlainRows, Row, Rows, SealedRows, checksum

_FORMAT = "2"
_INDEX, _SEALED_INDEX = "index.safetensors", "index.sealed"

# The file of own rows of common tables: which items, int32 among float32, and their rows in each of the tables.
_OWN = "own_rows"

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
        tuned: the common tables, by item, of which every user has a version of its own.
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
        tuned: Specs | None = None,
    ) -> None:
        self.folder, self.series, self.users, self.specs = folder, series, users, dict(sorted(specs.items()))
        self._initial, self._durable, self._seal = initial, durable, seal
        self._tuned = dict(sorted((tuned or {}).items()))
        self._shapes = {name: spec.shape for name, spec in self.specs.items()}
        if tuned:
            num_items = next(iter(tuned.values())).shape[0]
            self._shapes[_OWN] = (num_items + sum(spec.size for spec in tuned.values()),)
        self._rounds = np.zeros((SLOTS, len(users)), dtype=np.int32)
        self._checksums = np.zeros((len(self._shapes), SLOTS, len(users)), dtype=np.uint32)
        self._touched = np.zeros((SLOTS, len(users)), dtype=np.int32)
        self._started = np.zeros((SLOTS, len(users)), dtype=np.uint64)
        self._origins = Origins(folder, series, durable, seal)
        self._rows = {name: self._rows_of(name, seal) for name in self._shapes}
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
        slots, known = self._newest(positions, before, trained)
        values = {}
        for name in self.specs:
            if name in but:
                continue
            values[name] = np.empty((len(positions), *self.specs[name].shape), dtype=np.float32)
            if not known.all():
                values[name][~known] = self._initial(name, positions[~known])
            self._read(name, slots, positions, [(row,) for row in values[name]], known)
        return values

    def origins(self, positions: NDArray[np.int64], before: int, trained: NDArray[np.bool_]) -> Words:
        """[k] the common tables that the users' own versions are from, for `origin`; 0: a user has none. As `read`."""
        slots, known = self._newest(positions, before, trained)
        return np.where(known, self._started[slots, positions], np.uint64(0))

    def origin(self, digest: np.uint64) -> Arrays:
        """Common tables that own versions are from.

        Raises:
            StateError: they are missing or damaged.
        """
        return self._origins.read(digest)

    def own_rows(self, positions: NDArray[np.int64], before: int, trained: NDArray[np.bool_]) -> OwnRows:
        """The rows in which the users' own versions of common tables differ from these. As `read`."""
        slots, known = self._newest(positions, before, trained)
        lengths = np.where(known, self._touched[slots, positions], 0)
        rows = Ragged.from_lengths(lengths, np.empty(lengths.sum(), np.int32))
        width = {name: spec.shape[1:] for name, spec in self._tuned.items()}
        found = OwnRows(rows, {name: np.empty((len(rows.values), *width[name]), np.float32) for name in width})
        self._read(_OWN, slots, positions, _stored(found), known)
        return found

    def _newest(
        self, positions: NDArray[np.int64], before: int, trained: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """[k] where the newest version from before a round is, and whether there is one."""
        rounds = np.where(self._rounds[:, positions] < before, self._rounds[:, positions], 0)
        known = rounds.max(axis=0) > 0
        if (lost := trained & ~known).any():
            user = int(self.users[positions[np.flatnonzero(lost)[0]]])
            raise StateError(f"The private state of user {user:016x} is missing in {self.folder}.")
        return rounds.argmax(axis=0), known

    def _read(
        self, name: str, slots: NDArray[np.int64], positions: NDArray[np.int64], rows: Sequence[Row],
        known: NDArray[np.bool_],
    ) -> None:  # fmt: skip
        """Read versions of one array into the rows of the users who have any."""
        if not known.any():
            return
        places = _in_order(slots[known], positions[known], [rows[k] for k in np.flatnonzero(known).tolist()])
        expected = self._checksums[list(self._shapes).index(name)]
        for slot, position, row in self._rows[name].read(places):
            if checksum(row) != expected[slot, position]:
                raise StateError(f"{self._rows[name].path} is damaged: a checksum does not fit.")

    def write(
        self, positions: NDArray[np.int64], round_: int, checkpoint_round: int, values: Values,
        started: Arrays | None = None, own_rows: OwnRows | None = None,
    ) -> None:  # fmt: skip
        """Write a version of some users; it counts after `commit`.

        Args:
            positions: [k] which of the users.
            round_: the round whose training ended with these values.
            checkpoint_round: the newest version up to this round is kept.
            values: name -> [k, …].
            started: the common tables that the users' own versions are from.
            own_rows: the rows in which these differ.
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
        stored: dict[str, list[Row]] = {
            name: [(row,) for row in np.ascontiguousarray(values[name], dtype=np.float32)] for name in self.specs
        }
        if own_rows is not None:
            stored[_OWN] = _stored(own_rows)
            self._touched[slots, positions] = own_rows.rows.lengths
            self._started[slots, positions] = self._origins.keep(started or {})
        for index, name in enumerate(self._shapes):
            self._rows[name].write(_in_order(slots, positions, stored[name]), self._durable)
            self._checksums[index, slots, positions] = [checksum(row) for row in stored[name]]
        stale = self._rounds[:, positions] >= round_
        self._rounds[:, positions] = np.where(stale, 0, self._rounds[:, positions])
        self._rounds[slots, positions] = round_

    def commit(self) -> None:
        """Make everything that was written since the last commit count, all at once."""
        arrays: dict[str, NDArray[Any]] = {"users": self.users, "rounds": self._rounds, "checksums": self._checksums}
        if self._tuned:
            arrays |= {"touched": self._touched, "origins": self._started}
        metadata = {"format": _FORMAT, "series": self.series, "arrays": ",".join(self._shapes)}
        content = save(arrays, metadata)
        if self._seal:
            content = self._seal.close(content, self._belongs_to("index"))
        write_atomically(self._index, content, durable=self._durable)
        if self._tuned:
            self._origins.keep_only(np.unique(self._started[self._rounds > 0]))

    def _prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for rows in self._rows.values():
            rows.create()

    def _rows_of(self, name: str, seal: Seal | None) -> Rows:
        shape = self._shapes[name]
        if seal:
            return SealedRows(self.folder / f"{name}.sealed", self.users, shape, seal, self._belongs_to(name))
        return PlainRows(self.folder / f"{name}.npy", len(self.users), shape)

    def _belongs_to(self, name: str) -> str:
        return f"{self.series}/{name}"

    def _take_over(self) -> None:
        """Seal what is there, and only then remove the plain files."""
        self._prepare()
        written = self._rounds > 0
        for name, shape in self._shapes.items():
            plain = self._rows_of(name, None)
            for slot, position in np.argwhere(written).tolist():
                words = 1 + sum(spec.size // spec.shape[0] for spec in self._tuned.values())
                filled = (self._touched[slot, position] * words,) if name == _OWN else shape
                self._rows[name].write(plain.read([(slot, position, (np.empty(filled, np.float32),))]), self._durable)
        origins = Origins(self.folder, self.series, self._durable, None)
        for digest in np.unique(self._started[written & (self._started > 0)]):
            self._origins.keep(origins.read(digest))
        self.commit()
        origins.keep_only([])
        for path in [self.folder / _INDEX, *(self.folder / f"{name}.npy" for name in self._shapes)]:
            path.unlink()

    def _load_index(self, path: Path, seal: Seal | None) -> None:
        try:
            content = path.read_bytes()
            if seal:
                content = seal.open(content, self._belongs_to("index"), path)
            metadata, arrays = metadata_of(content), load(content)
        except (OSError, ValueError, SafetensorError) as error:
            raise StateError(f"{path} is damaged and cannot be read ({error}).") from None
        expected = {"format": _FORMAT, "series": self.series, "arrays": ",".join(self._shapes)}
        for key, value in expected.items():
            if metadata.get(key) != value:
                raise StateError(f"{path} has {key} '{metadata.get(key)}' where '{value}' is expected.")
        if not np.array_equal(arrays["users"], self.users):
            raise StateError(f"{path} belongs to other users than the {len(self.users)} hosted here.")
        self._rounds, self._checksums = arrays["rounds"].copy(), arrays["checksums"].copy()
        if self._tuned:
            self._touched, self._started = arrays["touched"].copy(), arrays["origins"].copy()


def _in_order(slots: NDArray[np.int64], positions: NDArray[np.int64], rows: Sequence[Row]) -> list[Place]:
    """Versions in the order of the file, so that neighbours are read and written together."""
    order = np.lexsort((positions, slots)).tolist()
    at, whose = slots.tolist(), positions.tolist()
    return [(at[k], whose[k], rows[k]) for k in order]


def _stored(own_rows: OwnRows) -> list[Row]:
    """What is stored of each user's own rows: the item numbers as they are, and the rows of every table."""
    arrays = [own_rows.rows.values.view(np.float32), *(own_rows.values[name] for name in sorted(own_rows.values))]
    bounds = own_rows.rows.indptr.tolist()
    return [tuple(array[begin:end] for array in arrays) for begin, end in pairwise(bounds)]


def metadata_of(content: bytes) -> dict[str, str]:
    """The metadata of a safetensors file that is in memory.

    Raises:
        ValueError: it has none that can be read.
    """
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    return dict(header.get("__metadata__", {}))
