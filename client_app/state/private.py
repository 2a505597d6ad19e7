"""Private state on disk: what a node knows about its users and never sends.

Flower keeps a node's context in memory only, and a simulation hands a node's messages to whichever process is
free, so private arrays live in files: one `.npy` file per array with three versions of every user, and a small
index that says which round each version belongs to. A version becomes visible when the index is replaced, after
its values are written; a process that is killed in between leaves the older versions whole.

The server says which version it goes on from (`bouquet.wire`). Three are what that takes: the one that the server can
come back to, the one that the newest started from, and the newest.

Of common tables of which every user has a version of its own, only the rows that training touched are kept, and which
common tables the others are from (`client_app.state.base_tables`). Private tables can be kept by rows, too, in versions
that share what has not changed (`client_app.state.kept_rows`): a row that no training has touched is its initial value,
which is drawn again whenever it is wanted. A folder goes on as it was begun.

With a key, rows and index are sealed (`bouquet.sealing`) in files of their own; state from before the key was given is
taken over with the first write.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Arrays, Specs
from bouquet.errors import StateError
from bouquet.files import private_folder
from bouquet.ragged import Ragged
from bouquet.randomness import Words
from bouquet.row_batches import RowBatch
from bouquet.row_files import SLOTS, PlainRows, Rows, SealedRows
from bouquet.sealing import Seal
from client_app.state.base_tables import Origins
from client_app.state.checksums import BY_FORMAT
from client_app.state.index import OWN, PLAIN, SEALED, Index, read_index, write_index
from client_app.state.kept_rows import PIECES, KeptRows
from client_app.state.pieces import Pieces
from client_app.state.row_overrides import OwnRows, stored

Values = dict[str, NDArray[np.float32]]
Initial = Callable[[str, NDArray[np.int64]], NDArray[np.float32]]
InitialRows = Callable[[str, NDArray[np.int64], Ragged], NDArray[np.float32]]


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
        by_rows: the private arrays, by item, of which a new folder keeps the rows that training has touched.
        initial_rows: (name, positions [k], rows of items [k]) -> [nnz, …], those rows of what `initial` gives.
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
        by_rows: Collection[str] = (),
        initial_rows: InitialRows | None = None,
    ) -> None:
        self.folder, self.series, self.users, self.specs = folder, series, users, dict(sorted(specs.items()))
        self._initial, self._initial_rows = initial, initial_rows or _rows_of_whole(initial)
        self._durable, self._seal = durable, seal
        self._tuned = dict(sorted((tuned or {}).items()))
        self._origins = Origins(folder, series, durable, seal)
        self._written = False
        if not seal and (sealed := self.folder / SEALED).exists():
            raise StateError(f"{sealed} is encrypted; give this node its key.")
        plain, path = self.folder / PLAIN, self.folder / (SEALED if seal else PLAIN)
        taken_over = bool(seal) and not path.exists() and plain.exists()  # written before this node had a key
        begun = plain if taken_over else path
        found = read_index(begun, None if taken_over else seal, self._belongs_to("index")) if begun.exists() else None
        self.by_rows = frozenset(self.specs) & (found.by_rows if found else frozenset(by_rows))
        self._shapes = {name: spec.shape for name, spec in self.specs.items() if name not in self.by_rows}
        of_rows = [OWN] if self._tuned else []
        if self._tuned:
            num_items = next(iter(self._tuned.values())).shape[0]
            self._shapes[OWN] = (num_items + sum(spec.size for spec in self._tuned.values()),)
        in_pieces = sorted(self.by_rows)
        if found:
            self._index = found.taken(series, users, self._shapes, of_rows, in_pieces)
        else:
            self._index = Index.empty(SLOTS, users, len(self._shapes), of_rows, in_pieces)
        self._rows = {name: self._rows_of(name, seal) for name in self._shapes}
        self._checksums = BY_FORMAT[self._index.form]
        self._kept = {name: self._kept_rows(name, self._index.pieces[name], seal) for name in in_pieces}
        if taken_over:
            self._take_over()

    def read(
        self, positions: NDArray[np.int64], versions: NDArray[np.int64], but: Collection[str] = (),
        only: Ragged | None = None,
    ) -> Values:  # fmt: skip
        """The values of given versions.

        Args:
            positions: [k] which of the users.
            versions: [k] the round that each user's version was written in; 0: the initial values.
            but: names of arrays that are not wanted.
            only: [k] rows that are wanted of tables that are kept by rows, whose other rows may then be zeros.
        Returns:
            name -> [k, …] float32.
        Raises:
            StateError: a version is missing or damaged.
        """
        places = self._places(positions)
        slots, known = self._slots(places, versions)
        values = {}
        for name in self.specs:
            if name in but:
                continue
            if name in self.by_rows:
                values[name] = self._table(name, positions, slots, known, only)
                continue
            values[name] = np.empty((len(positions), *self.specs[name].shape), dtype=np.float32)
            if not known.all():
                values[name][~known] = self._initial(name, positions[~known])
            self._read(name, slots, places, RowBatch.whole(values[name]), known)
        return values

    def newest(self) -> NDArray[np.int64]:
        """[K] the round of each user's newest version; 0: it has none."""
        rounds = self._index.rounds.max(axis=0).astype(np.int64)
        return np.asarray(rounds[self._index.places(self.users)])

    def origins(self, positions: NDArray[np.int64], versions: NDArray[np.int64]) -> Words:
        """[k] the common tables that the users' own versions are from, for `origin`; 0: a user has none. As `read`."""
        places = self._places(positions)
        slots, known = self._slots(places, versions)
        return np.where(known, self._index.started[slots, places], np.uint64(0))

    def origin(self, digest: np.uint64) -> Arrays:
        """Common tables that own versions are from.

        Raises:
            StateError: they are missing or damaged.
        """
        return self._origins.read(digest)

    def own_rows(self, positions: NDArray[np.int64], versions: NDArray[np.int64]) -> OwnRows:
        """The rows in which the users' own versions of common tables differ from these. As `read`."""
        places = self._places(positions)
        slots, known = self._slots(places, versions)
        lengths = np.where(known, self._index.touched[OWN][slots, places], 0)
        rows = Ragged.from_lengths(lengths, np.empty(lengths.sum(), np.int32))
        width = {name: spec.shape[1:] for name, spec in self._tuned.items()}
        found = OwnRows(rows, {name: np.empty((len(rows.values), *width[name]), np.float32) for name in width})
        self._read(OWN, slots, places, stored(found), known)
        return found

    def _table(
        self, name: str, positions: NDArray[np.int64], slots: NDArray[np.int64], known: NDArray[np.bool_],
        only: Ragged | None,
    ) -> NDArray[np.float32]:  # fmt: skip
        """[k, m, …] a table that is kept by rows: the initial one, or `only` some rows of it, and what was touched."""
        if only is None:
            values = np.empty((len(positions), *self.specs[name].shape), dtype=np.float32)
            values[:] = self._initial(name, positions)
        else:
            values = np.zeros((len(positions), *self.specs[name].shape), dtype=np.float32)
            values[only.row_of_value, only.values] = self._initial_rows(name, positions, only)
        self._kept[name].read(self._places(positions), slots, known).put(name, values)
        return values

    def _places(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """[k] where these users stand in index and files."""
        return self._index.places(self.users[positions])

    def _slots(
        self, places: NDArray[np.int64], versions: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """[k] where each version is, and whether there is one to read: initial values are not stored."""
        here, known = self._index.rounds[:, places] == versions, versions > 0
        if (lost := known & ~here.any(axis=0)).any():
            first = int(np.flatnonzero(lost)[0])
            user = int(self._index.users[places[first]])
            raise StateError(
                f"The private state of user {user:016x} is missing in {self.folder}: the server goes on from round "
                f"{int(versions[first])}."
            )
        return here.argmax(axis=0), known

    def _read(
        self, name: str, slots: NDArray[np.int64], places: NDArray[np.int64], rows: RowBatch,
        known: NDArray[np.bool_],
    ) -> None:  # fmt: skip
        """Read versions of one array into the rows of the users who have any."""
        which = np.flatnonzero(known)
        if not len(which):
            return
        file, expected = self._rows[name], self._index.checksums[list(self._shapes).index(name)][slots, places]

        def check(some: NDArray[np.int64]) -> None:
            unfit = self._checksums(rows, some) != expected[some]
            if unfit.any():
                user = int(self._index.users[places[some[unfit.argmax()]]])
                raise StateError(f"{file.path} is damaged: a checksum of user {user:016x} does not fit.")

        file.read_batch(slots[which], places[which], which, rows, check)

    def write(
        self, positions: NDArray[np.int64], round_: int, versions: NDArray[np.int64], kept: NDArray[np.int64],
        values: Values, started: Arrays | None = None, own_rows: OwnRows | None = None, touched: Ragged | None = None,
    ) -> None:  # fmt: skip
        """Write a version of some users; it counts after `commit`.

        Args:
            positions: [k] which of the users.
            round_: the round whose training ended with these values.
            versions, kept: [k] the versions that training started from and those of the server's last checkpoint; both
                stay, and all others give way.
            values: name -> [k, …].
            started: the common tables that the users' own versions are from.
            own_rows: the rows in which these differ.
            touched: [k] the rows that this training touched of tables that are kept by rows; wanted where there are
                any. Other rows have to be those of `versions`, as `read` gave them.
        """
        self._prepare()
        places = self._places(positions)
        rounds = self._index.rounds[:, places]
        stays = (rounds > 0) & (rounds < round_) & ((rounds == versions) | (rounds == kept))
        slots = (~stays).argmax(axis=0)
        content = {
            name: RowBatch.whole(np.ascontiguousarray(values[name], dtype=np.float32))
            for name in self.specs
            if name not in self.by_rows
        }
        if own_rows is not None:
            content[OWN] = stored(own_rows)
            self._index.touched[OWN][slots, places] = own_rows.rows.lengths
            self._index.started[slots, places] = self._origins.keep(started or {})
        for name, kept_rows in self._kept.items():
            from_slots, known = self._slots(places, versions)
            assert touched is not None, "tables that are kept by rows are written by rows"
            kept_rows.write(places, slots, from_slots, known, values[name], touched, self._durable)
        for index, name in enumerate(self._shapes):
            self._write(index, name, slots, places, content[name])
        # What gave way must never be taken for another round's: a stopped run may have left the same numbers.
        self._index.rounds[:, places] = np.where(stays, rounds, 0)
        self._index.rounds[slots, places] = round_

    def _write(
        self, index: int, name: str, slots: NDArray[np.int64], places: NDArray[np.int64], rows: RowBatch
    ) -> None:
        """Write versions of one array, and note their checksums."""

        def note(some: NDArray[np.int64]) -> None:
            self._index.checksums[index, slots[some], places[some]] = self._checksums(rows, some)

        self._rows[name].write_batch(slots, places, np.arange(len(places)), rows, note, self._durable)

    def commit(self) -> None:
        """Make everything that was written since the last commit count, all at once; nothing, where nothing was."""
        if not self._written:
            return
        for kept in self._kept.values():
            kept.keep_only(self._index.rounds > 0)
        write_index(
            self.folder / (SEALED if self._seal else PLAIN), self._index, self.series, self._shapes, self._seal,
            self._belongs_to("index"), self._durable,
        )  # fmt: skip
        self._written = False
        for kept in self._kept.values():
            kept.committed()
        if self._tuned:
            self._origins.keep_only(np.unique(self._index.started[self._index.rounds > 0]))

    def _prepare(self) -> None:
        # The folder of the series too: what others may not open they need not see.
        private_folder(self.folder.parent)
        private_folder(self.folder)
        for rows in self._rows.values():
            rows.create()
        for kept in self._kept.values():
            kept.file.create()
        self._written = True

    def _rows_of(self, name: str, seal: Seal | None) -> Rows:
        shape = self._shapes[name]
        if seal:
            return SealedRows(self.folder / f"{name}.sealed", self._index.users, shape, seal, self._belongs_to(name))
        return PlainRows(self.folder / f"{name}.npy", len(self.users), shape)

    def _kept_rows(self, name: str, pieces: Pieces, seal: Seal | None) -> KeptRows:
        belongs_to = self._belongs_to(f"{name}{PIECES}")
        return KeptRows(self.folder, name, self.specs[name], self._index.users, pieces, seal, belongs_to)

    def _belongs_to(self, name: str) -> str:
        return f"{self.series}/{name}"

    def _take_over(self) -> None:
        """Seal what is there, and only then remove the plain files."""
        self._prepare()
        written = self._index.rounds > 0
        for name, shape in self._shapes.items():
            plain = self._rows_of(name, None)
            for slot, position in np.argwhere(written).tolist():
                filled = shape
                if name == OWN:
                    words = 1 + sum(spec.size // spec.shape[0] for spec in self._tuned.values())
                    filled = (self._index.touched[OWN][slot, position] * words,)
                self._rows[name].write(plain.read([(slot, position, (np.empty(filled, np.float32),))]), self._durable)
        plain_rows = {name: self._kept_rows(name, kept.pieces, None) for name, kept in self._kept.items()}
        for name, plain_kept in plain_rows.items():
            self._index.pieces[name] = Pieces.empty(SLOTS, len(self.users))
            self._kept[name] = self._kept_rows(name, self._index.pieces[name], self._seal)
            self._kept[name].take_over(plain_kept, self._durable)
        origins = Origins(self.folder, self.series, self._durable, None)
        for digest in np.unique(self._index.started[written & (self._index.started > 0)]):
            self._origins.keep(origins.read(digest))
        self.commit()
        origins.keep_only([])
        there = [kept.file.path for kept in plain_rows.values()]
        for path in [self.folder / PLAIN, *(self.folder / f"{name}.npy" for name in self._shapes), *there]:
            path.unlink()


def _rows_of_whole(initial: Initial) -> InitialRows:
    """Rows of initial values where nobody gives them without the others."""

    def rows_of(name: str, positions: NDArray[np.int64], rows: Ragged) -> NDArray[np.float32]:
        values = initial(name, positions)
        return values[rows.row_of_value if len(values) > 1 else 0, rows.values]

    return rows_of
