"""What a finished simulation would recommend: the lists of its reported round, by raw ids."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from bouquet.config import did_you_mean
from bouquet.errors import ConfigError
from bouquet.randomness import user_keys
from bouquet.reporting.reported import NOTHING, Lists
from bouquet.reporting.run_directory import RunDirectory

# To look for similar names among more users takes a while.
_MOST = 10_000


class Recommended(NamedTuple):
    """One item that a user would be shown: raw id, title ("" where unknown), score."""

    item: str
    title: str
    score: float


def recommended(directory: RunDirectory, user: str, k: int) -> list[Recommended]:
    """The best k items of one user.

    Raises:
        ConfigError: there is no such user, or so many were not kept.
        DataError: there is no finished run, or it kept no recommendations.
    """
    lists = _lists(directory, k)
    key = user_keys([user])[0]
    place = int(np.searchsorted(lists.users, key))
    if place == len(lists.users) or lists.users[place] != key:
        known = directory.reported.read_users()
        raise ConfigError(f"There is no user '{user}' in {directory.path}.{did_you_mean(user, known[:_MOST])}")
    return next(_named(directory, Lists(*(values[place : place + 1] for values in vars(lists).values())), k))


def all_recommended(directory: RunDirectory, k: int) -> list[tuple[str, int, str, str, float]]:
    """User, rank from 1, item, title and score of the best k items of everybody. As `recommended`."""
    lists = _lists(directory, k)
    ids = directory.reported.read_users()
    names = dict(zip(user_keys(ids).tolist(), ids, strict=True)) if ids else {}
    return [
        (names.get(user, f"{user:016x}"), rank, *entry)
        for user, entries in zip(lists.users.tolist(), _named(directory, lists, k), strict=True)
        for rank, entry in enumerate(entries, start=1)
    ]


def _lists(directory: RunDirectory, k: int) -> Lists:
    summary = directory.read_summary()
    lists = directory.reported.read_lists(int(summary.get("best_round") or 0))
    if k < 1:
        raise ConfigError(f"At least one item can be recommended, not {k}.")
    kept = int(directory.read_config().get("recommendations") or 0)
    if k > max(kept, lists.items.shape[1]):
        raise ConfigError(
            f"{directory.path} kept {kept} items of each user, and {k} are asked for: run with recommendations = {k}."
        )
    return lists


def _named(directory: RunDirectory, lists: Lists, k: int) -> Iterator[list[Recommended]]:
    catalogue = directory.reported.read_catalogue()
    for items, scores in zip(lists.items[:, :k].tolist(), lists.scores[:, :k].tolist(), strict=True):
        yield [
            Recommended(catalogue.items[row], catalogue.titles[row], score)
            if catalogue
            else Recommended(str(row), "", score)
            for row, score in zip(items, scores, strict=True)
            if row != NOTHING
        ]
