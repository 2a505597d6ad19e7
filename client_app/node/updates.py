"""From the changes of single users to the update that a node sends."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import ArraySpec, Specs
from bouquet.packed import PackedArray, PackedRows
from bouquet.ragged import Ragged, positions
from bouquet.randomness import Words
from bouquet.wire import TrainReply
from client_app.personalization.round import Changes
from client_app.training.compiler import row_kernels


class SumCollector:
    """Σ_u w_u Δ_u over the node's users, in float64.

    Args:
        specs: the arrays whose changes are reported.
        weights: [k] weight of each asked user.
    """

    def __init__(self, specs: Specs, weights: NDArray[np.float64]) -> None:
        self.specs = specs
        self.weights = weights
        self.sums = {name: np.zeros(spec.shape) for name, spec in self.specs.items()}
        self.touched = {name: np.zeros(spec.shape[0], bool) for name, spec in self.specs.items() if spec.by_item}
        self.loss = np.full(len(weights), np.nan, dtype=np.float32)
        self.upload_bytes = np.zeros(len(weights), dtype=np.int64)

    def add(self, changes: Changes, offset: int = 0) -> None:
        """Add the changes of some users; `offset` is where their block starts among the asked users."""
        users = offset + changes.users
        # One user's change travels as it is and is weighed by the server.
        weights = self.weights[users] if len(self.weights) > 1 else np.ones(len(users))
        self.loss[users] = changes.loss
        self.upload_bytes[users] += _bytes_alone(changes, self.specs)
        for name, values in changes.by_item.items():
            add_rows(self.sums[name], changes.rows, values, weights)
            self.touched[name][changes.rows.values] = True
        for name, values in changes.dense.items():
            add_whole(self.sums[name], values, weights)

    def reply(self, users: Words, kept: NDArray[np.int64]) -> TrainReply:
        """The update of all added users.

        Args:
            users: [k] keys of the asked users.
            kept: which of them were added.
        """
        alone = len(self.weights) == 1
        sums = {}
        for name, total in self.sums.items():
            values = total.astype(np.float32) if alone else total
            rows = np.flatnonzero(self.touched[name]).astype(np.int32) if name in self.touched else None
            if rows is not None and len(rows) == len(total):
                rows = None
            sums[name] = PackedArray(rows, values if rows is None else values[rows])
        return TrainReply(users[kept], self.loss[kept], self.upload_bytes[kept], sums=sums)


class RowsCollector:
    """The changes of every user on its own, for strategies that weigh users afterwards.

    Args:
        specs: as for `SumCollector`.
        count: number of asked users.
    """

    def __init__(self, specs: Specs, count: int) -> None:
        self.specs = specs
        self.count = count
        self.parts: list[tuple[NDArray[np.int64], Changes]] = []

    def add(self, changes: Changes, offset: int = 0) -> None:
        """Keep the changes of some users."""
        self.parts.append((offset + changes.users, changes))

    def reply(self, users: Words, kept: NDArray[np.int64]) -> TrainReply:
        """As `SumCollector.reply`; the users are in the order in which they were asked."""
        loss, upload_bytes = np.full(self.count, np.nan, np.float32), np.zeros(self.count, np.int64)
        lengths = np.zeros(self.count, np.int64)
        for members, changes in self.parts:
            loss[members], upload_bytes[members] = changes.loss, _bytes_alone(changes, self.specs)
            lengths[members] = changes.rows.lengths
        starts = np.cumsum(lengths) - lengths
        rows = np.zeros(int(lengths.sum()), dtype=np.int32)
        packed = {}
        # As usual: then what the blocks have is joined, with nothing to be put in its place.
        all_members = np.concatenate([np.zeros(0, np.int64), *(members for members, _ in self.parts)])
        in_order = len(self.parts) > 0 and np.array_equal(all_members, np.arange(self.count))
        for name, spec in self.specs.items():
            if spec.by_item and in_order:
                rows = np.concatenate([changes.rows.values for _, changes in self.parts], dtype=np.int32)
                values = np.concatenate([changes.by_item[name] for _, changes in self.parts], dtype=np.float32)
                packed[name] = self._packed(spec, lengths, rows, values)
                continue
            values = np.zeros(
                ((len(rows),) if spec.by_item else (self.count,)) + spec.shape[spec.by_item :], np.float32
            )
            for members, changes in self.parts:
                if spec.by_item:
                    own = changes.rows.lengths
                    place = np.repeat(starts[members], own) + positions(own)
                    rows[place], values[place] = changes.rows.values, changes.by_item[name]
                else:
                    values[members] = changes.dense[name]
            packed[name] = self._packed(spec, lengths, rows, values)
        whole = TrainReply(users, loss, upload_bytes, rows=packed)
        return whole if len(kept) == len(users) else whole.take(kept)

    def _packed(
        self, spec: ArraySpec, lengths: NDArray[np.int64], rows: NDArray[np.int32], values: NDArray[np.float32]
    ) -> PackedRows:
        if spec.by_item and not (lengths == spec.shape[0]).all():
            return PackedRows(Ragged.from_lengths(lengths, rows).indptr, rows, values)
        # Whole arrays: the item numbers stay at home.
        return PackedRows(None, None, values.reshape(self.count, *spec.shape))


def add_rows(
    table: NDArray[np.float64], rows: Ragged, values: NDArray[np.floating], weights: NDArray[np.float64]
) -> None:
    """table[rows of user u] += weights[u] * values of user u.

    Args:
        table: [m, …].
        rows: [c] rows of items, one for each user.
        values: [nnz, …].
        weights: [c].
    """
    code = row_kernels()
    if code is not None and values.ndim == 2:
        code.add_weighted(table, rows.indptr, rows.values, values, weights)
        return
    # Sorting and summing runs is several times faster than `np.add.at` for wide rows.
    if len(rows.values) == 0:
        return
    scaled = values * np.repeat(weights, rows.lengths).reshape(-1, *[1] * (values.ndim - 1))
    order = np.argsort(rows.values, kind="stable")
    ordered = rows.values[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    table[ordered[starts]] += np.add.reduceat(scaled[order], starts, axis=0)


def add_whole(total: NDArray[np.float64], values: NDArray[np.floating], weights: NDArray[np.float64]) -> None:
    """total += Σ_u weights[u] values[u], of values [c, …], without a copy of them in float64 where there is numba."""
    if (code := row_kernels()) is not None and total.size:
        code.add_whole(total.reshape(-1), np.ascontiguousarray(values).reshape(len(values), total.size), weights)
    else:
        total += np.tensordot(weights, values, axes=1)


def _bytes_alone(changes: Changes, specs: Specs) -> NDArray[np.int64]:
    """[c] bytes of each user's update if it travelled alone: item numbers and values, float32."""
    total = np.zeros(len(changes.users), dtype=np.int64)
    for spec in specs.values():
        if spec.by_item:
            row_bytes = 4 * (spec.size // spec.shape[0])
            whole = changes.rows.lengths == spec.shape[0]  # then the item numbers stay at home
            total += changes.rows.lengths * np.where(whole, row_bytes, 4 + row_bytes)
        else:
            total += 4 * spec.size
    return total
