"""Populations at the edges of what a device may have, and every combination of methods that fits."""

from __future__ import annotations

from hypothesis import strategies as st

from bouquet.config import RunConfig
from bouquet.errors import ConfigError
from bouquet.methods import METHODS, PLUG_INS
from client_app.personalization import check_combination
from models import BACKBONES

Histories = list[list[int]]

# Histories of 3, 9, 12, 25, 8 and 10 of 30 items: sequences of one training item beside ordinary ones.
ORDINARY: Histories = [[(7 * u + 7 * place) % 30 for place in range(n)] for u, n in enumerate([3, 9, 12, 25, 8, 10])]

# One, two, three and four items (so no test item, no validation item, one training item, two), all items, an ordinary
# history, and two users who are the same.
MIXED: Histories = [[0], [1, 2], [2, 3, 4], [4, 5, 6, 0], list(range(12)), [3, 8, 1, 9, 10, 2, 11], [5, 4, 3, 2, 1]] + [
    [6, 7, 8, 9, 1]
] * 2

POPULATIONS: dict[str, Histories] = {
    "mixed": MIXED,
    "ordinary": ORDINARY,
    "short": [[0], [1, 2], [2, 3, 4], [4, 5, 6, 0], [6]],
    "all items": [list(range(8)), [3, 1, 2], [5], list(range(8))],
    "alike": [[0, 1, 2, 3, 4]] * 6 + [[5, 6, 7, 8, 9]],
    "one user": [[0, 1, 2, 3, 4]],
    "one item": [[0]],
    "nobody evaluated": [[0], [1, 2], [3]],
    "no negatives": [list(range(5))] * 3,
}


def histories(most_users: int = 6, most_items: int = 14) -> st.SearchStrategy[Histories]:
    """Up to so many users, most with one to four items; some may be the same, and some may have all items."""

    def of(items: int) -> st.SearchStrategy[Histories]:
        item = st.integers(0, items - 1)
        short = st.lists(item, min_size=1, max_size=min(4, items), unique=True)
        long = st.lists(item, min_size=min(5, items), max_size=items, unique=True)
        users = st.lists(st.one_of(short, short, long), min_size=1, max_size=most_users)
        return users.flatmap(lambda drawn: st.integers(0, 2).map(lambda copies: drawn + [drawn[0]] * copies))

    return st.integers(1, most_items).flatmap(of)


def combinations() -> list[tuple[str, str, str]]:
    """(strategy, backbone, plug-in), all that a run takes."""
    found = []
    for strategy in sorted(METHODS):
        for backbone in sorted(BACKBONES):
            for plug_in in sorted(PLUG_INS):
                config = RunConfig(strategy=strategy, backbone=backbone, personalization=plug_in)
                try:
                    check_combination(config)
                except ConfigError:
                    continue
                found.append((strategy, backbone, plug_in))
    return found
