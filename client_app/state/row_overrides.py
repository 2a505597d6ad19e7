"""Users' own versions of tables: the rows in which they differ from what is known, and nothing of the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Array, Arrays
from bouquet.ragged import Ragged, follow_one_another, one_after_another, positions
from bouquet.row_batches import RowBatch
from client_app.personalization.round import Changes
from client_app.training.compiler import row_kernels


@dataclass(frozen=True)
class OwnRows:
    """What single users use in place of some rows of the common tables.

    Attributes:
        rows: [k] rows of items, ascending.
        values: name -> [nnz, …].
    """

    rows: Ragged
    values: dict[str, NDArray[np.float32]]

    @classmethod
    def after(cls, common: Arrays, changes: Sequence[Changes], share: float = 1.0) -> OwnRows:
        """The common tables plus a share of what training changed.

        Args:
            common: the tables that the users started from, all by item.
            changes: of all users.
        """
        users = np.concatenate([part.users for part in changes])
        rows = Ragged.from_lengths(
            np.concatenate([part.rows.lengths for part in changes]),
            np.concatenate([part.rows.values for part in changes]),
        )
        values = {name: _rows_after(name, table, changes, share) for name, table in common.items()}
        found = cls(rows, values)
        return found if (np.diff(users) > 0).all() else found.take(np.argsort(users))

    @classmethod
    def of(cls, name: str, tables: NDArray[np.float32], rows: Ragged) -> OwnRows:
        """Some rows of the tables [k, m, …] of all users."""
        return cls(rows, {name: tables[rows.row_of_value, rows.values]})

    def take(self, users: NDArray[np.int64]) -> OwnRows:
        """Those of some of the users; of users that follow one another as views."""
        if follow_one_another(users):
            first, stop = int(users[0]), int(users[-1]) + 1
            part = slice(self.rows.indptr[first], self.rows.indptr[stop])
            return OwnRows(
                self.rows.between(slice(first, stop)), {name: values[part] for name, values in self.values.items()}
            )
        lengths = self.rows.lengths[users]
        at = np.repeat(self.rows.indptr[users], lengths) + positions(lengths)
        rows = Ragged.from_lengths(lengths, self.rows.values[at])
        return OwnRows(rows, {name: values[at] for name, values in self.values.items()})

    def put(self, name: str, tables: NDArray[np.float32]) -> None:
        """Put the rows of an array into the tables [k, m, …] of all users."""
        tables[self.rows.row_of_value, self.rows.values] = self.values[name]


def stored(own_rows: OwnRows) -> RowBatch:
    """What is stored of each user's own rows: the item numbers as they are, and the rows of every table.

    Views of both, so that what is read into them is in `own_rows`.
    """
    tables = [own_rows.values[name] for name in sorted(own_rows.values)]
    return RowBatch.of([own_rows.rows.values.view(np.float32), *tables], own_rows.rows.indptr)


def either(first: Ragged, second: Ragged) -> Ragged:
    """[k] rows of items, ascending, that are in one of two [k] rows or in both."""
    both = one_after_another(first, second)
    owner, items = both.row_of_value, both.values
    order = np.lexsort((items, owner))
    owner, items = owner[order], items[order]
    new = np.ones(len(items), dtype=bool)
    new[1:] = (np.diff(items) != 0) | (np.diff(owner) != 0)
    return Ragged.from_lengths(np.bincount(owner[new], minlength=len(both)), items[new])


def touched_rows(changes: Sequence[Changes], count: int) -> Ragged:
    """[k] the rows, ascending, that training changed in the tables of each of `count` users."""
    owner = np.concatenate([part.users[part.rows.row_of_value] for part in changes])
    return Ragged.from_pairs(owner, np.concatenate([part.rows.values for part in changes]), count)


def _rows_after(name: str, table: Array, changes: Sequence[Changes], share: float) -> NDArray[np.float32]:
    """Rows of a table plus a share of what training changed in them, one user after another."""
    found = np.empty((sum(len(part.rows.values) for part in changes), *table.shape[1:]), np.float32)
    code, done = row_kernels(), 0
    for part in changes:
        rows, change = part.rows.values, part.by_item[name]
        out = found[done : done + len(rows)]
        if share != 1:
            change = np.float32(share) * change
        if code is not None and table.ndim == 2:
            code.rows_after(table, rows, change, out)
        else:
            np.add(table[rows], change, out=out)
        done += len(rows)
    return found
