"""The stages of a secure sum around the messages of a round (`bouquet.masking`).

Nodes make keys, share secrets, train and give masked numbers, agree on who is in the sum, and reveal what takes the
masks off it. Who is lost at a stage is lost for the round; below the threshold the run fails, as it does when replies
are missing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from flwr.app import Message, RecordDict
from numpy.typing import NDArray

from bouquet.errors import WireError
from bouquet.masking.coordinator import Coordinator
from bouquet.masking.fixed import Whole
from bouquet.masking.identity import Members
from bouquet.masking.key_messages import KEYS, LONGEST_CERTIFICATE, SHARES, KeysReply, KeysRequest, SharesReply
from bouquet.masking.rules import Rules
from bouquet.masking.sum_messages import AGREE, OVERHEAD, UNMASK, AgreeReply, MaskedInput, UnmaskReply, said_beside
from bouquet.masking.vectors import Layout
from bouquet.randomness import Words
from bouquet.records import message_bytes
from bouquet.wire import TRAIN, TrainReply, refuse_other_round
from strategies.federation.exchange import Exchange, Pace
from strategies.federation.hooks import Hooks
from strategies.federation.replies import Failure, Sent, receive

T = TypeVar("T")
# Of a stage's arrays for each neighbour, with room.
_PER_NEIGHBOR = 128


@dataclass
class Traffic:
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


@dataclass(frozen=True)
class Stages:
    """One round.

    Nodes are known by their place among those that were asked (`sent`), and from their keys on by their number among
    those that answered with keys.

    Attributes:
        rules: what all nodes hold to; members: who may be a node, None: anybody.
        paces: how long nodes are waited for, by kind of stage; training has one of its own.
        sent: the messages to train, one for each node.
        traffic: takes what travels.
    """

    method: Hooks
    rules: Rules
    members: Members | None
    paces: Mapping[str, Pace]
    exchange: Exchange
    sent: Sequence[Sent]
    round: int
    traffic: Traffic

    def begin(self) -> tuple[Coordinator, list[int]]:
        """Keys: the server's side of the round, and by number the places of its nodes."""
        request = KeysRequest(self.method.series, self.round).encode()
        found = self._stage(
            KEYS,
            {place: copy.copy(request) for place in range(len(self.sent))},
            OVERHEAD + 2 * LONGEST_CERTIFICATE,
            self._keys,
            range(len(self.sent)),
        )
        nodes = sorted(found)
        return Coordinator(self.method.series, self.round, self.rules, [found[place] for place in nodes]), nodes

    def _keys(self, content: RecordDict, _: int) -> KeysReply:
        found = KeysReply.decode(content, self.method.series, self.round)
        if self.members:
            self.members.refuse_stranger(found, self.method.series, self.round)
        return found

    def give(
        self, server: Coordinator, nodes: Sequence[int], layout: Layout, pace: Pace
    ) -> dict[int, tuple[TrainReply, Whole]]:
        """Shares, and then what nodes have trained, under masks."""
        series, round_, method = self.method.series, self.round, self.method
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
            contents[number] = self.sent[nodes[number]].message.content
            self.traffic.down -= message_bytes(contents[number])  # which are counted where they were made
            given.add_to(contents[number])
        keys = method.roster.users

        def decode(content: RecordDict, number: int) -> tuple[TrainReply, Whole]:
            refuse_other_round(content, series, round_)
            users = self.sent[nodes[number]].users
            reply = TrainReply.decode(content, keys[users], {}, "sum")
            about = said_beside(content) + asked[number].digest()
            masked = MaskedInput.decode(
                content, layout.length, layout.bits, server.public(number), server.transcript, about
            )
            if not len(reply.users):
                raise WireError("all of its users are left out")
            self.traffic.failures += [
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
        series, round_ = self.method.series, self.round
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
        method, config = self.method, self.method.config
        numbers = {int(self.sent[places[number]].users[0]): number for number in contents}
        asked = [
            Sent(
                Message(content, dst_node_id=self._node(places[number]), message_type=kind, group_id=str(self.round)),
                self.sent[places[number]].users,
                most + (self.sent[places[number]].most_bytes if pace else 0),
            )
            for number, content in contents.items()
        ]
        self.traffic.down += sum(message_bytes(item.message.content) for item in asked)
        patience = pace or self.paces[kind]
        replies = self.exchange.ask(asked, patience, config.enough_reply_fraction, config.min_reply_fraction)
        self.traffic.timed_out |= self.exchange.timed_out
        found: dict[int, T] = {}

        def decoded(content: RecordDict, users: NDArray[np.int64]) -> _Answer:
            number = numbers[int(users[0])]
            found[number] = decode(content, number)
            return _Answer(method.roster.users[users], None)

        received = receive(asked, replies, method.roster.users, decoded)
        self.traffic.up += received.bytes
        self.traffic.failures += [
            replace(failure, reason=f"stage '{kind.removeprefix('query.')}': {failure.reason}")
            for failure in received.failures
        ]
        self.traffic.silent += received.silent
        return found

    def _node(self, place: int) -> int:
        return int(self.sent[place].message.metadata.dst_node_id)
