"""A few users' recommendations, from runs that kept them (`reported/` in the folder of a run)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bouquet.randomness import user_keys
from bouquet.reporting.recommendations import recommended
from bouquet.reporting.run_directory import RunDirectory


@dataclass(frozen=True)
class Example:
    """What one user would be shown.

    Attributes:
        user: its raw id.
        items: titles, or ids where there are none, best first.
    """

    user: str
    items: Sequence[str]


def examples_of(directory: RunDirectory, best_round: int, count: int, length: int = 10) -> list[Example]:
    """The lists of so many users, evenly spread over all of them; empty where a run kept none.

    Raises:
        DataError: a file is damaged.
    """
    reported = directory.reported
    if not count or not reported.lists(best_round).exists():
        return []
    lists, ids = reported.read_lists(best_round), reported.read_users()
    names = dict(zip(user_keys(ids).tolist(), ids, strict=True)) if ids else {}
    users = [names[key] for key in lists.users.tolist() if key in names]
    most = min(length, lists.items.shape[1])
    if not users or not most:
        return []
    chosen = [users[int(at)] for at in np.linspace(0, len(users) - 1, min(count, len(users))).round()]
    return [Example(user, [e.title or e.item for e in recommended(directory, user, most)]) for user in chosen]
