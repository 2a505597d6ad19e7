"""The roll call: nodes are asked whom they host, before the first round and when they come, and what they say."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from bouquet.arrays import digest_of, dump_specs
from bouquet.catalogue import Catalogue
from bouquet.errors import RunFailed, WireError
from bouquet.records import message_bytes
from bouquet.wire import MOST_ROSTER_BYTES, ROSTER, RosterReply, RosterRequest, Update
from strategies.federation.exchange import Exchange
from strategies.federation.replies import Sent, error_text, not_from
from strategies.federation.roster import CellsOf, Roster, claim, combine, disagreement, other_parts, too_many

POLL_SECONDS = 0.2
_NOBODY = np.zeros(1, dtype=np.int64)


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
            refused[node] = other_parts(answer.num_partitions, divided)
        elif taken is not None:
            refused[node] = claim(taken, owner_of[taken])
        elif reason := too_many(answer.users, most_users):
            refused[node] = reason
        else:
            together[node] = answer
            owner_of |= dict.fromkeys(users, node)
    return together, refused


def _kind(answer: RosterReply) -> tuple[int, str, str]:
    return answer.num_items, answer.catalogue, dump_specs(answer.specs)
