"""Who takes part: the users on every node, found by asking before the first round, and kept up to date after it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from bouquet.arrays import Specs
from bouquet.catalogue import Catalogue
from bouquet.errors import RunFailed, WireError
from bouquet.randomness import Words
from bouquet.wire import ROSTER, RosterReply, RosterRequest
from strategies.exchange import Exchange
from strategies.replies import Sent, error_text, not_from

POLL_SECONDS = 0.2
_NOBODY = np.zeros(1, dtype=np.int64)


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
        absent: nodes that are not asked at present.
        forgotten: keys of users that nodes asked to forget when they were first asked.
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
    absent: frozenset[int] = frozenset()
    forgotten: Words = field(default_factory=lambda: np.zeros(0, np.uint64))

    def present(self) -> NDArray[np.int64]:
        """Positions of the users whose node is there."""
        gone = np.array([NOWHERE, *self.absent], dtype=np.uint64)
        return np.flatnonzero(~np.isin(self.node_of, gone))

    def by_node(self, users: NDArray[np.int64]) -> list[tuple[int, NDArray[np.int64]]]:
        """Group users (positions in the roster) by the node that hosts them, each group in roster order.

        Users whose node is not there are left out.
        """
        users = np.intersect1d(users, self.present())
        order = np.argsort(self.node_of[users], kind="stable")
        nodes, starts = np.unique(self.node_of[users][order], return_index=True)
        groups = np.split(users[order], starts[1:])
        return sorted(((int(node), group) for node, group in zip(nodes, groups, strict=True)), key=lambda g: g[1][0])

    def positions(self, keys: Words, node: int) -> NDArray[np.int64]:
        """Positions of those of these users that the node hosts."""
        return np.flatnonzero(np.isin(self.users, keys) & (self.node_of == np.uint64(node)))

    def foreign(self, node: int, keys: Words) -> str:
        """Why a node must not host these users, or "": one of them lives on another node."""
        other = np.isin(self.users, keys) & (self.node_of != np.uint64(node)) & (self.node_of != np.uint64(NOWHERE))
        if not other.any():
            return ""
        return f"it claims user {int(self.users[other][0]):016x}, who lives on another node"

    def heard(self, node: int, answer: RosterReply) -> Roster:
        """The roster after a node said whom it hosts; new users stand at the end, ascending."""
        claimed = np.isin(self.users, answer.users)
        node_of, sizes = self.node_of.copy(), self.sizes.copy()
        node_of[~claimed & (node_of == np.uint64(node))] = NOWHERE
        node_of[claimed] = node
        size_of = dict(zip(answer.users.tolist(), answer.sizes.tolist(), strict=True))
        sizes[claimed] = [size_of[user] for user in self.users[claimed].tolist()]
        new = np.sort(answer.users[~np.isin(answer.users, self.users)])
        node_of = np.concatenate([node_of, np.full(len(new), node, np.uint64)])
        return replace(
            self,
            users=np.concatenate([self.users, new]),
            sizes=np.concatenate([sizes, np.array([size_of[user] for user in new.tolist()], np.int64)]),
            node_of=node_of,
            nodes=len(set(node_of.tolist()) - {NOWHERE}),
            absent=self.absent - {node},
        )

    def without(self, positions: NDArray[np.int64]) -> Roster:
        """The roster without some users."""
        kept = ~np.isin(np.arange(len(self.users)), positions)
        return replace(self, users=self.users[kept], sizes=self.sizes[kept], node_of=self.node_of[kept])

    def in_order_of(self, users: Words, sizes: NDArray[np.int64]) -> Roster:
        """The same roster with these users first, in this order; those without a node are nowhere."""
        place = {int(user): index for index, user in enumerate(self.users)}
        here = np.array([place.get(int(user), -1) for user in users], dtype=np.int64)
        rest = np.flatnonzero(~np.isin(self.users, users))
        node_of = np.where(here >= 0, self.node_of[here], np.uint64(NOWHERE))
        return replace(
            self,
            users=np.concatenate([users, self.users[rest]]),
            sizes=np.concatenate([np.where(here >= 0, self.sizes[here], sizes), self.sizes[rest]]),
            node_of=np.concatenate([node_of, self.node_of[rest]]),
        )


def roster_query(node: int, series: str, catalogue: Catalogue | None, send: bool) -> Message:
    """Ask a node whom it hosts.

    Args:
        catalogue: what the server publishes, if it does.
        send: give it to the node, and not only its edition.
    """
    edition = catalogue.edition if catalogue else ""
    request = RosterRequest(series, edition, catalogue if send else None)
    return Message(request.encode(), dst_node_id=node, message_type=ROSTER)


def needs_catalogue(answer: RosterReply, catalogue: Catalogue | None) -> bool:
    """Whether a node asks for the catalogue.

    Raises:
        WireError: it does, and the server has none.
    """
    if answer.num_items:
        return False
    if catalogue is None:
        raise WireError("the node has a history and no catalogue; give the run a catalogue-file to publish")
    return True


def await_roster(grid: Grid, series: str, min_nodes: int, timeout: float, catalogue: Catalogue | None = None) -> Roster:
    """Wait until enough nodes are there and have said whom they host.

    A node that hosts a part of a partitioned data set says how many parts there are; then all parts are
    waited for. Otherwise `min_nodes` nodes are.

    Raises:
        RunFailed: not enough nodes came in time, or those that came cannot work together.
    """
    deadline = time.monotonic() + timeout
    answers: dict[int, RosterReply] = {}
    failures: dict[int, str] = {}
    waiting: set[int] = set()
    while True:
        known = answers.keys() | failures.keys()
        new = [node for node in grid.get_node_ids() if node not in known]
        asked = [Sent(roster_query(node, series, catalogue, node in waiting), _NOBODY) for node in new]
        left = max(deadline - time.monotonic(), 1.0)
        replies = {reply.metadata.reply_to_message_id: reply for reply in Exchange(grid).ask(asked, left)}
        for item in asked:
            node, reply = item.message.metadata.dst_node_id, replies.get(item.message.metadata.message_id)
            try:
                if reply is None or not_from(node, reply):
                    continue
                if reply.has_error():
                    raise WireError(error_text(reply))
                answer = RosterReply.decode(reply.content)
                if needs_catalogue(answer, catalogue):
                    if node in waiting:
                        raise WireError("the node did not take the catalogue")
                    waiting.add(node)
                else:
                    answers[node] = answer
            except WireError as error:
                failures[node] = str(error)
        wanted = max([min_nodes, *(answer.num_partitions for answer in answers.values())])
        if len(answers) >= wanted:
            return combine(answers)
        came = len(answers) + len(failures)
        if failures and (came >= wanted or not answers):
            reason = next(iter(failures.values()))
            raise RunFailed(f"{len(failures)} of {came} nodes cannot take part. The first says: {reason}")
        if time.monotonic() > deadline:
            raise RunFailed(
                f"Only {len(answers)} of {wanted} nodes came within {timeout:g} s. "
                "Start the missing nodes, or raise node-timeout."
            )
        time.sleep(POLL_SECONDS)


def combine(answers: dict[int, RosterReply]) -> Roster:
    """One roster from the answers of all nodes.

    Raises:
        RunFailed: nodes disagree about the catalogue or the model, or two of them host the same user.
    """
    first = next(iter(answers.values()))
    for node, answer in answers.items():
        if reason := disagreement(answer, first):
            raise RunFailed(f"Node {node} cannot take part: {reason}")
    users = np.concatenate([answer.users for answer in answers.values()])
    node_of = np.repeat(np.array(list(answers), np.uint64), [len(answer.users) for answer in answers.values()])
    order = np.argsort(users)
    users = users[order]
    if (twice := users[1:] == users[:-1]).any():
        raise RunFailed(f"User {int(users[1:][twice][0]):016x} lives on two nodes.")
    if len(users) == 0:
        raise RunFailed("No node hosts a user.")
    return Roster(
        users=users,
        sizes=np.concatenate([answer.sizes for answer in answers.values()])[order],
        node_of=node_of[order],
        nodes=len(answers),
        interactions=sum(answer.interactions for answer in answers.values()),
        dropped_users=sum(answer.dropped_users for answer in answers.values()),
        num_items=first.num_items,
        catalogue=first.catalogue,
        specs=first.specs,
        forgotten=np.concatenate([answer.forgotten for answer in answers.values()]),
    )


def disagreement(answer: RosterReply, first: RosterReply | Roster) -> str:
    """Why a node cannot work with the others, or ""."""
    if (answer.num_items, answer.catalogue) != (first.num_items, first.catalogue):
        return f"it has another catalogue ({answer.num_items} items) than the first node ({first.num_items} items)."
    if answer.specs != first.specs:
        return "it has another model than the first node; give all nodes one configuration."
    return ""
