"""Who takes part: the users on every node, as nodes have said when they were asked (`roll_call`).

A user belongs to the node that first brought it. Where nodes have registered keys, Flower gives each key one id and
keeps it in the SuperLink's database, so an id says who speaks, in this run and in every one that resumes it: no other
node gets the user, whether its own is there or not. In a simulation ids are drawn for every run and say nothing in the
next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Specs
from bouquet.cells import Cells, CellSpec
from bouquet.errors import RunFailed
from bouquet.randomness import Words
from bouquet.wire import RosterReply

CellsOf = Callable[[int], Mapping[str, CellSpec]]
NOWHERE = 0
"""The node of a user that no node hosts at present; Flower's ids are larger."""


@dataclass(frozen=True)
class Roster:
    """All users of a run, in an order that does not depend on nodes.

    Attributes:
        users: [n] keys, ascending; users that came while the run went on stand at the end.
        sizes: [n] training interactions n_u.
        node_of: [n] the node that hosts each user.
        nodes: number of nodes.
        interactions, dropped_users: counts over all nodes.
        num_items, catalogue, specs: what all nodes agree on.
        num_partitions: of how many parts of a data set nodes have one; 0: of none.
        owners: [n] the node that each user belongs to; `NOWHERE`: the first that brings it.
        absent: nodes that are not asked at present: they were silent, or are gone, and have not answered since.
        resting: nodes that are not asked at present though they answer: they have cost too many deadlines.
        forgotten: by node, keys of users that it asked to forget when it was first asked.
        refused: nodes that answered and cannot take part, with the reason.
        withdrawn: of users that were forgotten then, what they had given to sums, by key, round and matrix.
    """

    users: Words
    sizes: NDArray[np.int64]
    node_of: NDArray[np.uint64]
    nodes: int
    interactions: int
    dropped_users: int
    num_items: int
    catalogue: str
    specs: Specs
    owners: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    absent: frozenset[int] = frozenset()
    resting: frozenset[int] = frozenset()
    forgotten: Mapping[int, Words] = field(default_factory=dict)
    refused: Mapping[int, str] = field(default_factory=dict)
    withdrawn: Mapping[int, Mapping[int, Mapping[str, Cells]]] = field(default_factory=dict)
    num_partitions: int = 0

    def present(self) -> NDArray[np.int64]:
        """Positions of the users whose node is there and is asked."""
        gone = np.array([NOWHERE, *self.absent, *self.resting], dtype=np.uint64)
        return np.flatnonzero(~np.isin(self.node_of, gone))

    def by_node(self, users: NDArray[np.int64]) -> list[tuple[int, NDArray[np.int64]]]:
        """Group users (positions in the roster) by the node that hosts them, each group in roster order.

        Users whose node is not there are left out.
        """
        users = np.intersect1d(users, self.present())
        if not len(users):
            return []
        order = np.argsort(self.node_of[users], kind="stable")
        nodes, starts = np.unique(self.node_of[users][order], return_index=True)
        groups = np.split(users[order], starts[1:])
        return sorted(((int(node), group) for node, group in zip(nodes, groups, strict=True)), key=lambda g: g[1][0])

    def positions(self, keys: Words, node: int) -> NDArray[np.int64]:
        """Positions of those of these users that belong to the node, or to nobody yet and live nowhere."""
        free = (self.owners == np.uint64(NOWHERE)) & (self.node_of == np.uint64(NOWHERE))
        return np.flatnonzero(np.isin(self.users, keys) & ((self.owners == np.uint64(node)) | free))

    def expected(self) -> int:
        """How many users have a node, there or not; a node that has others now is no longer waited for with these."""
        given_up = (self.node_of == np.uint64(NOWHERE)) & (self.owners != np.uint64(NOWHERE))
        return len(self.users) - int((given_up & np.isin(self.owners, self.node_of)).sum())

    def foreign(self, node: int, keys: Words, most: int = 0) -> str:
        """Why a node must not host these users, or "": one belongs to another node, or they are more than `most`."""
        other = np.isin(self.users, keys) & (self.owners != np.uint64(node)) & (self.owners != np.uint64(NOWHERE))
        return claim(int(self.users[other][0]), int(self.owners[other][0])) if other.any() else too_many(keys, most)

    def heard(self, node: int, answer: RosterReply) -> Roster:
        """The roster after a node said whom it hosts; new users stand at the end, ascending."""
        claimed = np.isin(self.users, answer.users)
        node_of, sizes = self.node_of.copy(), self.sizes.copy()
        node_of[~claimed & (node_of == np.uint64(node))] = NOWHERE
        node_of[claimed] = node
        owners = self.owners.copy()
        owners[claimed] = node
        size_of = dict(zip(answer.users.tolist(), answer.sizes.tolist(), strict=True))
        sizes[claimed] = [size_of[user] for user in self.users[claimed].tolist()]
        new = np.sort(answer.users[~np.isin(answer.users, self.users)])
        node_of = np.concatenate([node_of, np.full(len(new), node, np.uint64)])
        return replace(
            self,
            users=np.concatenate([self.users, new]),
            sizes=np.concatenate([sizes, np.array([size_of[user] for user in new.tolist()], np.int64)]),
            node_of=node_of,
            owners=np.concatenate([owners, np.full(len(new), node, np.uint64)]),
            nodes=len(set(node_of.tolist()) - {NOWHERE}),
            absent=self.absent - {node},
        )

    def without(self, positions: NDArray[np.int64]) -> Roster:
        """The roster without some users."""
        kept = ~np.isin(np.arange(len(self.users)), positions)
        return replace(
            self,
            users=self.users[kept],
            sizes=self.sizes[kept],
            node_of=self.node_of[kept],
            owners=self.owners[kept],
        )

    def in_order_of(self, users: Words, sizes: NDArray[np.int64], owners: NDArray[np.uint64]) -> Roster:
        """The same roster with these users first, in this order; those without a node are nowhere.

        Args:
            owners: the nodes that the users belong to, whoever is there.
        """
        place = {int(user): index for index, user in enumerate(self.users)}
        here = np.array([place.get(int(user), -1) for user in users], dtype=np.int64)
        rest = np.flatnonzero(~np.isin(self.users, users))
        node_of = np.where(here >= 0, self.node_of[here], np.uint64(NOWHERE))
        return replace(
            self,
            users=np.concatenate([users, self.users[rest]]),
            sizes=np.concatenate([np.where(here >= 0, self.sizes[here], sizes), self.sizes[rest]]),
            node_of=np.concatenate([node_of, self.node_of[rest]]),
            owners=np.concatenate([np.where(owners > NOWHERE, owners, node_of), self.node_of[rest]]),
        )


def too_many(users: Words, most: int) -> str:
    """Why a node must not host so many users, or "".

    Args:
        most: 0: any number.
    """
    return (
        f"it brings {len(users)} users where a node may have {most} (users-per-node)" if 0 < most < len(users) else ""
    )


def claim(user: int, owner: int) -> str:
    """Why a node must not bring a user of another."""
    return f"it claims user {user:016x}, who belongs to node {owner}"


def other_parts(count: int, usual: int) -> str:
    """Why a node does not fit to parts that are others."""
    return f"it has one of {count} parts of the data, and most nodes one of {usual}"


def combine(answers: Mapping[int, RosterReply]) -> Roster:
    """One roster from the answers of nodes that agree.

    Raises:
        RunFailed: they have no user.
    """
    first = next(iter(answers.values()))
    users = np.concatenate([answer.users for answer in answers.values()])
    node_of = np.repeat(np.array(list(answers), np.uint64), [len(answer.users) for answer in answers.values()])
    order = np.argsort(users)
    users, node_of = users[order], node_of[order]
    if len(users) == 0:
        raise RunFailed("No node hosts a user.")
    return Roster(
        users=users,
        sizes=np.concatenate([answer.sizes for answer in answers.values()])[order],
        node_of=node_of,
        nodes=len(answers),
        interactions=sum(answer.interactions for answer in answers.values()),
        dropped_users=sum(answer.dropped_users for answer in answers.values()),
        num_items=first.num_items,
        catalogue=first.catalogue,
        specs=first.specs,
        num_partitions=max(answer.num_partitions for answer in answers.values()),
        owners=node_of.copy(),
        forgotten={node: answer.forgotten for node, answer in answers.items() if len(answer.forgotten)},
        withdrawn={user: answer.withdrawn for answer in answers.values() for user in answer.forgotten.tolist()},
    )


def disagreement(answer: RosterReply, first: RosterReply | Roster) -> str:
    """Why a node cannot work with the others, or ""."""
    if (answer.num_items, answer.catalogue) != (first.num_items, first.catalogue):
        return f"it has another catalogue ({answer.num_items} items) than most nodes ({first.num_items} items)"
    if answer.specs != first.specs:
        return "it has another model than most nodes; give all nodes one configuration"
    if isinstance(first, Roster) and first.num_partitions and answer.num_partitions not in (0, first.num_partitions):
        return other_parts(answer.num_partitions, first.num_partitions)
    return ""
