"""Items that a user did not interact with: negatives for training, candidates for evaluation.

All draws are keyed by user, so a user gets the same items in whatever company it is drawn for. The recipe is plain
integer arithmetic, so that another implementation can repeat it bit for bit:

    stream    = streams(seed, user key, round, purpose)                    one 64-bit word per user
    item(c)   = ((draw(stream, c) >> 32) * num_items) >> 32                number c of the stream as an item

Training negatives: slot s (0, 1, … per user; slots P·j … P·j + P - 1 belong to positive j) holds the first of
item(s), item(s + 2**32), item(s + 2·2**32), … that is not forbidden, 64 attempts at most. If none of the 64 is allowed,
the slot holds allowed[((draw(stream, s + 64·2**32) >> 32) * len(allowed)) >> 32], `allowed` being the items that are
not forbidden, ascending.

Where a node draws from its secret, `stream` is a keystream of it (`bouquet.secret_draws`), and the rest is the same.

Evaluation candidates, and decoys: the first `count` different ones of item(0), item(1), … that are not in the history,
as long as the counter is below 64 + 16 * count; what is then missing is taken from the remaining allowed items, in
ascending order of draw(stream, 2**32 + item). A user with at most `count` allowed items gets all of them, ascending.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from bouquet.ragged import Ragged, positions
from bouquet.randomness import Draws, Purpose, Streams, Words, draw, integers, streams

ATTEMPTS = 64
_NEXT_ATTEMPT = 2**32
# Users are worked on in blocks of so many (user, item) cells: one byte each, small enough to stay near the cache.
_CELLS = 2**23


def training_negatives(
    positives: Ragged,
    forbidden: Ragged,
    num_items: int,
    per_positive: int,
    users: Words,
    draws: Draws,
    round_: int,
) -> Ragged:
    """Negatives for one round of training, drawn uniformly and with replacement.

    Args:
        positives: [k rows] training positives.
        forbidden: [k rows] items that must not be drawn, in any order: the training positives (honest), or the whole
            history (the papers' way, which leaks what is held out).
        num_items: m < 2**32.
        per_positive: negatives per positive.
        users: [k] user keys.
        draws: the run's seed, or the node's secret.
        round_: server round.
    Returns:
        [k rows]: `per_positive` times as many items as there are positives; none where all items are forbidden.
    Raises:
        ValueError: the numbers of rows differ, or an item is not below `num_items`.
    """
    _check(positives, forbidden, users, num_items)
    lengths = positives.lengths * per_positive
    stream = draws.streams(users, round_, Purpose.TRAIN_NEGATIVES)
    parts = []
    for rows, taken in _blocks(forbidden, num_items):
        full = _covers_all(forbidden, rows, taken, num_items)
        lengths[rows][full] = 0
        parts.append(_draw_allowed(stream[rows], lengths[rows], taken))
    return Ragged.from_lengths(lengths, np.concatenate(parts) if parts else [])


def evaluation_candidates(
    history: Ragged, num_items: int, count: int, users: Words, seed: int, purpose: Purpose
) -> Ragged:
    """Items that a held-out item is ranked against, drawn uniformly and without replacement.

    Args:
        history: [k rows] everything that the user interacted with, held-out items included.
        num_items: m < 2**32.
        count: items per user.
        users: [k] user keys.
        seed: of the protocol.
        purpose: VALIDATION_CANDIDATES or TEST_CANDIDATES, which are independent.
    Returns:
        [k rows] of `count` different items, or all that the user has not seen where these are fewer.
    Raises:
        ValueError: the numbers of rows differ, or an item is not below `num_items`.
    """
    return _different(history, num_items, count, users, streams(seed, users, 0, purpose))


def decoy_items(training: Ragged, num_items: int, count: int, users: Words, draws: Draws) -> Ragged:
    """Items that users pretend to have trained on: the same in every round, and none that they have.

    A decoy that is trained on one day leaves the others as they are, and another one is added.

    Args:
        training: [k rows] training items.
        num_items: m < 2**32.
        count: decoys per user.
        users: [k] user keys.
        draws: the run's seed, or the node's secret.
    Returns:
        [k rows] of `count` different items, or all that are left where these are fewer.
    Raises:
        ValueError: the numbers of rows differ, or an item is not below `num_items`.
    """
    return _different(training, num_items, count, users, draws.streams(users, 0, Purpose.DECOYS))


def _different(history: Ragged, num_items: int, count: int, users: Words, stream: Streams) -> Ragged:
    """`count` different items per row that are not in its history."""
    _check(history, history, users, num_items)
    parts, lengths = [], []
    for rows, taken in _blocks(history, num_items):
        chosen, found = _draw_distinct(stream[rows], count, taken)
        parts.append(chosen[np.arange(count) < found[:, None]])
        lengths.append(found)
    if not parts:
        return Ragged.from_lengths([], [])
    return Ragged.from_lengths(np.concatenate(lengths), np.concatenate(parts))


def _draw_allowed(stream: Streams, lengths: NDArray[np.int64], taken: NDArray[np.bool_]) -> NDArray[np.int64]:
    """[sum(lengths)] items that are not taken, by redrawing every slot on its own."""
    num_items = taken.shape[1]
    cells = taken.ravel()
    row = np.repeat(np.arange(len(lengths)), lengths)
    slot = positions(lengths)
    slot_stream, start = stream[row], row * num_items
    items = integers(draw(slot_stream, slot), num_items)
    open_ = np.flatnonzero(cells[start + items])
    for attempt in range(1, ATTEMPTS):
        if not len(open_):
            return items
        redrawn = integers(draw(slot_stream[open_], slot[open_] + attempt * _NEXT_ATTEMPT), num_items)
        items[open_] = redrawn
        open_ = open_[cells[start[open_] + redrawn]]
    for user in np.unique(row[open_]):
        allowed = np.flatnonzero(~taken[user])
        slots = open_[row[open_] == user]
        bits = draw(slot_stream[slots], slot[slots] + ATTEMPTS * _NEXT_ATTEMPT)
        items[slots] = allowed[integers(bits, len(allowed))]
    return items


def _draw_distinct(
    stream: Streams, count: int, taken: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Up to `count` different items per row that are not taken; `taken` is written to.

    Returns:
        chosen: [k, count].
        found: [k] how many of a row are filled.
    """
    num_users, num_items = taken.shape
    chosen = np.zeros((num_users, count), dtype=np.int64)
    found = np.zeros(num_users, dtype=np.int64)
    allowed = num_items - np.count_nonzero(taken, axis=1)
    for user in np.flatnonzero(allowed <= count):
        chosen[user, : allowed[user]] = np.flatnonzero(~taken[user])
        found[user] = allowed[user]
    open_ = np.flatnonzero(allowed > count) if count else np.zeros(0, dtype=np.int64)
    for counter in range(64 + 16 * count):
        if not len(open_):
            return chosen, found
        items = integers(draw(stream[open_], np.array([counter])), num_items)
        new = ~taken[open_, items]
        users, items = open_[new], items[new]
        taken[users, items] = True
        chosen[users, found[users]] = items
        found[users] += 1
        open_ = open_[found[open_] < count]
    for user in open_:
        left = np.flatnonzero(~taken[user])
        order = np.argsort(draw(stream[user : user + 1], left + _NEXT_ATTEMPT), kind="stable")
        chosen[user, found[user] :] = left[order[: count - found[user]]]
        found[user] = count
    return chosen, found


def _blocks(forbidden: Ragged, num_items: int) -> Iterator[tuple[slice, NDArray[np.bool_]]]:
    """Blocks of rows, each with its table of forbidden items [rows, m]."""
    step = max(1, _CELLS // max(num_items, 1))
    for first in range(0, len(forbidden), step):
        last = min(first + step, len(forbidden))
        begin, end = forbidden.indptr[first], forbidden.indptr[last]
        row = np.repeat(np.arange(last - first) * num_items, np.diff(forbidden.indptr[first : last + 1]))
        taken = np.zeros((last - first) * num_items, dtype=np.bool_)
        taken[row + forbidden.values[begin:end]] = True
        yield slice(first, last), taken.reshape(last - first, num_items)


def _covers_all(forbidden: Ragged, rows: slice, taken: NDArray[np.bool_], num_items: int) -> NDArray[np.int64]:
    """Rows of a block in which every item is forbidden; only rows that are long enough are looked at."""
    long = np.flatnonzero(np.diff(forbidden.indptr[rows.start : rows.stop + 1]) >= num_items)
    return long[taken[long].all(axis=1)]


def _check(positives: Ragged, forbidden: Ragged, users: Words, num_items: int) -> None:
    if not len(positives) == len(forbidden) == len(users):
        raise ValueError(f"{len(positives)} rows of positives, {len(forbidden)} forbidden, {len(users)} user keys")
    if len(forbidden.values) and not 0 <= forbidden.values.min() <= forbidden.values.max() < num_items:
        raise ValueError(f"forbidden items must lie in [0, {num_items})")
