"""The server that reads updates: what single users sent in some rounds, and what it makes of that.

`watch` trains every user by itself, with the code of the nodes, and averages as `fedavg` does. The attacks see what a
server sees: which rows came from whom in which round, their values, and how many training items each user has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import initial_shared
from bouquet.config import Scalar
from bouquet.wire import TrainRequest
from client_app.node.handlers import train
from client_app.node.host import Host, host_of

TABLE = "item_embedding"
Sent = tuple[NDArray[Any], NDArray[Any]]
"""Rows and values of one user in one round."""


@dataclass(frozen=True)
class Watched:
    """What users sent in some rounds, and what they keep to themselves.

    Attributes:
        host: of all users.
        sent: of each user, one entry per round.
        truth: of each user, its training items.
        vectors: [k, d] the users' embeddings after the last round.
    """

    host: Host
    sent: list[list[Sent]]
    truth: list[set[int]]
    vectors: NDArray[np.float32]


def watch(settings: dict[str, Scalar], folder: Path, rounds: int, node: dict[str, Scalar] | None = None) -> Watched:
    """Let all users train for some rounds; the server takes the mean of their changes."""
    host = host_of({**settings, "state-dir": str(folder)}, node or {})
    users = len(host.histories.users)
    shared = initial_shared(host.shared_specs, host.config.seed)
    sent: list[list[Sent]] = [[] for _ in range(users)]
    for round_ in range(1, rounds + 1):
        before = np.full(users, round_ - 1)
        reply = train(host, TrainRequest("seen", round_, host.identities, before, before, shared, update="rows"))
        packed, mean = reply.rows[TABLE], np.zeros(shared[TABLE].shape)
        for user in range(users):
            rows: NDArray[Any]
            if packed.indptr is None or packed.rows is None:
                rows, values = np.arange(len(mean)), packed.values[user]
            else:
                part = slice(packed.indptr[user], packed.indptr[user + 1])
                rows, values = packed.rows[part], packed.values[part]
            sent[user].append((rows, values))
            mean[rows] += values / users
        shared = {TABLE: (shared[TABLE] + mean).astype(np.float32)}
    state = host.state("seen", shared)
    vectors = state.read(np.arange(users), np.full(users, rounds))["user_embedding"]
    return Watched(host, sent, [set(row.tolist()) for row in map(host.histories.train.row, range(users))], vectors)


def main_direction(values: NDArray[Any]) -> NDArray[np.float64]:
    """[d] the first right singular vector of an update."""
    found: NDArray[np.float64] = np.linalg.svd(values.astype(np.float64), full_matrices=False)[2][0]
    return found


def coefficients(rounds: Sequence[Sent], num_items: int) -> NDArray[np.float64]:
    """[rounds, m] what each row moved along the round's main direction; what is liked has one sign, and it is +.

    A direction has no sign of its own. Rounds are turned so that they agree with the first; then the liked side is the
    one whose items come back, because training items do; among equals the one that moved less, because of negatives
    there are more.
    """
    along = np.zeros((len(rounds), num_items))
    for number, (rows, values) in enumerate(rounds):
        along[number, rows] = values @ main_direction(values)
        if number and np.sign(along[number]) @ np.sign(along[:number]).sum(axis=0) < 0:
            along[number] *= -1

    def merit(side: NDArray[np.float64]) -> tuple[float, float]:
        always = (side > 0).all(axis=0).sum() / max(int((side > 0).any(axis=0).sum()), 1)
        return float(always), -float(side[side > 0].sum())

    return along if merit(along) >= merit(-along) else -along


def always_liked(watched: Watched) -> NDArray[np.float64]:
    """[k, m] how often an item was on the liked side of a user's update, less how often on the other; and 0."""
    num_items = watched.host.histories.num_items
    return np.array([np.sign(coefficients(rounds, num_items)).sum(axis=0) for rounds in watched.sent])


def guess_by_signs(watched: Watched, *, popular: bool = False) -> list[set[int]]:
    """The better attack: items that were on the liked side in most rounds, as many as the user has.

    Args:
        popular: among equals take those that are always liked by most others, instead of those that moved most.
    """
    num_items, score = watched.host.histories.num_items, always_liked(watched)
    others = (score == len(watched.sent[0])).sum(axis=0)
    found = []
    for user, items in enumerate(watched.truth):
        size: NDArray[Any] = others if popular else coefficients(watched.sent[user], num_items).sum(axis=0)
        found.append(set(np.lexsort((-size, -score[user]))[: len(items)].tolist()))
    return found


def guess_by_sum(watched: Watched) -> list[set[int]]:
    """The same attack on the sum of all that a user sent, in which noise averages out."""
    num_items, size = watched.host.histories.num_items, watched.vectors.shape[1]
    found = []
    for rounds, items in zip(watched.sent, watched.truth, strict=True):
        whole = np.zeros((num_items, size))
        for rows, values in rounds:
            whole[rows] += values
        along = coefficients([(np.arange(num_items), whole)], num_items)[0]
        found.append(set(np.argsort(-along, kind="stable")[: len(items)].tolist()))
    return found


def guess_by_popularity(watched: Watched) -> list[set[int]]:
    """What everybody can say who knows what is popular, and nothing of anybody: the most popular items."""
    train, num_items = watched.host.histories.train, watched.host.histories.num_items
    order = np.argsort(-np.bincount(train.values, minlength=num_items), kind="stable")
    return [set(order[: len(items)].tolist()) for items in watched.truth]


def precision(watched: Watched, guesses: Sequence[set[int]]) -> float:
    """The share of all users' training items that are found in as many guesses."""
    right = sum(len(items & found) for items, found in zip(watched.truth, guesses, strict=True))
    return float(right) / sum(len(items) for items in watched.truth)


def chance(watched: Watched) -> float:
    """The same where guesses are made without looking."""
    sizes = np.array([len(items) for items in watched.truth])
    return float((sizes**2 / watched.host.histories.num_items).sum() / sizes.sum())


def equal_rows(sent: Sent) -> int:
    """How many rows of an update equal another one to the last bit."""
    _, counts = np.unique(sent[1], axis=0, return_counts=True)
    return int(counts[counts > 1].sum())
