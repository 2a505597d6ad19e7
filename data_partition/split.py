"""What is held out of every history: the last or a random interaction per user, a share, or what was published.

Of what is left for training a share can be kept, for tables that ask how methods do with less.

Random choices of a user are keyed by (seed, user, hold-out) and made over the user's items in ascending order, so
neither other users nor the order of the rows in the file have a say in them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bouquet.config import lookup
from bouquet.errors import ConfigError
from bouquet.ragged import Ragged, positions
from bouquet.randomness import Purpose, Words, draw, streams
from data_partition.interactions import Interactions

HOLD_OUTS = ("auto", "last", "last-row", "random")

_MIN_FOR_LEAVE_ONE_OUT = 3


@dataclass(frozen=True, eq=False)
class Split:
    """Every interaction is in exactly one of the parts, each of n rows.

    Attributes:
        train: oldest first (or in the order of the file, where there is no time). Never empty.
        validation: empty for a user who is not evaluated.
        test: likewise.
        left_out: what a training share below 1 left out of training; None: nothing.
    """

    train: Ragged
    validation: Ragged
    test: Ragged
    left_out: Ragged | None = None


def make_split(
    interactions: Interactions,
    split: str,
    hold_out: str = "auto",
    seed: int = 0,
    validation: float = 0.1,
    training: float = 1.0,
) -> Split:
    """The split of a run configuration.

    Args:
        split: "leave-one-out", "ratio" or "published".
        hold_out: "auto", "last", "last-row" or "random"; for leave-one-out only.
        seed: of random choices.
        validation: share of what is not for test, in [0, 1); not for leave-one-out.
        training: share of each user's training interactions that is kept, in (0, 1].
    Raises:
        ConfigError: no such split, or one that does not fit the data set.
    """
    splits: dict[str, Callable[[], Split]] = {
        "leave-one-out": lambda: leave_one_out(interactions, hold_out=hold_out, seed=seed),
        "ratio": lambda: ratio(interactions, validation=validation, seed=seed),
        "published": lambda: published(interactions, validation=validation, seed=seed),
    }
    made = lookup(splits, "split", split)()
    return made if training == 1.0 else with_training_share(made, interactions.user_keys, training, seed=seed)


def leave_one_out(interactions: Interactions, *, hold_out: str = "auto", seed: int = 0) -> Split:
    """One interaction of every user for test, one for validation, the rest for training.

    Users with one or two interactions cannot be split: all of theirs is for training, and they are not evaluated.

    Args:
        hold_out: "last": the last in time is for test, the one before for validation. "random": both are drawn,
            keyed by user. "auto": last where the set has time, else random. "last-row": the last row of the user in
            the file, which is the papers' rule for sets without time; row order leaks on FilmTrust.
        seed: of the random choice.
    Raises:
        ConfigError: no such rule, "last" for a set without time, or "last-row" for a set with time.
    """
    histories = interactions.histories
    lengths = histories.lengths
    split_users = np.flatnonzero(lengths >= _MIN_FOR_LEAVE_ONE_OUT)
    starts = histories.indptr[split_users]
    if _rule(interactions, hold_out) == "random":
        by_item = np.lexsort((histories.values, histories.row_of_value))
        stream = streams(seed, interactions.user_keys[split_users], 0, Purpose.HOLD_OUT)
        test, validation = _two_of(lengths[split_users], stream)
        test, validation = by_item[starts + test], by_item[starts + validation]
    else:
        ends = histories.indptr[split_users + 1]
        test, validation = ends - 1, ends - 2
    part = np.zeros(len(histories.values), dtype=np.int8)
    part[validation] = 1
    part[test] = 2
    return _by_part(histories, part)


def ratio(interactions: Interactions, *, test: float = 0.2, validation: float = 0.1, seed: int = 0) -> Split:
    """A random share of every history for test, and a share of the rest for validation.

    Of n interactions, `test` * n are for test and `validation` of what is left for validation (both rounded half up);
    at least one stays for training. So short histories may have nothing for test or validation.

    Args:
        test, validation: shares in [0, 1).
        seed: of the choice, keyed by user.
    Raises:
        ConfigError: a share is out of range.
    """
    for key, share in (("test", test), ("validation", validation)):
        if not 0 <= share < 1:
            raise ConfigError(f"The {key} share of a split must be at least 0 and below 1, not {share}.")
    histories = interactions.histories
    lengths = histories.lengths
    num_test = _part_of(lengths, test)
    num_validation = _part_of(lengths - num_test, validation)
    shuffled, place = _shuffled(histories, interactions.user_keys, seed), positions(lengths)
    row = histories.row_of_value
    part = np.zeros(len(row), dtype=np.int8)
    part[shuffled[place < (num_test + num_validation)[row]]] = 1
    part[shuffled[place < num_test[row]]] = 2
    return _by_part(histories, part)


def published(interactions: Interactions, *, validation: float = 0.1, seed: int = 0) -> Split:
    """For test what those who published the set hold out, and for validation what they do, or else a random share.

    Of a share of each user's other interactions at least one stays for training. With 0 for validation all others are
    for training, those for validation as they were published too.

    Args:
        validation: share in [0, 1), rounded half up; of a set that was published with a validation part only whether it
            is 0.
        seed: of the choice, keyed by user; what is held out for test has no say in it.
    Raises:
        ConfigError: the set was published without a split, or the share is out of range.
    """
    if interactions.held_out is None:
        raise ConfigError(
            f"{interactions.name} was published without a split, so split cannot be 'published': take 'leave-one-out' "
            "or 'ratio'."
        )
    histories, parts_of = interactions.histories, interactions.held_out
    if validation > 0 and (parts_of == 1).any():
        return _with_training(interactions, _by_part(histories, parts_of))
    held_out = parts_of == 2
    left = Ragged.from_pairs(histories.row_of_value[~held_out], histories.values[~held_out], len(histories))
    parts = ratio(replace(interactions, histories=left, held_out=None), test=0.0, validation=validation, seed=seed)
    return replace(
        parts, test=Ragged.from_pairs(histories.row_of_value[held_out], histories.values[held_out], len(histories))
    )


def _with_training(interactions: Interactions, split: Split) -> Split:
    if not split.train.lengths.all():
        user = interactions.user_ids[int(np.argmin(split.train.lengths))]
        raise ConfigError(
            f"User {user} of {interactions.name} has nothing to learn from in the split that it was published with: "
            "take 'leave-one-out'."
        )
    return split


def with_training_share(split: Split, users: Words, share: float, *, seed: int = 0) -> Split:
    """The same split with fewer training interactions; what is held out stays.

    Of n training interactions of a user `share` * n are kept (rounded half up), at least one. What a smaller share
    keeps a larger one keeps as well.

    Args:
        users: [n] keys.
        share: in (0, 1].
        seed: of the choice, keyed by user; what is held out has no say in it.
    Raises:
        ConfigError: the share is out of range.
    """
    if not 0 < share <= 1:
        raise ConfigError(f"The training share of a split must be above 0 and at most 1, not {share}.")
    train = split.train
    kept = np.maximum(_share(train.lengths, share), np.minimum(train.lengths, 1))
    order = _shuffled(train, users, seed, Purpose.TRAINING_SHARE)
    chosen = np.zeros(len(order), dtype=np.bool_)
    chosen[order[positions(train.lengths) < kept[train.row_of_value]]] = True
    parts = _by_part(train, np.where(chosen, 0, 1).astype(np.int8))
    return replace(split, train=parts.train, left_out=parts.validation)


def _rule(interactions: Interactions, hold_out: str) -> str:
    name = interactions.name
    lookup(dict.fromkeys(HOLD_OUTS), "hold-out", hold_out)
    if hold_out == "auto":
        return "last" if interactions.has_time else "random"
    if hold_out == "last" and not interactions.has_time:
        raise ConfigError(f"{name} has no times, so hold-out cannot be 'last'. Use 'random', or 'last-row' for papers.")
    if hold_out == "last-row" and interactions.has_time:
        raise ConfigError(f"{name} has times, so hold-out 'last-row' has no meaning. Use 'last'.")
    return hold_out


def _two_of(lengths: NDArray[np.int64], stream: Words) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Two different places in [0, length) per user, every ordered pair equally likely."""
    first = _below(draw(stream, np.array([0])), lengths)
    second = _below(draw(stream, np.array([1])), lengths - 1)
    return first, second + (second >= first)


def _below(bits: Words, bounds: NDArray[np.int64]) -> NDArray[np.int64]:
    # `integers` takes one bound for all; here every user has its own.
    return (((bits >> np.uint64(32)) * bounds.astype(np.uint64)) >> np.uint64(32)).astype(np.int64)


def _shuffled(histories: Ragged, users: Words, seed: int, purpose: Purpose = Purpose.HOLD_OUT) -> NDArray[np.int64]:
    """[nnz] places in `histories.values`, row after row, each row in an order that is drawn by user and by item."""
    row = histories.row_of_value
    bits = draw(streams(seed, users, 0, purpose)[row], positions(histories.lengths))
    return np.lexsort((histories.values, row))[np.lexsort((bits, row))]


def _part_of(lengths: NDArray[np.int64], share: float) -> NDArray[np.int64]:
    """[n] a share of rows of these lengths that leaves at least one of each."""
    return np.minimum(_share(lengths, share), np.maximum(lengths - 1, 0))


def _share(lengths: NDArray[np.int64], share: float) -> NDArray[np.int64]:
    # The small number keeps 0.1 * 25 = 2.5 on the upper side whatever the last bit of the product is.
    return np.floor(lengths * share + 0.5 + 1e-9).astype(np.int64)


def _by_part(histories: Ragged, part: NDArray[np.int8]) -> Split:
    row = histories.row_of_value
    train, validation, test = (
        Ragged.from_lengths(np.bincount(row[part == p], minlength=len(histories)), histories.values[part == p])
        for p in range(3)
    )
    return Split(train, validation, test)
