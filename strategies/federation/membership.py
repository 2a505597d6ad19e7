"""Who is there: nodes that vanish, come back, or come for the first time, looked after between rounds.

Nobody is waited for here. A node that did not answer is set aside and sent a roster query; a device that the server
has not seen before is sent one too. Whoever answers takes part from the next round on; but a node that was waited for
in vain several times rests, twice as long each time: to answer a query costs it nothing, and its deadlines cost all
others. What is known of that is not in a checkpoint: in a resumed run everybody begins anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from bouquet.catalogue import Catalogue
from bouquet.cells import Cells
from bouquet.engines.pull import Inbox
from bouquet.engines.push import push
from bouquet.errors import RunFailed, WireError
from bouquet.wire import MOST_ROSTER_BYTES, Update
from strategies.federation.replies import Failure, not_from
from strategies.federation.roll_call import needs_catalogue, read_answer, roster_query
from strategies.federation.roster import NOWHERE, CellsOf, Roster, disagreement

POLL_SECONDS = 0.5
# A node that hosts nobody (a history too short, a person forgotten) is asked again this often.
IDLE_SECONDS = 60.0
# Rounds for which a node that is never heard of in time rests at most.
LONGEST_REST = 64


@dataclass
class Changes:
    """What happened to the roster since it was last looked at.

    Attributes:
        came, left: nodes that take part again or for the first time, and nodes that do not any more.
        joined: number of users that are new; they stand at the end of the roster.
        forgotten: [f] positions, in the roster before, of users that asked to be forgotten.
        withdrawn: what these had given to sums, by key, round and matrix.
        refused: nodes whose answer cannot be accepted, with the reason.
    """

    came: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    joined: int = 0
    forgotten: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    withdrawn: dict[int, Mapping[int, Mapping[str, Cells]]] = field(default_factory=dict)
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
        update, tells: the kind of update that the run asks for, and what users shall tell beside it.
        repeats: a history may have an item several times.
        cells: the matrices that users give, for a catalogue of so many items.
        most_users: that one node may bring; 0: any number.
    """

    def __init__(
        self,
        grid: Grid,
        roster: Roster,
        series: str,
        catalogue: Catalogue | None = None,
        patience: float = 300.0,
        update: Update = "sum",
        tells: tuple[str, ...] = (),
        repeats: bool = False,
        cells: CellsOf = lambda num_items: {},
        most_users: int = 0,
    ) -> None:
        self.roster, self._update, self._tells, self._repeats, self._cells = roster, update, tells, repeats, cells
        self._most_users = most_users
        # By node, keys of users that it has said shall be forgotten.
        self._forgotten = {node: set(keys.tolist()) for node, keys in roster.forgotten.items()}
        self._grid, self._series, self._catalogue, self._patience = grid, series, catalogue, patience
        self._inbox = Inbox(grid)
        # Of those that were dropped from the roster, whom the last checkpoint still has; and by node, of whom it has
        # heard that nothing is left.
        self._fresh: set[int] = set()
        self._confirmed: dict[int, set[int]] = {}
        self._asked: dict[str, tuple[int, float, set[int]]] = {}
        self._refused: dict[int, str] = {}
        self._again: set[int] = set()
        self._waiting: set[int] = set()
        self._idle: dict[int, float] = {}
        # By node and kind of message: how many times in a row it was waited for in vain; and when it is asked again.
        self._in_vain: dict[tuple[int, str], int] = {}
        self._until: dict[int, int] = {}
        self._unsaid = dict(roster.refused)

    @property
    def nodes(self) -> set[int]:
        """Nodes that host a user, present or not."""
        return {int(node) for node in np.unique(self.roster.node_of)} - {NOWHERE}

    def set_aside(self, nodes: Iterable[int]) -> None:
        """Do not ask these nodes until they have answered a query: they were silent when they were asked."""
        self.roster = replace(self.roster, absent=self.roster.absent | frozenset(nodes))

    def waited_in_vain(self, nodes: Iterable[int], kind: str, server_round: int) -> None:
        """These nodes cost a whole deadline: after k in a row a node is asked again 2^k rounds later, not before."""
        for node in nodes:
            times = self._in_vain[node, kind] = self._in_vain.get((node, kind), 0) + 1
            self._until[node] = server_round + min(2**times, LONGEST_REST)
        self._rest(server_round + 1)

    def answered(self, nodes: Iterable[int], kind: str) -> None:
        """These nodes gave valid replies to messages of this kind."""
        for node in nodes:
            self._in_vain.pop((node, kind), None)

    def _rest(self, server_round: int) -> None:
        self._until = {node: until for node, until in self._until.items() if until > server_round}
        self.roster = replace(self.roster, resting=frozenset(self._until))

    def query(self, node: int) -> None:
        """Have a node say once more whom it hosts."""
        self._again.add(node)

    def renew(self) -> Changes:
        """Look who is there. Takes as long as asking the SuperLink does, and waits for no node."""
        changes = Changes()
        for node, reason in self._unsaid.items():
            self._refuse(node, reason, changes)
        self._unsaid = {}
        online = {int(node) for node in self._grid.get_node_ids()}
        for node, message in self._answers():
            self._hear(node, message, changes)
        now = time.monotonic()
        for identity in [key for key, asked in self._asked.items() if now - asked[1] >= self._patience]:
            del self._asked[identity]
            self._inbox.forget(identity)
        changes.left = sorted(self.nodes - online - self.roster.absent)
        self.set_aside(changes.left)
        waiting = self._waited_for() | {node for node, heard in self._idle.items() if now - heard < IDLE_SECONDS}
        present = self.nodes - self.roster.absent
        wanted = (online - present) | (self._again & online)
        self._again -= online
        self._ask(wanted - waiting)
        return changes

    def confirm(self) -> None:
        """Say whose users were dropped that nothing of them is left: they are in no checkpoint any more."""
        self._fresh.clear()
        self._ask(self._unconfirmed() - self._waited_for())

    def await_confirmed(self, timeout: float) -> None:
        """Wait until all to whom this was said have answered; a run that has ended delivers nothing any more."""
        deadline = time.monotonic() + timeout
        while self._unconfirmed() & self._waited_for() and time.monotonic() < deadline:
            if not self._answers():
                time.sleep(POLL_SECONDS)

    def _ask(self, nodes: Iterable[int]) -> None:
        gone = {node: self._gone_of(node) for node in sorted(nodes)}
        messages = [
            roster_query(node, self._series, self._catalogue, node in self._waiting, self._update, self._tells, keys)
            for node, keys in gone.items()
        ]
        now = time.monotonic()
        if messages:
            for identity, message in zip(push(self._grid, messages), messages, strict=True):
                if identity:
                    node = message.metadata.dst_node_id
                    self._asked[identity] = (node, now, gone[node])

    def _answers(self) -> list[tuple[int, Message]]:
        found = []
        for message in self._inbox.take(dict.fromkeys(self._asked, MOST_ROSTER_BYTES)):
            node, _, gone = self._asked.pop(message.metadata.reply_to_message_id, (NOWHERE, 0.0, set()))
            if node != NOWHERE and not not_from(node, message):
                if message.has_content():
                    self._confirmed.setdefault(node, set()).update(gone)
                found.append((node, message))
        return found

    def _waited_for(self) -> set[int]:
        return {node for node, _, _ in self._asked.values()}

    def _unconfirmed(self) -> set[int]:
        return {node for node in self._forgotten if self._gone_of(node) - self._confirmed.get(node, set())}

    def await_users(self, server_round: int, least: float, timeout: float, handle: Callable[[Changes], None]) -> None:
        """Renew until a share of all users has a node that is there. Where it has not, nobody rests.

        Args:
            server_round: the round that is about to begin.
            least: the share.
            timeout: seconds.
            handle: called with every change, so that nothing is lost between two looks.
        Raises:
            RunFailed: too few came back in time.
        """
        deadline = time.monotonic() + timeout
        self._rest(server_round)
        while True:
            changes = self.renew()
            if len(self.roster.present()) < max(least * self.roster.expected(), 1) and self._until:
                self._until = {}
                self._rest(server_round)
            handle(changes)
            count, present = self.roster.expected(), len(self.roster.present())
            if present > 0 and present >= least * count:
                return
            if time.monotonic() > deadline:
                raise RunFailed(f"Only {present} of {count} users have a node that is there, after {timeout:g} s.")
            time.sleep(POLL_SECONDS)

    def _gone_of(self, node: int) -> set[int]:
        """Of the users that a node has had forgotten, those of whom nothing is left here."""
        return self._forgotten.get(node, set()) - set(self.roster.users.tolist()) - self._fresh

    def _hear(self, node: int, message: Message, changes: Changes) -> None:
        try:
            answer = read_answer(message, self._repeats, self._cells)
            if needs_catalogue(answer, self._catalogue):
                self._waiting.add(node)
                return
            if reason := disagreement(answer, self.roster) or self.roster.foreign(node, answer.users, self._most_users):
                raise WireError(reason)
        except WireError as error:
            self._refuse(node, str(error), changes)
            return
        self._refused.pop(node, None)
        forgotten = self.roster.positions(answer.forgotten, node)
        if len(forgotten):
            changes.forgotten = np.union1d(changes.forgotten, forgotten)
            changes.withdrawn |= dict.fromkeys(answer.forgotten.tolist(), answer.withdrawn)
        self._forgotten.setdefault(node, set()).update(answer.forgotten.tolist())
        before = len(self.roster.users)
        self.roster = self.roster.heard(node, answer)
        changes.joined += len(self.roster.users) - before
        if len(answer.users):
            changes.came.append(node)
        else:
            self._idle[node] = time.monotonic()

    def _refuse(self, node: int, reason: str, changes: Changes) -> None:
        # Told once, however often the node is asked again.
        if self._refused.get(node) != reason:
            self._refused[node] = reason
            changes.refused.append(Failure(node, 0, reason))

    def asked_at_first(self) -> NDArray[np.int64]:
        """Positions of users whose nodes had them forgotten when they were first asked."""
        said = [self.roster.positions(keys, node) for node, keys in self.roster.forgotten.items()]
        return np.unique(np.concatenate(said)) if said else np.zeros(0, np.int64)

    def forget(self, positions: NDArray[np.int64]) -> None:
        """Drop users from the roster."""
        self._fresh.update(self.roster.users[positions].tolist())
        self.roster = self.roster.without(positions)
