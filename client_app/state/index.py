"""The index of private state: which round each version of each user belongs to, and what its files must hold.

A version counts from the moment that the index which names it is there, so it is written last, and replaced as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
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

_FORMAT = "2"
PLAIN, SEALED = "index.safetensors", "index.sealed"

# The file of own rows of common tables: which items, int32 among float32, and their rows in each of the tables.
OWN = "own_rows"
# After the name of a private table: the same file of the rows of this table that training has touched.
ROWS = ".rows"


@dataclass
class Index:
    """What is known of the versions of K users.

    Attributes:
        rounds: [slots, K] the round of each version; 0: there is none.
        checksums: [files, slots, K] of what each file has of it.
        touched: by file of rows, [slots, K] how many rows it has of it.
        started: [slots, K] the common tables that own versions are from; 0: none.
    """

    rounds: NDArray[np.int32]
    checksums: NDArray[np.uint32]
    touched: dict[str, NDArray[np.int32]]
    started: NDArray[np.uint64]

    @classmethod
    def empty(cls, slots: int, users: int, files: int, of_rows: Iterable[str]) -> Index:
        """Of users without any version."""
        return cls(
            np.zeros((slots, users), dtype=np.int32),
            np.zeros((files, slots, users), dtype=np.uint32),
            {file: np.zeros((slots, users), dtype=np.int32) for file in of_rows},
            np.zeros((slots, users), dtype=np.uint64),
        )


@dataclass(frozen=True)
class Stored:
    """An index as it lies in a file, before it is known whether it is the one that is wanted."""

    path: Path
    metadata: dict[str, str]
    arrays: dict[str, NDArray[Any]]

    @property
    def files(self) -> list[str]:
        """The names of the files that it is of."""
        return self.metadata.get("arrays", "").split(",")

    def taken(self, series: str, users: Words, files: Iterable[str], of_rows: Iterable[str]) -> Index:
        """What it says of these users.

        Raises:
            StateError: it belongs to something else.
        """
        expected = {"format": _FORMAT, "series": series, "arrays": ",".join(files)}
        for key, value in expected.items():
            if self.metadata.get(key) != value:
                raise StateError(f"{self.path} has {key} '{self.metadata.get(key)}' where '{value}' is expected.")
        if not np.array_equal(self.arrays["users"], users):
            raise StateError(f"{self.path} belongs to other users than the {len(users)} hosted here.")
        rounds = self.arrays["rounds"].copy()
        started = self.arrays.get("origins")
        return Index(
            rounds,
            self.arrays["checksums"].copy(),
            {file: self.arrays[_count_of(file)].copy() for file in of_rows},
            np.zeros(rounds.shape, np.uint64) if started is None else started.copy(),
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
    path: Path, index: Index, series: str, users: Words, files: Iterable[str], seal: Seal | None, belongs_to: str,
    durable: bool,
) -> None:  # fmt: skip
    """Replace an index; `origins` are in it where a file has own rows of common tables."""
    arrays: dict[str, NDArray[Any]] = {"users": users, "rounds": index.rounds, "checksums": index.checksums}
    arrays |= {_count_of(file): counts for file, counts in index.touched.items()}
    if OWN in index.touched:
        arrays["origins"] = index.started
    parts = checked_tensors(arrays, {"format": _FORMAT, "series": series, "arrays": ",".join(files)})
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
        return frozenset(file.removesuffix(ROWS) for file in _metadata_of(content)["arrays"].split(",")) - {OWN}
    except (OSError, ValueError, KeyError) as error:
        raise StateError(f"{path} cannot be read ({error}).") from None


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
