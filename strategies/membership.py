"""Who is there: nodes that vanish, come back, or come for the first time, looked after between rounds.

Nobody is waited for here. A node that did not answer is set aside and sent a roster query; a device that the server
has not seen before is sent one too. Whoever answers takes part from the next round on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from bouquet.catalogue import Catalogue
from bouquet.errors import RunFailed, WireError
from bouquet.randomness import Words
from bouquet.wire import RosterReply
from strategies.replies import Failure, error_text, not_from
from strategies.roster import NOWHERE, Roster, disagreement, needs_catalogue, roster_query

POLL_SECONDS = 0.5


@dataclass
class Changes:
    """What happened to the roster since it was last looked at.

    Attributes:
        came, left: nodes that take part again or for the first time, and nodes that do not any more.
        joined: number of users that are new; they stand at the end of the roster.
        forgotten: [f] positions, in the roster before, of users that asked to be forgotten.
        refused: nodes whose answer cannot be accepted, with the reason.
    """

    came: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    joined: int = 0
    forgotten: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    refused: list[Failure] = field(default_factory=list)


class Membership:
    """Keeps a roster up to date.

    Args:
        grid: Flower's.
        roster: of the first round.
        series: the run series.
        catalogue: what the server publishes, if it does.
        patience: seconds after which an unanswered query is sent once more. Messages themselves do not expire: a device
            whose clock is wrong would have all its replies refused.
    """

    def __init__(
        self, grid: Grid, roster: Roster, series: str, catalogue: Catalogue | None = None, patience: float = 300.0
    ) -> None:
        self.roster = roster
        self._grid, self._series, self._catalogue, self._patience = grid, series, catalogue, patience
        self._asked: dict[str, tuple[int, float]] = {}
        self._refused: dict[int, str] = {}
        self._again: set[int] = set()
        self._waiting: set[int] = set()

    @property
    def nodes(self) -> set[int]:
        """Nodes that host a user, present or not."""
        return {int(node) for node in np.unique(self.roster.node_of)} - {NOWHERE}

    def set_aside(self, nodes: Iterable[int]) -> None:
        """Do not ask these nodes until they have answered a query: they were silent when they were asked."""
        self.roster = replace(self.roster, absent=self.roster.absent | frozenset(nodes))

    def query(self, node: int) -> None:
        """Have a node say once more whom it hosts."""
        self._again.add(node)

    def renew(self) -> Changes:
        """Look who is there. Takes as long as asking the SuperLink does, and waits for no node."""
        changes = Changes()
        online = {int(node) for node in self._grid.get_node_ids()}
        for message in self._grid.pull_messages(list(self._asked)) if self._asked else []:
            node, _ = self._asked.pop(message.metadata.reply_to_message_id, (NOWHERE, 0.0))
            if node != NOWHERE and not not_from(node, message):
                self._hear(node, message, changes)
        now = time.monotonic()
        self._asked = {key: (node, sent) for key, (node, sent) in self._asked.items() if now - sent < self._patience}
        changes.left = sorted(self.nodes - online - self.roster.absent)
        self.set_aside(changes.left)
        waiting = {node for node, _ in self._asked.values()}
        present = self.nodes - self.roster.absent
        wanted = (online - present) | (self._again & online)
        self._again -= online
        messages = [
            roster_query(node, self._series, self._catalogue, node in self._waiting)
            for node in sorted(wanted - waiting)
        ]
        if messages:
            for identity, message in zip(self._grid.push_messages(messages), messages, strict=True):
                if identity:
                    self._asked[identity] = (message.metadata.dst_node_id, now)
        return changes

    def await_users(self, least: float, timeout: float, handle: Callable[[Changes], None]) -> None:
        """Renew until a share of all users has a node that is there.

        Args:
            least: the share.
            timeout: seconds.
            handle: called with every change, so that nothing is lost between two looks.
        Raises:
            RunFailed: too few came back in time.
        """
        deadline = time.monotonic() + timeout
        while True:
            handle(self.renew())
            count, present = len(self.roster.users), len(self.roster.present())
            if present > 0 and present >= least * count:
                return
            if time.monotonic() > deadline:
                raise RunFailed(f"Only {present} of {count} users have a node that is there, after {timeout:g} s.")
            time.sleep(POLL_SECONDS)

    def _hear(self, node: int, message: Message, changes: Changes) -> None:
        try:
            if message.has_error():
                raise WireError(error_text(message))
            answer = RosterReply.decode(message.content)
            if needs_catalogue(answer, self._catalogue):
                self._waiting.add(node)
                return
            if reason := disagreement(answer, self.roster) or self.roster.foreign(node, answer.users):
                raise WireError(reason)
        except WireError as error:
            # Told once, however often the node is asked again.
            if self._refused.get(node) != str(error):
                self._refused[node] = str(error)
                changes.refused.append(Failure(node, 0, str(error)))
            return
        self._refused.pop(node, None)
        forgotten = self.roster.positions(answer.forgotten, node)
        if len(forgotten):
            changes.forgotten = np.union1d(changes.forgotten, forgotten)
        before = len(self.roster.users)
        self.roster = self.roster.heard(node, answer)
        changes.joined += len(self.roster.users) - before
        changes.came.append(node)

    def abandoned(self, keys: Words) -> NDArray[np.int64]:
        """Positions of those of these users that no node hosts."""
        return np.flatnonzero(np.isin(self.roster.users, keys) & (self.roster.node_of == np.uint64(NOWHERE)))

    def forget(self, positions: NDArray[np.int64]) -> None:
        """Drop users from the roster."""
        self.roster = self.roster.without(positions)
