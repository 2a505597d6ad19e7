"""The stages of a secure sum around the messages of a round (`bouquet.masking`).

Nodes make keys, share secrets, train and give masked numbers, agree on who is in the sum, and reveal what takes the
masks off it. Who is lost at a stage is lost for the round; below the threshold the run fails, as it does when replies
are missing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from flwr.app import Message, RecordDict
from numpy.typing import NDArray

from bouquet.arrays import Arrays
from bouquet.errors import ConfigError, RunFailed, WireError
from bouquet.masking.coordinator import Coordinator
from bouquet.masking.fixed import Whole
from bouquet.masking.identity import Members
from bouquet.masking.key_messages import KEYS, LONGEST_CERTIFICATE, SHARES, KeysReply, KeysRequest, SharesReply
from bouquet.masking.rules import Rules
from bouquet.masking.sum_messages import AGREE, OVERHEAD, UNMASK, AgreeReply, MaskedInput, UnmaskReply, said_beside
from bouquet.masking.vectors import Layout, model_digest, refuse_length
from bouquet.randomness import Words
from bouquet.records import message_bytes
from bouquet.wire import TRAIN, TrainReply, refuse_other_round
from strategies.federation.exchange import Exchange, Pace
from strategies.federation.hooks import Hooks
from strategies.federation.replies import Failure, Received, Sent, receive

T = TypeVar("T")
# Of a stage's arrays for each neighbour, with room.
_PER_NEIGHBOR = 128


@dataclass(frozen=True)
class Summed:
    """What came of a round under masks.

    Attributes:
        received: of the nodes in the sum; of each nothing but who its users are.
        reply: the sum over all of them, as if one node had all users.
        up, down: bytes of the stages, by node on average, and those of all messages down.
        clipped: how many values were clipped.
    """

    received: Received
    reply: TrainReply
    up: float
    down: float
    wire_down: int
    clipped: int


@dataclass
class _Traffic:
    """What travelled in the stages, and who was lost."""

    down: int = 0
    up: int = 0
    failures: list[Failure] = field(default_factory=list)
    silent: list[int] = field(default_factory=list)
    timed_out: bool = False


@dataclass(frozen=True)
class _Answer:
    """What `receive` takes for a reply."""

    users: Words
    said: Any
    left_out: Mapping[int, str] = field(default_factory=dict)


def rules_of(method: Hooks) -> Rules:
    """What all nodes of the run hold to."""
    config = method.config
    return Rules(
        config.secure_sums_neighbors,
        config.secure_sums_threshold,
        config.secure_sums_clip,
        config.secure_sums_bits,
        config.noise_of_nodes,
    )


def _authority(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"secure-sums-authority cannot be read ({error}).") from None


class SecureSums:
    """Asks for sums under masks.

    Args:
        method: its roster is there when the first round begins.
        simulated: whether nobody is waited for.
    """

    def __init__(self, method: Hooks, simulated: bool) -> None:
        self._method, self._rules = method, rules_of(method)
        authority = method.config.secure_sums_authority
        self._members = Members(_authority(Path(authority))) if authority else None
        self._paces = {
            kind: Pace(method.config.round_timeout, fixed=simulated) for kind in (KEYS, SHARES, AGREE, UNMASK)
        }

    def ask(self, exchange: Exchange, sent: Sequence[Sent], server_round: int, shared: Arrays, pace: Pace) -> Summed:
        """Ask for the sum over the nodes of a round.

        Args:
            sent: the messages to train, one for each node; sent when their nodes have shared keys.
            shared: what they are sent to train from.
        Raises:
            RunFailed: too few nodes are left.
        """
        method, traffic = self._method, _Traffic()
        specs, cells = method.returning(method.roster.specs), method.summed(method.roster.num_items)
        try:
            refuse_length(specs, cells, method.config.strategy)
            stages = _Stages(self, exchange, sent, server_round, traffic)
            server, nodes = stages.begin()
            users = np.concatenate([item.users for item in sent])
            layout = Layout(specs, cells, self._rules, float(method.weights(users).sum()), len(users), server.nodes)
            inputs = stages.give(server, nodes, layout, pace)
            total = stages.finish(server, nodes, inputs, model_digest(shared))
        except WireError as error:
            first = f" The first failure says: {traffic.failures[0].reason}" if traffic.failures else ""
            raise RunFailed(f"Round {server_round}: {error}.{first}") from None
        exchange.timed_out = traffic.timed_out
        return self._summed(layout, inputs, total, sent, nodes, traffic)

    def _summed(
        self,
        layout: Layout,
        inputs: Mapping[int, tuple[TrainReply, Whole]],
        total: Whole,
        sent: Sequence[Sent],
        nodes: Sequence[int],
        traffic: _Traffic,
    ) -> Summed:
        method, keys = self._method, self._method.roster.users
        replies = [inputs[place][0] for place in sorted(inputs)]
        asked = [sent[nodes[place]] for place in sorted(inputs)]
        users = [item.users[np.isin(keys[item.users], reply.users)] for item, reply in zip(asked, replies, strict=True)]
        received = Received(
            replies,
            users,
            traffic.failures,
            traffic.up,
            traffic.silent,
            [len(item.users) for item in asked],
            [item.message.metadata.dst_node_id for item in asked],
        )
        together, said = np.concatenate(users), layout.decode_rest(total)
        count = len(together)
        up = traffic.up / len(replies)
        reply = TrainReply(
            users=keys[together],
            loss=np.full(count, said.loss, np.float32),
            upload_bytes=np.full(count, round(up), np.int64),
            sums={} if layout.cells else layout.decode_sums(total),
            cells=layout.decode_cells(total) if layout.cells else {},
            sizes=method.roster.sizes[together],
            weight=float(method.weights(together).sum()),
        )
        if reason := method.refusal(reply, together):
            raise RunFailed(f"The sum of the round cannot be used: {reason}.")
        return Summed(received, reply, up, traffic.down / len(sent), traffic.down, said.clipped)


class _Stages:
    """One round.

    Nodes are known by their place among those that were asked (`sent`), and from their keys on by their number among
    those that answered with keys.
    """

    def __init__(
        self, sums: SecureSums, exchange: Exchange, sent: Sequence[Sent], server_round: int, traffic: _Traffic
    ) -> None:
        self._method, self._rules, self._paces, self._members = sums._method, sums._rules, sums._paces, sums._members
        self._exchange, self._sent, self._round, self._traffic = exchange, sent, server_round, traffic
        self._series = self._method.series

    def begin(self) -> tuple[Coordinator, list[int]]:
        """Keys: the server's side of the round, and by number the places of its nodes."""
        request = KeysRequest(self._series, self._round).encode()
        found = self._stage(
            KEYS,
            {place: copy.copy(request) for place in range(len(self._sent))},
            OVERHEAD + 2 * LONGEST_CERTIFICATE,
            self._keys,
            range(len(self._sent)),
        )
        nodes = sorted(found)
        return Coordinator(self._series, self._round, self._rules, [found[place] for place in nodes]), nodes

    def _keys(self, content: RecordDict, _: int) -> KeysReply:
        found = KeysReply.decode(content, self._series, self._round)
        if self._members:
            self._members.refuse_stranger(found, self._series, self._round)
        return found

    def give(
        self, server: Coordinator, nodes: Sequence[int], layout: Layout, pace: Pace
    ) -> dict[int, tuple[TrainReply, Whole]]:
        """Shares, and then what nodes have trained, under masks."""
        series, round_, method = self._series, self._round, self._method
        request = server.request.encode()
        shares = self._stage(
            SHARES,
            {number: copy.copy(request) for number in range(server.nodes)},
            OVERHEAD + _PER_NEIGHBOR * server.nodes,
            lambda content, number: SharesReply.decode(
                content, series, round_, server.neighbors(number), server.public(number), server.transcript
            ),
            nodes,
        )
        asked = server.shared(shares, layout.weight, layout.users)
        contents: dict[int, RecordDict] = {}
        for number, given in asked.items():
            contents[number] = self._sent[nodes[number]].message.content
            self._traffic.down -= message_bytes(contents[number])  # which are counted where they were made
            given.add_to(contents[number])
        keys = method.roster.users

        def decode(content: RecordDict, number: int) -> tuple[TrainReply, Whole]:
            refuse_other_round(content, series, round_)
            users = self._sent[nodes[number]].users
            reply = TrainReply.decode(content, keys[users], {}, "sum")
            about = said_beside(content) + asked[number].digest()
            masked = MaskedInput.decode(
                content, layout.length, layout.bits, server.public(number), server.transcript, about
            )
            if not len(reply.users):
                raise WireError("all of its users are left out")
            self._traffic.failures += [
                Failure(self._node(nodes[number]), 1, f"user {user:016x}: {reason}")
                for user, reason in reply.left_out.items()
            ]
            return reply, masked.values

        most = OVERHEAD + layout.length * layout.bits // 8
        return self._stage(TRAIN, contents, most, decode, nodes, pace)

    def finish(
        self, server: Coordinator, nodes: Sequence[int], inputs: Mapping[int, tuple[TrainReply, Whole]], model: bytes
    ) -> Whole:
        """Agree and unmask."""
        series, round_ = self._series, self._round
        agree = server.given({number: values for number, (_, values) in inputs.items()}, model).encode()
        signed = self._stage(
            AGREE,
            {number: copy.copy(agree) for number in inputs},
            OVERHEAD,
            lambda content, number: AgreeReply.decode(content, series, round_, server.public(number), server.signed),
            nodes,
        )
        unmask = server.agreed(signed).encode()
        revealed = self._stage(
            UNMASK,
            {number: copy.copy(unmask) for number in signed},
            OVERHEAD + _PER_NEIGHBOR * server.nodes,
            lambda content, number: UnmaskReply.decode(
                content,
                series,
                round_,
                len(server.present_neighbors(number)),
                server.public(number),
                server.transcript,
            ),
            nodes,
        )
        return server.unmasked(revealed)

    def _stage(
        self,
        kind: str,
        contents: Mapping[int, RecordDict],
        most: int,
        decode: Callable[[RecordDict, int], T],
        places: Sequence[int],
        pace: Pace | None = None,
    ) -> dict[int, T]:
        """What some nodes answer, by number; who gives no valid answer is lost.

        Args:
            contents: by number, what they are asked.
            most: bytes of an answer beside what it says of users.
            places: by number, where they stand among those that were asked.
        """
        method, config = self._method, self._method.config
        numbers = {int(self._sent[places[number]].users[0]): number for number in contents}
        asked = [
            Sent(
                Message(content, dst_node_id=self._node(places[number]), message_type=kind, group_id=str(self._round)),
                self._sent[places[number]].users,
                most + (self._sent[places[number]].most_bytes if pace else 0),
            )
            for number, content in contents.items()
        ]
        self._traffic.down += sum(message_bytes(item.message.content) for item in asked)
        patience = pace or self._paces[kind]
        replies = self._exchange.ask(asked, patience, config.enough_reply_fraction, config.min_reply_fraction)
        self._traffic.timed_out |= self._exchange.timed_out
        found: dict[int, T] = {}

        def decoded(content: RecordDict, users: NDArray[np.int64]) -> _Answer:
            number = numbers[int(users[0])]
            found[number] = decode(content, number)
            return _Answer(method.roster.users[users], None)

        received = receive(asked, replies, method.roster.users, decoded)
        self._traffic.up += received.bytes
        self._traffic.failures += [
            replace(failure, reason=f"stage '{kind.removeprefix('query.')}': {failure.reason}")
            for failure in received.failures
        ]
        self._traffic.silent += received.silent
        return found

    def _node(self, place: int) -> int:
        return int(self._sent[place].message.metadata.dst_node_id)
