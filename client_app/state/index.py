"""The index of private state: which round each version of each user belongs to, and what its files must hold.

A version counts from the moment that the index which names it is there, so it is written last, and replaced as a whole.
Users stand in it, and in the files, in ascending order of their keys, as the server asks for them: neighbours are then
read and written together. A folder whose users stand in another order goes on as it was begun.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load

from bouquet.checked import check_content, checked_tensors
from bouquet.errors import StateError
from bouquet.files import write_atomically
from bouquet.randomness import Words
from bouquet.sealing import Seal
from client_app.state.checksums import BY_FORMAT
from client_app.state.kept_rows import PIECES
from client_app.state.pieces import Pieces

PLAIN, SEALED = "index.safetensors", "index.sealed"

# The file of own rows of common tables: which items, int32 among float32, and their rows in each of the tables.
OWN = "own_rows"


@dataclass
class Index:
    """What is known of the versions of K users.

    Attributes:
        users: [K] their keys, in the order of all that follows.
        rounds: [slots, K] the round of each version; 0: there is none.
        checksums: [files, slots, K] of what each file has of it.
        touched: by file of own rows, [slots, K] how many it has of it.
        started: [slots, K] the common tables that own versions are from; 0: none.
        pieces: by table that is kept by rows, what its versions consist of.
        form: the format, which says what checksums are; that of the first index of a folder is that of all.
    """

    users: Words
    rounds: NDArray[np.int32]
    checksums: NDArray[np.uint32]
    touched: dict[str, NDArray[np.int32]]
    started: NDArray[np.uint64]
    pieces: dict[str, Pieces]
    form: str = max(BY_FORMAT)

    @classmethod
    def empty(cls, slots: int, users: Words, files: int, of_rows: Iterable[str], by_rows: Iterable[str]) -> Index:
        """Of users without any version, whose keys may come in any order."""
        count = len(users)
        return cls(
            np.sort(users),
            np.zeros((slots, count), dtype=np.int32),
            np.zeros((files, slots, count), dtype=np.uint32),
            {file: np.zeros((slots, count), dtype=np.int32) for file in of_rows},
            np.zeros((slots, count), dtype=np.uint64),
            {name: Pieces.empty(slots, count) for name in by_rows},
        )

    def places(self, users: Words) -> NDArray[np.int64]:
        """[k] where these users stand, all of whom do."""
        return self._order[np.searchsorted(self.users, users, sorter=self._order)]

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        return np.argsort(self.users, kind="stable")  # which is quick where they are in order


@dataclass(frozen=True)
class Stored:
    """An index as it lies in a file, before it is known whether it is the one that is wanted."""

    path: Path
    metadata: dict[str, str]
    arrays: dict[str, NDArray[Any]]

    @property
    def by_rows(self) -> frozenset[str]:
        """The tables that are kept by rows."""
        return frozenset(f.removesuffix(PIECES) for f in _files(self.metadata) if f.endswith(PIECES))

    def taken(
        self, series: str, users: Words, files: Iterable[str], of_rows: Iterable[str], by_rows: Iterable[str]
    ) -> Index:
        """What it says of these users, in whichever order they come.

        Raises:
            StateError: it belongs to something else.
        """
        form = self.metadata.get("format", "")
        known = form if form in BY_FORMAT else max(BY_FORMAT)
        expected = {"format": known, "series": series, "arrays": _joined(files, by_rows)}
        for key, value in expected.items():
            if self.metadata.get(key) != value:
                raise StateError(f"{self.path} has {key} '{self.metadata.get(key)}' where '{value}' is expected.")
        stored = self.arrays["users"].copy()
        if not np.array_equal(np.sort(stored), np.sort(users)):
            raise StateError(f"{self.path} belongs to other users than the {len(users)} hosted here.")
        rounds = self.arrays["rounds"].copy()
        started = self.arrays.get("origins")
        return Index(
            stored,
            rounds,
            self.arrays["checksums"].copy(),
            {file: self.arrays[_count_of(file)].copy() for file in of_rows},
            np.zeros(rounds.shape, np.uint64) if started is None else started.copy(),
            {name: Pieces.from_arrays(self.arrays, name) for name in by_rows},
            form,
        )


def read_index(path: Path, seal: Seal | None, belongs_to: str) -> Stored:
    """Raises: StateError: it is damaged, or encrypted with another key or for another purpose than `belongs_to`."""
    try:
        content = path.read_bytes()
        if seal:
            content = seal.open(content, belongs_to, path)
        else:
            check_content(content)
        return Stored(path, _metadata_of(content), load(content))
    except (OSError, ValueError, SafetensorError) as error:
        raise StateError(f"{path} is damaged and cannot be read ({error}).") from None


def write_index(
    path: Path, index: Index, series: str, files: Iterable[str], seal: Seal | None, belongs_to: str, durable: bool
) -> None:
    """Replace an index; `origins` are in it where a file has own rows of common tables."""
    arrays: dict[str, NDArray[Any]] = {"users": index.users, "rounds": index.rounds, "checksums": index.checksums}
    arrays |= {_count_of(file): counts for file, counts in index.touched.items()}
    if OWN in index.touched:
        arrays["origins"] = index.started
    for name, pieces in index.pieces.items():
        arrays |= pieces.arrays(name)
    parts = checked_tensors(arrays, {"format": index.form, "series": series, "arrays": _joined(files, index.pieces)})
    if seal:
        parts = [seal.close(b"".join(parts), belongs_to)]
    write_atomically(path, parts, durable=durable, private=True)


def names_in(folder: Path) -> frozenset[str]:
    """The private arrays of which a folder has versions.

    Raises:
        StateError: there is no index that can be read without a key.
    """
    path = folder / PLAIN
    try:
        content = path.read_bytes()
        check_content(content)
        return frozenset(file.removesuffix(PIECES) for file in _files(_metadata_of(content))) - {OWN}
    except (OSError, ValueError, KeyError) as error:
        raise StateError(f"{path} cannot be read ({error}).") from None


def _files(metadata: dict[str, str]) -> list[str]:
    return metadata.get("arrays", "").split(",")


def _joined(files: Iterable[str], by_rows: Iterable[str]) -> str:
    return ",".join([*files, *(name + PIECES for name in by_rows)])


def _count_of(file: str) -> str:
    """What the index calls how many rows each version in a file of rows has."""
    return "touched" if file == OWN else f"touched/{file}"


def _metadata_of(content: bytes) -> dict[str, str]:
    """Of a safetensors file that is in memory.

    Raises:
        ValueError: it has none that can be read.
    """
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    return dict(header.get("__metadata__", {}))
