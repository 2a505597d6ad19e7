"""A few users' recommendations, from runs that kept them.

`reported/` in the folder of a run then has the best items of every user after the reported round, the catalogue, and
the ids of the users.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bouquet.catalogue import load_catalogue
from bouquet.checked import read_checked
from bouquet.errors import DataError, StateError
from bouquet.randomness import user_keys
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
    folder = directory.path / "reported"
    lists, catalogue, users = (
        folder / name for name in (f"round-{best_round:06d}-lists.safetensors", "catalogue.json", "users.json")
    )
    if not count or not all(path.exists() for path in (lists, catalogue, users)):
        return []
    try:
        arrays, _ = read_checked(lists)
        known = load_catalogue(catalogue)
        names = _names(users)
    except (StateError, ValueError, TypeError) as error:
        raise DataError(f"The recommendations in {folder} cannot be read ({error}).") from None
    titles = [title or item for item, title in zip(known.items, known.titles, strict=True)]
    places = [place for place, key in enumerate(arrays["users"].tolist()) if key in names]
    chosen = [places[int(at)] for at in np.linspace(0, len(places) - 1, min(count, len(places))).round()]
    return [
        Example(
            names[int(arrays["users"][place])],
            [titles[row] for row in arrays["items"][place, :length].tolist() if 0 <= row < len(titles)],
        )
        for place in chosen
    ]


def _names(path: Path) -> dict[int, str]:
    """Key of a user -> its raw id."""
    ids = [str(user) for user in json.loads(path.read_text())]
    return dict(zip(user_keys(ids).tolist(), ids, strict=True))
