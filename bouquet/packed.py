"""Changes of arrays as they travel: only rows that were touched, and arithmetic on them.

Sums are taken in float64 and in a fixed order, so that they do not depend on how users are spread over nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Users with so many values of an array are quicker added one after another than row by row.
_VALUES_BY_USER = 1000


@dataclass(frozen=True)
class PackedArray:
    """The change of one shared array, summed over users: rows that no user touched are left out.

    Attributes:
        rows: [r] int32, ascending; None: the array is whole.
        values: [r, …] or the whole array; float32 for one user, float64 for a sum over several, so that the
            server's result does not depend on how users are spread over nodes.
    """

    rows: NDArray[np.int32] | None
    values: NDArray[np.floating]

    def add_to(self, total: NDArray[np.float64], factor: float) -> None:
        """total += factor · the change, in float64; total has the array's shape."""
        total[slice(None) if self.rows is None else self.rows] += factor * self.values.astype(np.float64)


@dataclass(frozen=True)
class PackedRows:
    """The change of one shared array for each user on its own.

    Attributes:
        indptr: [k + 1] int64; user j has rows indptr[j]:indptr[j + 1]. None: arrays are whole, one per user.
        rows: [r] int32, ascending within a user. None as above.
        values: [r, …] float32, or [k, …] of whole arrays.
    """

    indptr: NDArray[np.int64] | None
    rows: NDArray[np.int32] | None
    values: NDArray[np.float32]

    def take(self, users: NDArray[np.int64]) -> PackedRows:
        """The changes of some of the users, ascending."""
        if self.indptr is None or self.rows is None:
            return PackedRows(None, None, self.values[users])
        lengths = np.diff(self.indptr)
        kept = np.repeat(np.isin(np.arange(len(lengths)), users), lengths)
        indptr = np.concatenate([[0], np.cumsum(lengths[users])]).astype(np.int64)
        return PackedRows(indptr, self.rows[kept], self.values[kept])

    def of_user(self, user: int) -> tuple[NDArray[np.int32] | slice, NDArray[np.float64]]:
        """The rows that one user's change touches (or all of them), and their change in float64."""
        if self.indptr is None or self.rows is None:
            return slice(None), self.values[user].astype(np.float64)
        own = slice(self.indptr[user], self.indptr[user + 1])
        return self.rows[own], self.values[own].astype(np.float64)

    def where(self, users: slice) -> tuple[tuple[Any, ...], NDArray[np.float32]]:
        """Where the arrays [c, …] of c users that follow one another change, as an index, and by how much."""
        if self.indptr is None or self.rows is None:
            return (), self.values[users]
        indptr = self.indptr[users.start : users.stop + 1]
        part = slice(int(indptr[0]), int(indptr[-1]))
        return (np.repeat(np.arange(len(indptr) - 1), np.diff(indptr)), self.rows[part]), self.values[part]

    def add_to_each(
        self, tables: NDArray[np.float32], users: slice, factor: np.float32 | float = 1
    ) -> NDArray[np.float32]:
        """Add the changes of c users who follow one another, times a factor, to their arrays [c, …], in place.

        Returns:
            what stands there now where something changed.
        """
        at, change = self.where(users)
        if factor != 1:
            change = np.float32(factor) * change
        if not at:
            tables += change
            return tables
        user, row = at
        width = int(np.prod(tables.shape[2:]))
        rows, places = tables.reshape(-1, width), user * tables.shape[1] + row
        changed = np.take(rows, places, axis=0)
        changed += change.reshape(-1, width)
        # Rows as single values: numpy then copies each of them at once, several times as fast.
        whole = np.dtype((np.void, rows.itemsize * width))
        rows.view(whole)[places] = changed.view(whole)
        return changed

    def norms(self, p: float = 2.0) -> NDArray[np.float64]:
        """[k] ‖Δ_u‖_p of the users' changes, over all values of the array; p is at least 1."""
        count = len(self.values) if self.indptr is None else len(self.indptr) - 1
        values = np.abs(self.values.astype(np.float64))
        largest = values.max(initial=0.0)
        if largest == 0:
            return np.zeros(count)
        powers = (values / largest) ** p  # of numbers up to 1, which are finite whatever p is
        sums = powers.sum(axis=tuple(range(1, powers.ndim)))
        if self.indptr is not None:
            sums = np.bincount(np.repeat(np.arange(count), np.diff(self.indptr)), sums, minlength=count)
        return np.asarray(largest * sums ** (1 / p))

    def add_weighted(self, total: NDArray[np.float64], weights: NDArray[np.float64]) -> None:
        """total += Σ_j weights[j] · the change of user j, in float64; weights [k], total of the array's shape."""
        if self.indptr is None or self.rows is None:
            total += np.tensordot(weights, self.values.astype(np.float64), axes=1)
        elif self.values.size >= _VALUES_BY_USER * len(weights):
            # The same sums in the same order: of one user each row is there once.
            for user, weight in enumerate(weights):
                rows, change = self.of_user(user)
                total[rows] += weight * change
        else:
            scale = np.repeat(weights, np.diff(self.indptr)).reshape(-1, *[1] * (self.values.ndim - 1))
            np.add.at(total, self.rows, scale * self.values)

    def finite(self, count: int) -> NDArray[np.bool_]:
        """[k] whether all values of each of the `count` users are finite."""
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(self.values.sum()):  # quicker, and finite for all but numbers that are nearly too large
                return np.ones(count, dtype=bool)
        whole = by_entry(np.isfinite(self.values))
        if self.indptr is None:
            return whole
        bad = np.repeat(np.arange(count), np.diff(self.indptr))[~whole]
        return ~np.isin(np.arange(count), bad)


def surely_finite(values: NDArray[np.floating[Any]]) -> bool:
    """Whether all values are finite, at the speed of memory; False also where some are nearly too large."""
    flat = values.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(np.dot(flat, flat)))


def by_entry(good: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """[k] whether all of an entry [k, …] is good; there may be no entries, and nothing in them."""
    return np.asarray(good.all(axis=tuple(range(1, good.ndim))))
