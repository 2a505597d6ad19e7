"""What the server keeps of single users, where that is much: rows in files, of those alone who have any.

All users start from the same row, and share it until one is given a row of its own. Rows lie at places in files that
grow, and a checkpoint says who is where: it is what `bouquet.row_files` and the nodes' private state are to each other,
with the checkpoint as the index. A place that the last checkpoint names is not written again before the next one is
there; so a server that is killed goes back to rows that are whole, and those that came after them have never happened.

Only what is read is in memory.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Array, Arrays
from bouquet.errors import StateError
from bouquet.files import private_folder
from bouquet.needs import trained_at_least
from bouquet.row_files import PlainRows, checksum

# A file has room for so many bytes of rows and for so many rows; what is not written of it takes no disk.
_FILE_BYTES, _FILE_ROWS = 2**28, 2**16

Indices = NDArray[np.int64]


class UserRows:
    """One kind of rows: for each of n users one row of every array.

    Args:
        folder: where the files are; made with the first row.
        kind: what a checkpoint calls them.
        initial: name -> […], float32, what every user starts from.
        count: n.
    Attributes:
        places: [n] where each user's rows are; 0: at those that all start from.
    """

    def __init__(self, folder: Path, kind: str, initial: Arrays, count: int) -> None:
        self._folder, self._kind, self._initial = folder / kind, kind, initial
        self._files = {name: _Files(self._folder, name, values.shape) for name, values in initial.items()}
        self.places = np.zeros(count, np.int64)
        self._checksums = {name: np.zeros(count, np.uint32) for name in initial}
        # By user: whether this process has written or checked it.
        self._checked = {name: np.zeros(count, bool) for name in initial}
        self._kept: Indices = np.zeros(0, np.int64)
        # By place: whether something lies there that was somebody's.
        self._filled = np.zeros(1, bool)
        self._begun = self._forgetting = False

    @property
    def there(self) -> NDArray[np.bool_]:
        """[n] who has rows of its own."""
        return self.places > 0

    def to_change(self, name: str, users: Indices) -> Array:
        """As `read`, to be changed in place and then given to `write`."""
        return self.read(name, users)

    def room(self, name: str, users: Indices) -> Array:
        """[k, …] room for other rows, whatever stands in it, then to be given to `write`: their rows may be lost."""
        return np.empty((len(users), *self._initial[name].shape), np.float32)

    def read(self, name: str, users: Indices) -> Array:
        """The rows of these users in one array, [k, …]; not to be changed.

        Raises:
            StateError: a file is missing or damaged.
        """
        found = np.empty((len(users), *self._initial[name].shape), np.float32)
        places, flat = self.places[users], found.reshape(len(users), self._initial[name].size)
        found[places == 0] = self._initial[name]
        there = np.flatnonzero(places)
        self._files[name].read(places[there], [flat[k] for k in there.tolist()])
        for k in there[~self._checked[name][users[there]]].tolist():
            if checksum((flat[k],)) != self._checksums[name][users[k]]:
                raise StateError(f"{self._files[name].path_of(int(places[k]))} is damaged: a checksum does not fit.")
        self._checked[name][users[there]] = True
        return found

    def write(self, users: Indices, values: Mapping[str, Array]) -> None:
        """Give these users, each once, other rows: name -> [k, …], all arrays at once."""
        self._begin()
        places = self.places[users]
        moving = (places == 0) | np.isin(places, self._kept)
        places[moving] = self._free(int(moving.sum()))
        for name in self._initial:
            flat = np.ascontiguousarray(values[name], np.float32).reshape(len(users), self._initial[name].size)
            self._files[name].write(places, list(flat))
            self._checksums[name][users] = [checksum((row,)) for row in flat]
            self._checked[name][users] = True
        self.places[users] = places
        self._note_filled(places)

    def drop(self, users: Indices) -> None:
        """These users have what all start from; what lies in the files stays there until its place is wanted."""
        self.places[users] = 0

    def users_joined(self, count: int) -> None:
        """So many users stand at the end, who have what all start from."""
        self._by_user(lambda values: np.concatenate([values, np.zeros(count, values.dtype)]))

    def users_forgotten(self, positions: Indices) -> None:
        """Drop these users' rows: from the disk as well, as soon as no checkpoint names them."""
        self._by_user(lambda values: np.delete(values, positions))
        self._forgetting = True
        self._wipe()

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def index(self) -> dict[str, NDArray[Any]]:
        """What a checkpoint must say of the rows."""
        found: dict[str, NDArray[Any]] = {f"place/{self._kind}": self.places}
        return found | {f"checksum/{self._kind}/{name}": values for name, values in self._checksums.items()}

    def checkpoint_due(self) -> None:
        """A checkpoint is about to be written, so what it names must be on the disk."""
        self._begin()
        for files in self._files.values():
            files.sync()

    def checkpoint_written(self) -> None:
        """It is there, and none before it will be gone back to."""
        self._kept = np.unique(self.places[self.places > 0])
        if self._forgetting:
            self._wipe()
            self._forgetting = False

    def restore(self, index: Mapping[str, NDArray[Any]]) -> None:
        """Go back to what a checkpoint says."""
        self.places = index[f"place/{self._kind}"].copy()
        self._checksums = {name: index[f"checksum/{self._kind}/{name}"].copy() for name in self._initial}
        self._checked = {name: np.zeros(len(self.places), bool) for name in self._initial}
        self._kept = np.unique(self.places[self.places > 0])
        self._begun = True
        for files in self._files.values():
            files.clear_from(1 + int(self.places.max(initial=0)))
        self._note_filled(np.arange(1, 1 + self.places.max(initial=0)))

    def remove(self) -> None:
        """Remove the files: nobody will go back to them."""
        shutil.rmtree(self._folder, ignore_errors=True)

    # -- places ----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Before the first row: what all start from lies at place 0, for others who read the files."""
        if self._begun:
            return
        self.remove()  # of a run that was killed before its first checkpoint
        for folder in (self._folder.parent.parent, self._folder.parent, self._folder):
            private_folder(folder)
        for name, values in self._initial.items():
            self._files[name].write(np.zeros(1, np.int64), [np.ascontiguousarray(values).reshape(-1)])
        self._begun = True

    def _free(self, count: int) -> Indices:
        """The first places where neither a user's rows are nor those of the last checkpoint."""
        taken = np.zeros(2 + count + max(self.places.max(initial=0), self._kept.max(initial=0)), bool)
        taken[0] = taken[self.places] = taken[self._kept] = True
        return np.flatnonzero(~taken)[:count]

    def _note_filled(self, places: Indices) -> None:
        missing = 1 + int(places.max(initial=0)) - len(self._filled)
        self._filled = np.concatenate([self._filled, np.zeros(max(missing, 0), bool)])
        self._filled[places] = True

    def _wipe(self) -> None:
        """Overwrite whatever lies at free places."""
        gone = self._filled.copy()
        gone[self.places[self.places < len(gone)]] = gone[self._kept] = False
        places = np.flatnonzero(gone)
        for name, files in self._files.items():
            nothing = np.zeros(self._initial[name].size, np.float32)
            files.write(places, [nothing] * len(places))
            files.sync()
        self._filled[places] = False

    def _by_user(self, change: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
        self.places = change(self.places)
        self._checksums = {name: change(values) for name, values in self._checksums.items()}
        self._checked = {name: change(values) for name, values in self._checked.items()}


class _Files:
    """The rows of one array, by place: files of equal size, made when they are wanted."""

    def __init__(self, folder: Path, name: str, shape: tuple[int, ...]) -> None:
        self._folder, self._name, self._shape = folder, name, shape
        self._per_file = max(1, min(_FILE_ROWS, _FILE_BYTES // (4 * int(np.prod(shape)))))
        self._open: dict[int, PlainRows] = {}
        self._unsynced: set[int] = set()

    def path_of(self, place: int) -> Path:
        return self._path(place // self._per_file)

    def read(self, places: Indices, rows: Sequence[Array]) -> None:
        """Fill rows with what lies at their places."""
        for number, part in self._by_file(places, rows):
            for _ in self._file(number).read(part):
                pass

    def write(self, places: Indices, rows: Sequence[Array]) -> None:
        for number, part in self._by_file(places, rows):
            file = self._file(number)
            file.create()
            file.write(part, durable=False)
            self._unsynced.add(number)

    def sync(self) -> None:
        for number in sorted(self._unsynced):
            self._file(number).sync()
        self._unsynced.clear()

    def clear_from(self, place: int) -> None:
        """Nothing lies at this place and at those after it."""
        for path in self._folder.glob(f"{self._name}-*.npy"):
            number = int(path.stem.rpartition("-")[2])
            if number * self._per_file >= place:
                path.unlink()
            elif (number + 1) * self._per_file > place:
                self._file(number).clear_from(place - number * self._per_file)

    def _by_file(
        self, places: Indices, rows: Sequence[Array]
    ) -> Iterator[tuple[int, list[tuple[int, int, tuple[Array]]]]]:
        """In the order of the files, so that neighbours are read and written together."""
        order, at = np.argsort(places).tolist(), places.tolist()
        for number, part in groupby(order, lambda k: at[k] // self._per_file):
            yield number, [(0, at[k] % self._per_file, (rows[k],)) for k in part]

    def _file(self, number: int) -> PlainRows:
        if number not in self._open:
            self._open[number] = PlainRows(self._path(number), self._per_file, self._shape, slots=1)
        return self._open[number]

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._name}-{number:04d}.npy"


def rows_of(folder: Path, extra: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """What a method keeps of a checkpoint with the rows themselves, [n, …], in place of where they lie.

    Args:
        folder: as of `UserRows`.
        extra: what the checkpoint says, of these and of other things.
    """
    found = {name: values for name, values in extra.items() if not name.startswith(("place/", "checksum/"))}
    for key in extra:
        if not key.startswith("checksum/"):
            continue
        _, kind, name = key.split("/", 2)
        files = [np.load(path, mmap_mode="r")[0] for path in sorted((folder / kind).glob(f"{name}-*.npy"))]
        places, per_file = extra[f"place/{kind}"], len(files[0])
        found[f"{kind}/{name}"] = np.stack([files[place // per_file][place % per_file] for place in places.tolist()])
    return found


def share_of_rows(rounds: int, every: int, fraction: float) -> float:
    """For how many rows the files come to have room, as a share of the users, where a fraction trains in each round.

    Those of all who have trained, and where there are checkpoints, until the next one those in the last one of users
    who have trained since.

    Args:
        rounds: of the run.
        every: rounds between two checkpoints; 0: there are none.
    """

    def trained(count: int) -> float:
        return trained_at_least(1, count, fraction)[0] if count else 0.0

    last = [0, *range(every, rounds, every)] if every else [0]
    ends = [*last[1:], rounds]
    return max(trained(end) + trained(at) * trained(end - at) for at, end in zip(last, ends, strict=True))
