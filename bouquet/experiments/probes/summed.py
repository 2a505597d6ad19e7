"""The server that sees sums alone: what secure aggregation leaves to it.

Users are put into groups of k, and of each group the server is given the sum of what its users sent, round by round,
and nothing else: that is what masks prove, if they hold. It then reads each user's history out of the sum of its group
with the same attacks as out of a single update. Guessing the popular items needs no update at all, and finds more than
blind guesses: what is above that is what a sum gives away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bouquet.experiments.probes.reading import (
    Sent,
    Watched,
    chance,
    guess_by_popularity,
    guess_by_signs,
    guess_by_sum,
    precision,
)
from bouquet.randomness import Purpose, generator


@dataclass(frozen=True)
class Recovery:
    """How much of their training items is found of users, in as many guesses.

    Attributes:
        by_size: k -> the better of two attacks on sums over k users.
        popular: by taking the most popular items.
        blind: by guessing without looking.
    """

    by_size: dict[int, float]
    popular: float
    blind: float


def recovery(watched: Watched, sizes: Sequence[int], seed: int = 0) -> Recovery:
    """The share of the histories that sums over so many users give away.

    Args:
        sizes: k, each at least 1; more than there are users is all of them.
    """
    found = {}
    for size in sizes:
        grouped = summed(watched, size, seed)
        found[size] = max(precision(watched, guess(grouped)) for guess in (guess_by_signs, guess_by_sum))
    return Recovery(found, precision(watched, guess_by_popularity(watched)), chance(watched))


def summed(watched: Watched, size: int, seed: int = 0) -> Watched:
    """The same, where everybody's updates are the sums over its group; groups are drawn and stay.

    Args:
        size: k; the last group has what is left.
    """
    users = generator(seed, 0, Purpose.USERS, "sums").permutation(len(watched.sent))
    sent: list[list[Sent]] = [[] for _ in users]
    for start in range(0, len(users), size):
        group = users[start : start + size].tolist()
        rounds = [_sum([watched.sent[user][number] for user in group]) for number in range(len(watched.sent[group[0]]))]
        for user in group:
            sent[user] = rounds
    return replace(watched, sent=sent)


def _sum(updates: Sequence[Sent]) -> Sent:
    if len(updates) == 1:
        return updates[0]
    rows = np.concatenate([rows for rows, _ in updates])
    values = np.concatenate([values for _, values in updates]).astype(np.float64)
    touched, place = np.unique(rows, return_inverse=True)
    total = np.zeros((len(touched), values.shape[1]))
    np.add.at(total, place, values)
    return touched, total
