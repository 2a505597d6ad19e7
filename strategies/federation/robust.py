"""Robust aggregation: one change out of those of n users, of whom k = floor(f n) may say anything.

With f = `robust-fraction`, Δ_u the users' changes and w_u their weights, the mean Σ w_u Δ_u / Σ w_u becomes

    norm-bound     the same, every Δ_u held to its bound before (`bounds`)
    trimmed-mean   of every coordinate, without the k smallest and the k largest   (Yin et al., ICML 2018, def. 2)
    median         of every coordinate                                             (the same, def. 1)
    krum           the Δ_u with the least Σ of squared distances to its n - k - 2 nearest   (Blanchard et al., 2017)
    multi-krum     the mean of the n - k users for whom that sum is least                    (the same)

**Rows that few users touch.** In the papers all users change all parameters. Here a user changes the rows of its own
items and of its negatives, and over all n the median of nearly every row is zero. So a row's coordinates are those of
the users who touched it, as robust federated recommenders have it, and what comes out counts for their share of all
weight, as in the mean: with k = 0 the trimmed mean is the mean. Nobody knows how many of those who touched a row are
liars, and k of them can all meet in a row that three honest users have. So fewer than 2k + 1 are never asked: users who
did not touch the row are added up to that number, with the change 0 that they have. **With at most k liars in the round
every coordinate lies between the least and the greatest change of honest users, 0 among them, before it is scaled with
a share that is at most 1.** The price: what at most k users say of a row together is taken for a lie.

Other deviations: order is among users, each counted once, whatever its weight, which liars claim too; weights are in
the mean of those that are left. Krum's distances are over all arrays, 0 where a user touched nothing. Multi-Krum's m
is n - k. Flower's own `Krum`, `Bulyan`, `FedMedian` and `FedTrimmedAvg` do not fit: they take medians over all, and
whole arrays of every node, which for the users of MovieLens-1M and d = 32 are 2.9 GB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Specs
from bouquet.config import RobustOptions
from bouquet.errors import RunFailed
from bouquet.packed import PackedArray
from bouquet.wire import TrainReply

# So many numbers are sorted, or multiplied, at once.
_BLOCK = 2**21

Vector = NDArray[np.float64]


def robust_reply(
    replies: Sequence[TrainReply], weights: Sequence[Vector], specs: Specs, options: RobustOptions
) -> TrainReply:
    """All users of a round as one reply, whose sum is what is to be taken for theirs.

    Args:
        replies: "rows" replies.
        weights: [k] of each reply's users.
        specs: of the arrays that come back.
    Raises:
        RunFailed: there are too few users for Krum's distances.
    """
    weight = np.concatenate(weights)
    users = np.concatenate([reply.users for reply in replies])
    changes = {name: Rows.of(replies, name, spec.shape, spec.by_item) for name, spec in specs.items()}
    change = robust_change(changes, weight, options.robust_aggregation, options.robust_fraction)
    total = float(weight.sum())
    return TrainReply(
        users,
        np.concatenate([reply.loss for reply in replies]),
        np.concatenate([reply.upload_bytes for reply in replies]),
        sums={name: PackedArray(None, total * values.reshape(specs[name].shape)) for name, values in change.items()},
        weight=total,
    )


@dataclass(frozen=True)
class Rows:
    """The changes of one array by all users; an array without item rows is one row that all have.

    Attributes:
        count: rows of the array.
        rows: [r] which of them each change is of.
        owner: [r] the number of the user among those of the round.
        values: [r, width] float32.
    """

    count: int
    rows: NDArray[np.int64]
    owner: NDArray[np.int64]
    values: NDArray[np.float32]

    @classmethod
    def of(cls, replies: Sequence[TrainReply], name: str, shape: tuple[int, ...], by_item: bool) -> Rows:
        count = shape[0] if by_item else 1
        rows, owners, parts, before = [], [], [], 0
        for reply in replies:
            packed, users = reply.rows[name], len(reply.users)
            if packed.indptr is None or packed.rows is None:
                rows.append(np.tile(np.arange(count), users))
                owners.append(before + np.repeat(np.arange(users), count))
            else:
                rows.append(packed.rows.astype(np.int64))
                owners.append(before + np.repeat(np.arange(users), np.diff(packed.indptr)))
            parts.append(packed.values.reshape(len(rows[-1]), -1))
            before += users
        return cls(count, *(np.concatenate(each) for each in (rows, owners, parts)))  # type: ignore[arg-type]


def robust_change(changes: dict[str, Rows], weights: Vector, kind: str, fraction: float) -> dict[str, Vector]:
    """What takes the place of the mean change: [rows, width] by array, float64.

    Args:
        weights: [n] of the users.
        kind: a value of `robust-aggregation`.
        fraction: f.
    Raises:
        RunFailed: as `chosen_by_krum`.
    """
    liars = int(fraction * len(weights) + 1e-9)
    if kind in ("median", "trimmed-mean"):
        return {name: by_coordinate(rows, weights, liars, median=kind == "median") for name, rows in changes.items()}
    if kind in ("krum", "multi-krum"):
        chosen = chosen_by_krum(squared_distances(changes, len(weights)), liars, several=kind == "multi-krum")
        if not weights[chosen].any():
            weights = np.ones(len(weights))
        weights = np.where(np.isin(np.arange(len(weights)), chosen), weights, 0.0)
    return {name: weighted_mean(rows, weights) for name, rows in changes.items()}


def weighted_mean(changes: Rows, weights: Vector) -> Vector:
    """Σ w_u Δ_u / Σ w_u, users in ascending order within each row."""
    total = np.zeros((changes.count, changes.values.shape[1]))
    if (whole := weights.sum()) > 0:
        heard = np.flatnonzero(weights[changes.owner])
        order = heard[np.argsort(changes.rows[heard], kind="stable")]
        rows = changes.rows[order]
        starts = np.flatnonzero(np.diff(rows, prepend=-1))
        for first in range(0, len(starts), step := max(1, _BLOCK // max(len(weights) * total.shape[1], 1))):
            begin = starts[first]
            part = order[begin : starts[first + step] if first + step < len(starts) else None]
            scaled = weights[changes.owner[part], None] / whole * changes.values[part]
            total[rows[starts[first : first + step]]] = np.add.reduceat(scaled, starts[first : first + step] - begin)
    return total


def by_coordinate(changes: Rows, weights: Vector, liars: int, *, median: bool) -> Vector:
    """The trimmed mean of every coordinate, or its median, over the users who touched its row; see the module.

    Args:
        weights: [n] of all users of the round.
        liars: k.
    Returns:
        [rows, width]; 0 where nobody touched a row.
    """
    width = changes.values.shape[1]
    result, whole = np.zeros((changes.count, width)), weights.sum()
    touched = np.bincount(changes.rows, minlength=changes.count)
    voters = np.where(touched > 0, np.maximum(touched, 2 * liars + 1 if liars else 1), 0)
    trimmed = (voters - 1) // 2 if median else np.full(len(voters), liars)
    order = np.argsort(changes.rows, kind="stable")
    starts = np.concatenate([[0], np.cumsum(touched)])
    longest_first = np.argsort(-voters, kind="stable")
    longest_first = longest_first[touched[longest_first] > 0]
    at = 0
    while at < len(longest_first) and whole > 0:
        longest = int(voters[longest_first[at]])
        rows = longest_first[at : at + max(1, _BLOCK // (longest * width))]
        at += len(rows)
        place = np.arange(longest)
        there = place < touched[rows, None]
        absent = ~there & (place < voters[rows, None])
        own = order[(starts[rows, None] + place)[there]]
        values = np.full((len(rows), longest, width), np.inf, np.float32)
        values[absent] = 0.0
        values[there] = changes.values[own]
        heavy = np.zeros((len(rows), longest))
        heavy[there] = weights[changes.owner[own]]
        sums = heavy.sum(axis=1)
        heavy[absent] = np.repeat(sums / touched[rows], absent.sum(axis=1))
        mean = _mean_between(
            np.ascontiguousarray(values.transpose(0, 2, 1)), heavy, trimmed[rows], (voters - trimmed)[rows]
        )
        share = np.minimum(1.0, sums / touched[rows] * voters[rows] / whole)
        result[rows] = share[:, None] * mean
    return result


def _mean_between(
    values: NDArray[np.float32], weights: Vector, first: NDArray[np.int64], end: NDArray[np.int64]
) -> Vector:
    """[b, width] weighted means of those of the values [b, width, n] that stand at first … end - 1 when sorted.

    Of equal values of which some are left out, those that stay have the mean weight of all: so it does not matter in
    which order users come. Values that are no voters are infinite, of weight 0.

    Args:
        weights: [b, n].
        first, end: [b].
    """
    in_order = np.sort(values, axis=2)
    low = np.take_along_axis(in_order, first[:, None, None], axis=2)
    high = np.take_along_axis(in_order, end[:, None, None] - 1, axis=2)
    at_low, at_high = values == low, values == high
    inside = (values > low) & (values < high)
    mass = np.matmul(inside, weights[:, :, None])[:, :, 0]
    total = np.matmul(np.where(inside, values, np.float32(0)), weights[:, :, None])[:, :, 0]
    below = (values < low).sum(axis=2)
    up_to = (values < high).sum(axis=2)
    for ties, kept, value in (
        (at_low, at_low.sum(axis=2) - (first[:, None] - below), low),
        (at_high, end[:, None] - up_to, high),
    ):
        share = np.matmul(ties, weights[:, :, None])[:, :, 0] * kept / ties.sum(axis=2)
        mass += share
        total += share * value[:, :, 0]
    mean = np.divide(total, mass, out=np.zeros(mass.shape), where=mass > 0)
    # All that is left is one value.
    return np.asarray(np.where(low == high, low, mean[:, :, None])[:, :, 0], np.float64)


def squared_distances(changes: dict[str, Rows], users: int) -> Vector:
    """[n, n] ‖Δ_u - Δ_v‖² over all arrays, from products of blocks of rows; never below 0."""
    products = np.zeros((users, users))
    for part in changes.values():
        width = part.values.shape[1]
        order = np.argsort(part.rows, kind="stable")
        step = max(1, _BLOCK // max(users * width, 1))
        bounds = np.searchsorted(part.rows[order], np.arange(0, part.count + step, step))
        for number, (begin, end) in enumerate(pairwise(bounds)):
            block = np.zeros((users, step, width), np.float32)
            own = order[begin:end]
            block[part.owner[own], part.rows[own] - number * step] = part.values[own]
            flat = block.reshape(users, -1)
            products += flat @ flat.T
    square = np.diag(products)
    return np.asarray(np.maximum(square[:, None] + square[None, :] - 2 * products, 0.0))


def chosen_by_krum(distances: Vector, liars: int, *, several: bool) -> NDArray[np.int64]:
    """The user whose nearest users are nearest, or the n - k first of all when they are sorted by that.

    Args:
        distances: [n, n] squared.
        liars: k.
    Raises:
        RunFailed: n < 2 k + 3, for which nothing is proved.
    """
    users = len(distances)
    if users < 2 * liars + 3:
        raise RunFailed(
            f"Krum needs 2 k + 3 users of which k may lie, and this round has {users} for k = {liars}: take a smaller "
            "robust-fraction, or more users in a round."
        )
    others = distances + np.diag(np.full(users, np.inf))
    nearest = np.sort(others, axis=1)[:, : users - liars - 2]
    return np.argsort(nearest.sum(axis=1), kind="stable")[: users - liars if several else 1]


def robust_bytes(options: RobustOptions, users: int, replies: float) -> float:
    """Bytes that this takes beside the replies: all rows once more, and two matrices of distances."""
    if options.robust_aggregation == "none":
        return 0.0
    krum = 16.0 * users**2 if options.robust_aggregation.endswith("krum") else 0.0
    return 2 * replies + 64 * _BLOCK + krum
