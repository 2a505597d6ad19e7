"""Versions of a table that share what has not changed: chains of pieces, each what one training of one user touched.

A row of a version is in the newest piece of its chain that has it; in none, it is its initial value. So a version costs
the rows of one training, and one that others go on from costs nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.ragged import Ragged

NONE = -1

# What is known of a piece: five numbers, one of them of 8 bytes.
PIECE_BYTES = 24


@dataclass
class Pieces:
    """The pieces of one table of K users.

    Attributes:
        heads: [slots, K] the newest piece of each version; NONE: every row is its initial value.
        before: [p] the piece that each goes on from; NONE: the initial values.
        lengths: [p] rows of each.
        distinct: [p] at least so many different rows are in the piece and all before it.
        offsets: [p] where each begins in the file, in bytes.
        checksums: [p] of each.
    """

    heads: NDArray[np.int32]
    before: NDArray[np.int32]
    lengths: NDArray[np.int32]
    distinct: NDArray[np.int32]
    offsets: NDArray[np.int64]
    checksums: NDArray[np.uint32]

    def __post_init__(self) -> None:
        # What was added since and is not yet among the arrays: a node adds some users at a time.
        self._added: list[tuple[NDArray[Any], ...]] = []
        self._count = len(self.before)

    @classmethod
    def empty(cls, slots: int, users: int) -> Pieces:
        """Of users without any version."""
        none = np.zeros(0, np.int32)
        heads = np.full((slots, users), NONE, np.int32)
        return cls(heads, none, none, none, none.astype(np.int64), none.astype(np.uint32))

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], name: str) -> Pieces:
        """What `arrays` made.

        Raises:
            KeyError: something is missing.
        """
        return cls(*(arrays[f"{part}/{name}"].copy() for part in _PARTS))

    def arrays(self, name: str) -> dict[str, NDArray[Any]]:
        """All of it, for a file, by names that tell tables apart."""
        self._settle()
        return {f"{part}/{name}": getattr(self, part) for part in _PARTS}

    def chains(self, heads: NDArray[np.integer]) -> Ragged:
        """[k] the pieces of versions with these heads, oldest first."""
        if heads.max(initial=NONE) >= len(self.before):
            self._settle()
        steps, current = [], heads.astype(np.int64)
        while (there := current >= 0).any():
            steps.append(current)
            current = np.where(there, self.before[current], NONE)
        if not steps:
            return Ragged.from_lengths(np.zeros(len(heads)), [])
        by_user = np.stack(steps[::-1]).T
        return Ragged.from_lengths((by_user >= 0).sum(axis=1), by_user[by_user >= 0])

    def add(
        self, before: NDArray[Any], lengths: NDArray[Any], distinct: NDArray[Any], offsets: NDArray[Any],
        checksums: NDArray[Any],
    ) -> NDArray[np.int64]:  # fmt: skip
        """Note new pieces; gives their numbers."""
        self._added.append((before, lengths, distinct, offsets, checksums))
        self._count += len(before)
        return np.arange(self._count - len(before), self._count)

    def keep_only(self, there: NDArray[np.bool_]) -> None:
        """Forget versions, and all pieces that no other version goes on from.

        Args:
            there: [slots, K] which versions stay.
        """
        self._settle()
        wanted = np.zeros(len(self.before), bool)
        current = self.heads[there & (self.heads >= 0)]
        while len(current):
            wanted[current] = True
            current = self.before[current]
            current = np.unique(current[current >= 0])
            current = current[~wanted[current]]
        # The number after the last is that of NONE: an index of -1 finds it.
        number = np.append(np.cumsum(wanted) - 1, NONE).astype(np.int32)
        self.heads = np.where(there, number[self.heads], np.int32(NONE))
        self.before = number[self.before[wanted]]
        for part in _PARTS[2:]:
            setattr(self, part, getattr(self, part)[wanted])
        self._count = len(self.before)

    def owners(self) -> NDArray[np.int64]:
        """[p] the user whose each piece is; NONE where no version has it."""
        self._settle()
        found = np.full(len(self.before), NONE, np.int64)
        slots, users = np.nonzero(self.heads >= 0)
        current = self.heads[slots, users]
        while len(current):
            found[current] = users
            current = self.before[current]
            current, users = current[current >= 0], users[current >= 0]
        return found

    def _settle(self) -> None:
        if not self._added:
            return
        for part, values in zip(_PARTS[1:], zip(*self._added, strict=True), strict=True):
            old = getattr(self, part)
            setattr(self, part, np.concatenate([old, *values]).astype(old.dtype))
        self._added = []


_PARTS = ("heads", "before", "lengths", "distinct", "offsets", "checksums")
