"""Interactions: a cleaned implicit-feedback data set, in which every rating is a 1.

What happens to the rows of a file, in this order: rows of a user are put oldest first (a keyed draw decides between
equal times; where there is no time, rows keep the order of the file); repeated (user, item) pairs are dropped but for
the oldest; users with too few distinct items are dropped; users and items are numbered. The items are those that a kept
user interacted with, not the whole catalogue of the publisher: the papers count them in this way (LastFM-2K: 17,612 of
17,632 items after dropping users below 10; MovieLens-1M: 3,706 and not the largest id 3,952).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from bouquet.errors import ConfigError, DataError
from bouquet.ragged import Ragged
from bouquet.randomness import Purpose, draw, item_keys, streams, ties, user_keys
from data_partition.readers.raw import Reading

if TYPE_CHECKING:
    import pandas as pd

Repeats = Literal["drop", "keep"]


@dataclass(frozen=True, eq=False)
class Interactions:
    """Who interacted with what, in which order.

    Attributes:
        name: name of the data set.
        user_ids: [n] raw ids, in ascending order: numerically if all are whole numbers, else as text.
        item_ids: [m] raw ids, in ascending order likewise.
        histories: n rows; row u holds the items (0..m-1) of user u, oldest first (`randomness.ties` orders those of
            equal time), or in the order of the file where there is no time. With `repeats = "keep"` an item can
            occur several times in a row.
        has_time: whether the order inside a row is the order in time.
        titles: [m], "" where unknown.
        rows: rows of the file, before anything was dropped.
        duplicates: rows that repeat an earlier (user, item) pair: removed, or kept with `repeats = "keep"`. Counted
            over the whole file, the users who were dropped included.
        dropped_users: users with fewer than the asked number of distinct items.
        repeats: whether repeated pairs were dropped.
        held_out: [nnz] int8 of each interaction in `histories`: what those who published the set hold it out for,
            0 nothing, 1 validation, 2 test. None where they do not say.
        reading: of a file of one's own, what had to be found out about it and what could not be read; else None.
    """

    name: str
    user_ids: NDArray[np.str_]
    item_ids: NDArray[np.str_]
    histories: Ragged
    has_time: bool
    titles: tuple[str, ...]
    rows: int
    duplicates: int = 0
    dropped_users: int = 0
    repeats: Repeats = "drop"
    held_out: NDArray[np.int8] | None = None
    reading: Reading | None = None

    @property
    def num_users(self) -> int:
        """n."""
        return len(self.user_ids)

    @property
    def num_items(self) -> int:
        """m."""
        return len(self.item_ids)

    @property
    def num_interactions(self) -> int:
        """Number of interactions in all histories."""
        return len(self.histories.values)

    @cached_property
    def user_keys(self) -> NDArray[np.uint64]:
        """[n] key of every user for keyed randomness; depends on the raw id alone."""
        return user_keys(self.user_ids)


def from_table(
    name: str,
    table: pd.DataFrame,
    *,
    user: str = "user",
    item: str = "item",
    time: str | None = "time",
    in_order: bool = False,
    held_out: str | None = None,
    titles: Mapping[str, str] | None = None,
    min_interactions: int = 0,
    repeats: Repeats = "drop",
) -> Interactions:
    """Interactions from one row per event.

    Args:
        name: name of the data set.
        table: one row per event. The order of the rows has a say only where there is no time column.
        user, item: columns of the raw ids (whole numbers or text).
        time: column of the times, in any unit; None where there is none.
        in_order: without a time column, whether a user's rows are in the order of time all the same.
        held_out: column that says what a row is for in the split that the set was published with: 0 training,
            1 validation, 2 test; or truth values: whether it is for test.
        titles: raw item id to title; ids that do not occur in the table are ignored.
        min_interactions: users with fewer distinct items are dropped.
        repeats: drop repeated (user, item) pairs but for the oldest, or keep all events (sequence methods).
    Raises:
        DataError: an id or a time is missing, or no user is left.
        ConfigError: `repeats` is neither drop nor keep.
    """
    import pandas as pd

    repeats = checked(repeats)
    _refuse_missing(name, table, [user, item] if time is None else [user, item, time])
    user_codes, user_ids = number(table[user])
    item_codes, item_ids = number(table[item])
    if time is None:
        order = np.argsort(user_codes, kind="stable")
    else:
        tie = ties(user_keys(user_ids)[user_codes], item_keys(item_ids)[item_codes])
        order = np.lexsort((tie, table[time].to_numpy(), user_codes))
    user_codes, item_codes = user_codes[order], item_codes[order]

    repeated = pd.Series(user_codes * len(item_ids) + item_codes).duplicated().to_numpy()
    distinct = np.bincount(user_codes[~repeated], minlength=len(user_ids))
    kept_users = distinct >= min_interactions
    kept = kept_users[user_codes]
    if repeats == "drop":
        kept &= ~repeated
    if not kept.any():
        raise nobody_has(name, len(user_ids), min_interactions)
    kept_items = np.bincount(item_codes[kept], minlength=len(item_ids)) > 0
    new_item = np.cumsum(kept_items) - 1
    rows_per_user = np.bincount(user_codes[kept], minlength=len(user_ids))[kept_users]
    item_ids = item_ids[kept_items]
    known = titles or {}
    return Interactions(
        name=name,
        user_ids=user_ids[kept_users],
        item_ids=item_ids,
        histories=Ragged.from_lengths(rows_per_user, new_item[item_codes[kept]]),
        has_time=time is not None or in_order,
        titles=tuple(known.get(raw, "") for raw in item_ids.tolist()),
        rows=len(table),
        duplicates=int(repeated.sum()),
        dropped_users=int((~kept_users).sum()),
        repeats=repeats,
        held_out=None if held_out is None else _held_out_for(table[held_out])[order][kept],
    )


def _held_out_for(column: pd.Series) -> NDArray[np.int8]:
    given = column.to_numpy()
    return np.where(given, 2, 0).astype(np.int8) if given.dtype == np.bool_ else given.astype(np.int8)


def checked(repeats: str) -> Repeats:
    """What is done with repeated pairs.

    Raises:
        ConfigError: it is neither drop nor keep.
    """
    if repeats not in ("drop", "keep"):
        raise ConfigError(f"repeats must be 'drop' or 'keep', not {repeats!r}.")
    return repeats  # type: ignore[return-value]


def nobody_has(name: str, users: int, least: int) -> DataError:
    """That no user is left."""
    return DataError(f"{name}: none of the {users} users has {max(least, 1)} or more distinct items.")


def with_at_least(interactions: Interactions, least: int) -> Interactions:
    """The same data without users who have fewer items, where nobody has an item twice.

    Raises:
        DataError: no user is left.
    """
    enough = np.flatnonzero(interactions.histories.lengths >= least)
    if not len(enough):
        raise nobody_has(interactions.name, interactions.num_users, least)
    dropped = interactions.num_users - len(enough)
    return replace(_of_users(interactions, enough), dropped_users=dropped) if dropped else interactions


def sample_users(interactions: Interactions, count: int, seed: int = 0) -> Interactions:
    """The same data with a random sample of its users, drawn by key: a smaller sample is a part of a larger one.

    Args:
        count: how many users stay; 0, or as many as there are: all.
        seed: of the draw.
    """
    if count == 0 or count >= interactions.num_users:
        return interactions
    ticket = draw(streams(seed, interactions.user_keys, 0, Purpose.USERS), np.array([0]))
    return _of_users(interactions, np.sort(np.argsort(ticket, kind="stable")[:count]))


def _of_users(interactions: Interactions, chosen: NDArray[np.int64]) -> Interactions:
    """The same data with some of its users, ascending, and the items that they know."""
    histories = interactions.histories.take(chosen)
    held_out = interactions.held_out
    known = np.unique(histories.values)
    new_item = np.zeros(interactions.num_items, dtype=np.int64)
    new_item[known] = np.arange(len(known))
    return replace(
        interactions,
        user_ids=interactions.user_ids[chosen],
        item_ids=interactions.item_ids[known],
        histories=Ragged(histories.indptr, new_item[histories.values].astype(np.int32)),
        titles=tuple(interactions.titles[item] for item in known),
        held_out=None if held_out is None else held_out[np.isin(interactions.histories.row_of_value, chosen)],
    )


def number(raw: pd.Series) -> tuple[NDArray[np.int64], NDArray[np.str_]]:
    """Number raw ids 0..k-1 in ascending order, whatever the order of the rows.

    Returns:
        codes: [rows] number of each row's id.
        ids: [k] the distinct ids as text.
    """
    import pandas as pd

    codes, distinct = pd.factorize(raw)
    if pd.api.types.is_integer_dtype(raw.dtype):
        values = np.asarray(distinct, dtype=np.int64)
        order = np.argsort(values)
        ids = values[order].astype(np.str_)
    else:
        text = [str(value) for value in distinct]
        order = np.asarray(natural_order(text), dtype=np.int64)
        ids = np.asarray(text, dtype=np.str_)[order]
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return rank[codes], ids


def natural_order(ids: Iterable[str]) -> list[int]:
    """Positions that sort ids: numerically where all are whole numbers, else as text."""
    texts = list(ids)
    if all(text.isascii() and text.removeprefix("-").isdigit() for text in texts):
        # "07" and "7" are different ids with equal value: the text decides, so that the order stays total.
        return sorted(range(len(texts)), key=lambda i: (int(texts[i]), texts[i]))
    return sorted(range(len(texts)), key=texts.__getitem__)


def _refuse_missing(name: str, table: pd.DataFrame, columns: list[str]) -> None:
    if table.empty:
        raise DataError(f"{name} has no rows.")
    for column in columns:
        missing = table[column].isna().to_numpy()
        if missing.any():
            raise DataError(f"{name}, row {int(missing.argmax()) + 1}: no value in column '{column}'.")
