"""Who takes part: the users on every node, found by asking before the first round, and kept up to date after it.

A user belongs to the node that first brought it. Where nodes have registered keys, Flower gives each key one id and
keeps it in the SuperLink's database, so an id says who speaks, in this run and in every one that resumes it: no other
node gets the user, whether its own is there or not. In a simulation ids are drawn for every run and say nothing in the
next.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from bouquet.arrays import Specs, digest_of, dump_specs
from bouquet.catalogue import Catalogue
from bouquet.cells import Cells, CellSpec
from bouquet.errors import RunFailed, WireError
from bouquet.randomness import Words
from bouquet.records import message_bytes
from bouquet.wire import MOST_ROSTER_BYTES, ROSTER, RosterReply, RosterRequest, Update
from strategies.federation.exchange import Exchange
from strategies.federation.replies import Sent, error_text, not_from

POLL_SECONDS = 0.2
_SEVERAL = 2
_NOBODY = np.zeros(1, dtype=np.int64)


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
        return _claim(int(self.users[other][0]), int(self.owners[other][0])) if other.any() else too_many(keys, most)

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


def _claim(user: int, owner: int) -> str:
    return f"it claims user {user:016x}, who belongs to node {owner}"


def roster_query(
    node: int,
    series: str,
    catalogue: Catalogue | None,
    send: bool,
    update: Update = "sum",
    tells: tuple[str, ...] = (),
    gone: Iterable[int] = (),
) -> Message:
    """Ask a node whom it hosts.

    Args:
        catalogue: what the server publishes, if it does.
        send: give it to the node, and not only its edition.
        update, tells: the kind of update that the run will ask for, and what users shall tell beside it.
        gone: keys of users that it had forgotten, and of whom nothing is left here.
    """
    edition = catalogue.edition if catalogue else ""
    keys = np.array(sorted(gone), dtype=np.uint64)
    request = RosterRequest(series, edition, catalogue if send else None, update, keys, tells)
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


def read_answer(message: Message, repeats: bool, cells: CellsOf = lambda num_items: {}) -> RosterReply:
    """What a node says of itself.

    Args:
        repeats: a history may have an item several times.
        cells: the matrices that users give, for a catalogue of so many items.
    Raises:
        WireError: it cannot take part, or what it says is no answer; whatever is wrong with it.
    """
    if message.has_error():
        raise WireError(error_text(message))
    try:
        if (size := message_bytes(message.content)) > MOST_ROSTER_BYTES:
            raise WireError(f"the answer has {size} bytes where at most {MOST_ROSTER_BYTES} make sense")
        return RosterReply.decode(message.content, repeats, cells)
    except WireError:
        raise
    except Exception as error:
        raise WireError(f"its answer cannot be read ({type(error).__name__}: {error})") from None


def await_roster(
    grid: Grid,
    series: str,
    min_nodes: int,
    timeout: float,
    catalogue: Catalogue | None = None,
    update: Update = "sum",
    tells: tuple[str, ...] = (),
    *,
    owners: Mapping[int, int] | None = None,
    least: float = 1.0,
    repeats: bool = False,
    cells: CellsOf = lambda num_items: {},
    most_users: int = 0,
    model: str = "",
) -> Roster:
    """Wait until enough nodes are there and have said whom they host.

    A node that hosts a part of a partitioned data set says how many parts there are; then all parts are waited for.
    Otherwise `min_nodes` nodes are. A node that cannot take part, or that disagrees with the others, is left out; where
    it is one of the parts that are waited for, the run begins without it if a share of them is there.

    Args:
        update, tells: the kind of update that the run asks for, and what users shall tell beside it.
        owners: users that belong to a node already: key -> node.
        least: that share. Where nodes are other people's, one that answers nonsense must not keep all others from
            starting.
        repeats: a history may have an item several times.
        cells: the matrices that users give, for a catalogue of so many items.
        most_users: that one node may bring; 0: any number.
        model: digest of the arrays that nodes must share; "": what most share.
    Raises:
        RunFailed: not enough nodes that can work together came in time.
    """
    deadline = time.monotonic() + timeout
    answers: dict[int, RosterReply] = {}
    failures: dict[int, str] = {}
    waiting: set[int] = set()
    while True:
        known = answers.keys() | failures.keys()
        new = [node for node in grid.get_node_ids() if node not in known]
        asked = [
            Sent(roster_query(node, series, catalogue, node in waiting, update, tells), _NOBODY, MOST_ROSTER_BYTES)
            for node in new
        ]
        left = max(deadline - time.monotonic(), 1.0)
        replies = {reply.metadata.reply_to_message_id: reply for reply in Exchange(grid).ask(asked, left)}
        came_as = {identity: place for place, identity in enumerate(replies)}
        for item in sorted(asked, key=lambda item: came_as.get(item.message.metadata.message_id, len(came_as))):
            node, reply = item.message.metadata.dst_node_id, replies.get(item.message.metadata.message_id)
            if reply is None or not_from(node, reply):
                continue
            try:
                answer = read_answer(reply, repeats, cells)
                if needs_catalogue(answer, catalogue):
                    if node in waiting:
                        raise WireError("the node did not take the catalogue")
                    waiting.add(node)
                else:
                    answers[node] = answer
            except WireError as error:
                failures[node] = str(error)
        together, refused = agreeing(answers, owners or {}, catalogue, most_users, model)
        refused = failures | refused
        parts = max((answer.num_partitions for answer in together.values()), default=0)
        wanted = max(min_nodes, parts)
        came, late = len(together) + len(refused), time.monotonic() > deadline
        if len(together) >= wanted or (refused and came >= wanted and len(together) >= max(least * wanted, 1)):
            return replace(combine(together), refused=refused)
        # Of other people's nodes, a first one that cannot take part says nothing about those that are still to come.
        enough = came >= wanted or not together if least == 1 else came >= max(wanted, 2)
        if refused and (enough or late):
            reason = next(iter(refused.values()))
            raise RunFailed(f"{len(refused)} of {came} nodes cannot take part. The first says: {reason}")
        if late:
            raise RunFailed(
                f"Only {len(together)} of {wanted} nodes came within {timeout:g} s. "
                "Start the missing nodes, or raise node-timeout."
            )
        time.sleep(POLL_SECONDS)


def agreeing(
    answers: Mapping[int, RosterReply],
    owners: Mapping[int, int],
    catalogue: Catalogue | None = None,
    most_users: int = 0,
    model: str = "",
) -> tuple[dict[int, RosterReply], dict[int, str]]:
    """The nodes that can work together, and why the others cannot.

    Those that know the same items and have the same model and the same number of parts as most others, or where a
    catalogue is published, the items of that, and where a model is asked for, that one; among these, of nodes that
    claim the same user the one that it belongs to, or else the one that answered first.

    Args:
        answers: by node, in the order in which they came.
        owners: users that belong to a node already: key -> node.
        most_users: that one node may bring; 0: any number.
        model: digest of the arrays that nodes must share; "": what most share.
    """
    refused: dict[int, str] = {}
    fitting = {node: a for node, a in answers.items() if not catalogue or a.catalogue == catalogue.fingerprint}
    refused |= dict.fromkeys(answers.keys() - fitting.keys(), "it has not taken the catalogue that is published")
    others = {node for node, answer in fitting.items() if model and digest_of(answer.specs) != model}
    refused |= dict.fromkeys(others, "it has another model than the run; give all nodes one configuration")
    fitting = {node: answer for node, answer in fitting.items() if node not in others}
    # Of equally many the first, which `most_common` keeps in front.
    kinds = Counter(_kind(answer) for answer in fitting.values()).most_common(1)
    usual = next((answer for answer in fitting.values() if _kind(answer) == kinds[0][0]), None)
    parts = Counter(answer.num_partitions for answer in fitting.values() if answer.num_partitions)
    divided = min(parts, key=lambda count: (-parts[count], count), default=0)
    together: dict[int, RosterReply] = {}
    owner_of = dict(owners)
    for node, answer in fitting.items():
        assert usual
        users = answer.users.tolist()
        taken = next((user for user in users if owner_of.get(user, node) != node), None)
        if reason := disagreement(answer, usual):
            refused[node] = reason
        elif answer.num_partitions not in (0, divided):
            refused[node] = _other_parts(answer.num_partitions, divided)
        elif taken is not None:
            refused[node] = _claim(taken, owner_of[taken])
        elif reason := too_many(answer.users, most_users):
            refused[node] = reason
        else:
            together[node] = answer
            owner_of |= dict.fromkeys(users, node)
    return together, refused


def _other_parts(count: int, usual: int) -> str:
    return f"it has one of {count} parts of the data, and most nodes one of {usual}"


def _kind(answer: RosterReply) -> tuple[int, str, str]:
    return answer.num_items, answer.catalogue, dump_specs(answer.specs)


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
        return _other_parts(answer.num_partitions, first.num_partitions)
    return ""
