"""How much one user can move the model: at most so many times as far as the others of its round would.

Every part of a round, a user's change or the sum of a node's users, is measured by array, per unit of the weight that
it counts with: the L2 norm of its largest row and of the whole. The measure of the round is the median over the parts
that changed anything, so that fewer than half of them can move it. With B = `update-bound` a part j may have

    x_j <= B * median_i (x_i * max(1, k_i / k_j))

where a part is about k users: the mean of many is shorter than the change of one of them, by k_i / k_j at the most. A
row above its limit, and then a whole above its limit, is scaled down to it. What is more than a hundred times above is
no honest training, and its node, or user, is left out of the round.

Rows are bounded apart from the whole because a single row that was blown up hides in the norm of a long history.
Weights are the server's, out of sizes that nodes claim once, and none is above the catalogue's. So that a claim buys
little, w_j x_j, with w_j the weight of one of a part's users, is held to 6 B times its own median in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Specs
from bouquet.wire import TrainReply

# A median of fewer is nobody's measure.
LEAST_PARTS = 5
# A change times its weight may be so many times as far above its own median: who has a long history counts for more,
# and in real data moves more too, but nobody as much as a made-up history of the whole catalogue.
WEIGHED_ROOM = 6.0
# Times the limit: beyond it a part is refused.
BEYOND_ALL = 100.0
FAR_LARGER = "far larger"
# The largest norm whose square is a 32-bit number; whoever is above it is refused whatever the bound is.
LARGEST = math.sqrt(float(np.finfo(np.float32).max))

Norms = NDArray[np.float64]


@dataclass(frozen=True)
class Bounds:
    """What a round's parts were held to.

    Attributes:
        replies: with every part within its limit; those of which nothing is left are not among them.
        kept: the places of these replies among those given.
        refused: by place of a reply, why it is refused as a whole, or its single users with their keys and reasons.
        users, nodes: how many users' parts were scaled down, and how many replies hold them; a sum over many users
            counts as all of them.
    """

    replies: list[TrainReply]
    kept: list[int]
    refused: dict[int, str | dict[int, str]]
    users: int = 0
    nodes: int = 0


def bounded(replies: Sequence[TrainReply], specs: Specs, bound: float) -> Bounds:
    """Hold every part of a round to its limit.

    Args:
        replies: those of a round that are valid, with what they count for.
        specs: of the arrays that come back.
        bound: B; 0 for none. Then only parts that are too large for 32-bit numbers are refused.
    """
    replies = list(replies)
    counts = [np.ones(len(reply.users)) if reply.rows else np.array([float(len(reply.users))]) for reply in replies]
    bad, scaled = ([np.zeros(len(count), dtype=bool) for count in counts] for _ in range(2))
    for name, spec in specs.items():
        holders = [place for place, reply in enumerate(replies) if name in (reply.rows or reply.sums)]
        if not holders:
            continue
        own = [counts[place] for place in holders]
        parts = [_Parts.of(replies[place], name, spec.by_item) for place in holders]
        largest = [part.combined(part.norms, np.maximum) for part in parts]
        wholes = [part.whole(part.norms) for part in parts]
        shares = [part.weight / count for part, count in zip(parts, own, strict=True)]
        row_limits, limits = (_limits(own, shares, norms, bound) for norms in (largest, wholes))
        for at, (place, part) in enumerate(zip(holders, parts, strict=True)):
            beyond = (largest[at] > BEYOND_ALL * row_limits[at]) | (wholes[at] > BEYOND_ALL * limits[at])
            beyond |= ~(wholes[at] * max(1.0, part.weight) <= LARGEST)
            bad[place] |= beyond
            rows = np.minimum(part.norms, part.spread(row_limits[at]))
            held = part.whole(rows)
            over = ~beyond & ((largest[at] > row_limits[at]) | (held > limits[at]))
            if over.any():
                scaled[place] |= over
                factors = _ratio(rows, part.norms) * part.spread(_ratio(limits[at], held))
                replies[place] = part.scaled(replies[place], name, np.where(part.spread(over), factors, 1.0))
    return _outcome(replies, bad, scaled)


def _outcome(replies: list[TrainReply], bad: list[NDArray[np.bool_]], scaled: list[NDArray[np.bool_]]) -> Bounds:
    kept: list[int] = []
    left: list[TrainReply] = []
    refused: dict[int, str | dict[int, str]] = {}
    users = nodes = 0
    for place, reply in enumerate(replies):
        clipped = scaled[place] & ~bad[place]
        users += int(clipped.sum()) if reply.rows else len(reply.users) * int(clipped.any())
        nodes += bool(clipped.any())
        if bad[place].any():
            reason = f"its update is {FAR_LARGER} than those of the other users of the round"
            if not reply.rows:
                refused[place] = reason
                continue
            refused[place] = wrong = dict.fromkeys(reply.users[bad[place]].tolist(), reason)
            if bad[place].all():
                continue
            reply = reply.without(wrong)
        kept.append(place)
        left.append(reply)
    return Bounds(left, kept, refused, users, nodes)


def _limits(counts: list[Norms], shares: list[Norms], found: list[Norms], bound: float) -> list[Norms]:
    """The limit of every part; none where too few changed anything to be a measure.

    Args:
        counts: k, the users of every part, by reply.
        shares: the weight of one of these users.
        found: x, the norms.
    """
    k, w, x = (np.concatenate(values) for values in (counts, shares, found))
    seen = (x > 0) & np.isfinite(x)
    if bound == 0 or seen.sum() < LEAST_PARTS:
        return [np.full(len(count), math.inf) for count in counts]
    limits = np.full(len(x), math.inf)
    for count in np.unique(k):
        room = np.maximum(1.0, k[seen] / count)
        alone, weighed = np.median(x[seen] * room), np.median(w[seen] * x[seen] * room)
        same = k == count
        limits[same] = bound * alone
        if weighed > 0:
            heavy = same & (w > 0)
            limits[heavy] = np.minimum(limits[heavy], WEIGHED_ROOM * bound * weighed / w[heavy])
    return np.split(limits, np.cumsum([len(count) for count in counts])[:-1])


def _ratio(limit: Norms, found: Norms) -> Norms:
    """What a norm is scaled with to be within a limit."""
    return np.minimum(1.0, np.divide(limit, found, out=np.ones(len(found)), where=found > 0))


@dataclass(frozen=True)
class _Parts:
    """One array of a reply: a part for each user of a "rows" reply, or one for all users of a "sum".

    Attributes:
        rows: [r, width] the rows that travel, of all parts; an array without item rows is one row.
        starts: [parts + 1] where the rows of each part begin.
        norms: [r] of the rows, per unit of weight.
        weight: what is multiplied with these norms when they are added up.
    """

    rows: NDArray[np.floating]
    starts: NDArray[np.int64]
    norms: Norms
    weight: float

    @classmethod
    def of(cls, reply: TrainReply, name: str, by_item: bool) -> _Parts:
        if name in reply.rows:
            packed = reply.rows[name]
            values, starts, scale, weight = packed.values, packed.indptr, 1.0, 1.0
            if starts is None:
                each = values.shape[1] if by_item else 1
                starts = each * np.arange(len(values) + 1)
        else:
            values, weight = reply.sums[name].values, reply.weight
            scale = reply.factor / weight if weight > 0 else 1.0
            starts = np.array([0, len(values) if by_item else 1])
        rows = values.reshape(int(starts[-1]), -1) if values.size else np.zeros((int(starts[-1]), 1), values.dtype)
        with np.errstate(over="ignore"):
            norms = scale * np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
        return cls(rows, starts, norms, weight)

    def combined(self, rows: Norms, combine: np.ufunc) -> Norms:
        """[parts] the values of each part's rows combined; 0 for a part without rows."""
        found = np.zeros(len(self.starts) - 1)
        some = np.diff(self.starts) > 0
        if some.any():
            found[some] = combine.reduceat(rows, self.starts[:-1][some])
        return found

    def whole(self, rows: Norms) -> Norms:
        """[parts] norms of all that changes, out of the norms of rows."""
        with np.errstate(over="ignore"):
            return np.sqrt(self.combined(rows**2, np.add))

    def spread(self, parts: NDArray[Any]) -> NDArray[Any]:
        """[r] for each row what its part has."""
        return np.repeat(parts, np.diff(self.starts))

    def scaled(self, reply: TrainReply, name: str, factors: Norms) -> TrainReply:
        """The reply with the rows of this array scaled; what is not scaled keeps its last digit."""
        rows, smaller = self.rows.copy(), factors < 1
        rows[smaller] = (rows[smaller] * factors[smaller, None]).astype(rows.dtype)
        if name in reply.rows:
            packed = reply.rows[name]
            changed = replace(packed, values=rows.reshape(packed.values.shape))
            return replace(reply, rows={**reply.rows, name: changed})
        part = reply.sums[name]
        return replace(reply, sums={**reply.sums, name: replace(part, values=rows.reshape(part.values.shape))})
