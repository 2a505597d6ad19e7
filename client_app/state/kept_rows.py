"""A private table of which the rows that training has touched are kept, version by version, in pieces.

A training adds a piece with the rows that it touched. What it writes lies where nothing lies that counts, so that a
process that is killed leaves everything as it was; what no version needs any more makes room with the next commit.

A chain is written anew as one piece when a third of its rows are there again in newer pieces, or when it has become
long to read.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Array, ArraySpec
from bouquet.ragged import Ragged
from bouquet.randomness import Words
from bouquet.row_files import Row, checksum
from bouquet.sealing import Seal
from client_app.state.piece_file import PieceFile
from client_app.state.pieces import Pieces
from client_app.state.row_overrides import OwnRows, either, stored
from client_app.state.space import Space

# After the name of the table.
PIECES = ".pieces"

# A chain may have so many rows for each that is different, and so many pieces; some users have longer chains than
# others, so that not all of them are written anew in the same round.
MOST_ROWS, LONGEST, SPREAD = 1.5, 64, 32


class KeptRows:
    """The rows of one table of the users of a node.

    Args:
        folder: where the file is.
        name: of the table.
        spec: its shape for one user.
        users: [K] keys of the users.
        pieces: what was committed.
        seal: encrypts everything; None: the file is plain.
        belongs_to: authenticated with what is sealed.
    """

    def __init__(
        self, folder: Path, name: str, spec: ArraySpec, users: Words, pieces: Pieces, seal: Seal | None, belongs_to: str
    ) -> None:
        self.name, self._spec, self.pieces = name, spec, pieces
        path = folder / f"{name}{PIECES}{'.sealed' if seal else ''}"
        self.file = PieceFile(path, users, 4 + 4 * spec.size // spec.shape[0], seal, belongs_to)
        self._space: Space | None = None
        # What was read last is what training starts from, and is asked for again when its outcome is written.
        self._last: tuple[NDArray[np.int32], Ragged] = (np.zeros(0, np.int32), Ragged.from_lengths([], []))

    def read(self, positions: NDArray[np.int64], slots: NDArray[np.int64], known: NDArray[np.bool_]) -> OwnRows:
        """All that versions have of the table, older pieces first: of a row that is there twice the last counts.

        Args:
            positions: [k] the users.
            slots: [k] where each version is.
            known: [k] whether there is one.
        """
        return self._read(positions, self._heads(positions, slots, known))

    def write(
        self, positions: NDArray[np.int64], slots: NDArray[np.int64], from_slots: NDArray[np.int64],
        known: NDArray[np.bool_], tables: Array, touched: Ragged, durable: bool,
    ) -> None:  # fmt: skip
        """Write versions; they count after a commit.

        Args:
            positions: [k] the users.
            slots: [k] where the versions go.
            from_slots, known: [k] the versions that training started from, as for `read`.
            tables: [k, m, …] after training, with all that those versions have.
            touched: [k] the rows in which they differ from those versions.
        """
        heads = self._heads(positions, from_slots, known)
        self.pieces.heads[slots, positions] = heads
        rows, before, distinct = self._wanted(positions, heads, touched)
        lengths = rows.lengths
        some = np.flatnonzero(lengths)
        if not len(some):
            return
        content = stored(OwnRows.of(self.name, tables, rows))
        new = [content.row(user) for user in some.tolist()]
        if self._space is None:
            # Of what was committed: nothing of it may be written over until the next commit.
            self._space = Space(self.pieces.offsets, self.file.sizes(self.pieces.lengths))
        offsets = self._space.take(self.file.sizes(lengths[some]))
        self.file.write(offsets, positions[some], new, durable)
        found = np.array([checksum(piece) for piece in new], np.uint32)
        self.pieces.heads[slots[some], positions[some]] = self.pieces.add(
            before[some], lengths[some], distinct[some], offsets, found
        )

    def _wanted(
        self, positions: NDArray[np.int64], heads: NDArray[np.int32], touched: Ragged
    ) -> tuple[Ragged, NDArray[np.int32], NDArray[np.int64]]:
        """[k] the rows of each user's new piece, the piece before it, and at least how many rows both chains have."""
        chains = self.pieces.chains(heads)
        there = np.bincount(chains.row_of_value, self.pieces.lengths[chains.values], len(heads)).astype(np.int64)
        distinct = touched.lengths
        some = heads >= 0
        distinct[some] = np.maximum(distinct[some], self.pieces.distinct[heads[some]])
        too_long = chains.lengths >= LONGEST + positions % SPREAD
        doubtful = np.flatnonzero((there + touched.lengths > MOST_ROWS * distinct) | too_long)
        if not len(doubtful):
            return touched, heads, distinct
        heads_then, rows_then = self._last
        if not np.array_equal(heads, heads_then):
            rows_then = self._read(positions, heads).rows
        all_rows = either(rows_then.take(doubtful), touched.take(doubtful))
        distinct[doubtful] = all_rows.lengths
        anew = (there + touched.lengths > MOST_ROWS * distinct) | too_long
        if not anew.any():
            return touched, heads, distinct
        lengths = np.where(anew, distinct, touched.lengths)
        values = np.concatenate(
            [
                all_rows.row(int(np.searchsorted(doubtful, user))) if anew[user] else touched.row(user)
                for user in range(len(heads))
            ]
        )
        return Ragged.from_lengths(lengths, values), np.where(anew, np.int32(-1), heads), distinct

    def keep_only(self, there: NDArray[np.bool_]) -> None:
        """Forget all versions but those [slots, K] that are there."""
        self.pieces.keep_only(there)

    def committed(self) -> None:
        """What is here now counts, and nothing else: the next writes may use the room of what was forgotten."""
        self._space = None
        ends = self.pieces.offsets + self.file.sizes(self.pieces.lengths)
        self.file.cut(int(ends.max(initial=0)))

    def take_over(self, other: KeptRows, durable: bool) -> None:
        """Copy everything from another file of the same table."""
        pieces, owners = self.pieces, other.pieces.owners()
        self.pieces.heads[:] = other.pieces.heads
        old = other.pieces
        offsets = Space(np.zeros(0, np.int64), np.zeros(0, np.int64)).take(self.file.sizes(old.lengths))
        pieces.add(old.before, old.lengths, old.distinct, offsets, old.checksums)
        for number in np.flatnonzero(owners >= 0).tolist():
            one = slice(number, number + 1)
            content = self._room(old.lengths[one])
            other.file.read(old.offsets[one], owners[one], content, old.checksums[one])
            self.file.write(offsets[one], owners[one], content, durable=False)
        self.file.write(offsets[:0], owners[:0], [], durable)

    def _heads(
        self, positions: NDArray[np.int64], slots: NDArray[np.int64], known: NDArray[np.bool_]
    ) -> NDArray[np.int32]:
        return np.where(known, self.pieces.heads[slots, positions], np.int32(-1))

    def _read(self, positions: NDArray[np.int64], heads: NDArray[np.int32]) -> OwnRows:
        chains = self.pieces.chains(heads)
        numbers = chains.values
        found = self._empty(self.pieces.lengths[numbers])
        self.file.read(
            self.pieces.offsets[numbers], positions[chains.row_of_value], stored(found).rows(),
            self.pieces.checksums[numbers],
        )  # fmt: skip
        lengths = np.bincount(chains.row_of_value, self.pieces.lengths[numbers], len(heads)).astype(np.int64)
        rows = Ragged.from_lengths(lengths, found.rows.values)
        self._last = heads, rows
        return OwnRows(rows, found.values)

    def _empty(self, lengths: NDArray[np.integer]) -> OwnRows:
        """Room for pieces of so many rows."""
        rows = Ragged.from_lengths(lengths, np.empty(int(lengths.sum()), np.int32))
        return OwnRows(rows, {self.name: np.empty((len(rows.values), *self._spec.shape[1:]), np.float32)})

    def _room(self, lengths: NDArray[np.integer]) -> list[Row]:
        return stored(self._empty(lengths)).rows()
