"""A round of a secure sum: what the stages under masks (`masked_stages`) come to, as one reply with all users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bouquet.arrays import Arrays
from bouquet.errors import ConfigError, RunFailed, WireError
from bouquet.masking.fixed import Whole
from bouquet.masking.identity import Members
from bouquet.masking.key_messages import KEYS, SHARES
from bouquet.masking.rules import Rules
from bouquet.masking.sum_messages import AGREE, UNMASK
from bouquet.masking.vectors import Layout, model_digest, refuse_length
from bouquet.wire import TrainReply
from strategies.federation.exchange import Exchange, Pace
from strategies.federation.hooks import Hooks
from strategies.federation.masked_stages import Stages, Traffic
from strategies.federation.replies import Received, Sent


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
        method, traffic = self._method, Traffic()
        specs, cells = method.returning(method.roster.specs), method.summed(method.roster.num_items)
        try:
            refuse_length(specs, cells, method.config.strategy)
            stages = Stages(method, self._rules, self._members, self._paces, exchange, sent, server_round, traffic)
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
        traffic: Traffic,
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
