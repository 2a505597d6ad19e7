"""A whole round of the protocol without processes: every message is encoded and decoded on its way."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from flwr.app import RecordDict

from bouquet.masking.coordinator import Coordinator
from bouquet.masking.fixed import Whole
from bouquet.masking.graph import LEAST_NODES
from bouquet.masking.key_messages import KeysReply, KeysRequest, SharesReply, SharesRequest
from bouquet.masking.participant import Identity, Participant
from bouquet.masking.rules import Rules
from bouquet.masking.sum_messages import AgreeReply, AgreeRequest, InputRequest, MaskedInput, UnmaskReply, UnmaskRequest

SERIES, ROUND, MODEL = "series", 3, b"model"
Change = Callable[[str, int, object], object]


@dataclass
class Seen:
    """What the server saw of a round."""

    coordinator: Coordinator
    inputs: dict[int, Whole] = field(default_factory=dict)
    unmasked: dict[int, UnmaskReply] = field(default_factory=dict)


def kept(node: Participant) -> Participant:
    """The node as it is after another message: made of what it wrote down."""
    return Participant.load(node.dump())


def secure_sum(
    values: Sequence[Whole],
    rules: Rules,
    lost: Mapping[str, Collection[int]] | None = None,
    identities: Sequence[Identity] | None = None,
    models: Mapping[int, bytes] | None = None,
    change: Change = lambda stage, node, request: request,
    least: int = LEAST_NODES,
) -> tuple[Whole, list[int], Seen]:
    """The sum over those that are left, who that is, and what the server saw.

    Args:
        values: of each node.
        lost: by stage, nodes that do not answer it, nor any after it.
        models: what nodes are sent to train from, where it is not what the others are.
        change: what the server makes of the request that it should send to a node at a stage.
    """
    lost, models = lost or {}, models or {}
    gone: set[int] = set()

    def left(stage: str, places: Collection[int]) -> list[int]:
        gone.update(lost.get(stage, ()))
        return [node for node in places if node not in gone]

    members = left("keys", range(len(values)))
    begun = [
        Participant.begin(
            KeysRequest.decode(KeysRequest(SERIES, ROUND).encode()), identities[node] if identities else None
        )
        for node in members
    ]
    keys = [KeysReply.decode(reply.encode(SERIES, ROUND), SERIES, ROUND) for _, reply in begun]
    server = Coordinator(SERIES, ROUND, rules, keys)
    seen = Seen(server)
    node_of = dict(enumerate(members))
    nodes = {place: node for place, (node, _) in enumerate(begun)}
    alive = lambda stage: [place for place in nodes if node_of[place] in left(stage, members)]  # noqa: E731

    shares: dict[int, SharesReply] = {}
    for place in alive("shares"):
        request = change("shares", place, server.request)
        identity = identities[node_of[place]] if identities else None
        nodes[place], reply = kept(nodes[place]).share(SharesRequest.decode(request.encode()), rules, least, identity)
        shares[place] = SharesReply.decode(
            reply.encode(SERIES, ROUND), SERIES, ROUND, server.neighbors(place), server.public(place), server.transcript
        )
    nodes_asked = len(shares)
    asked = server.shared(shares, 1.0, nodes_asked)
    for place in alive("input"):
        content = RecordDict()
        change("input", place, asked[place]).add_to(content)
        request = InputRequest.decode(content, server.nodes)
        model = models.get(node_of[place], MODEL)
        nodes[place], masked = kept(nodes[place]).mask(
            request, values[node_of[place]].copy(), model, request.digest(), rules
        )
        told = RecordDict()
        masked.add_to(told)
        length = len(values[node_of[place]])
        found = MaskedInput.decode(
            told, length, rules.bits, server.public(place), server.transcript, asked[place].digest()
        )
        seen.inputs[place] = found.values
    survivors = sorted(seen.inputs)
    agree = server.given(seen.inputs, MODEL)
    signed: dict[int, AgreeReply] = {}
    for place in alive("agree"):
        request = AgreeRequest.decode(change("agree", place, agree).encode(), server.nodes)
        nodes[place], answer = kept(nodes[place]).agree(request, rules, least)
        signed[place] = AgreeReply.decode(
            answer.encode(SERIES, ROUND), SERIES, ROUND, server.public(place), server.signed
        )
    unmask = server.agreed(signed)
    for place in alive("unmask"):
        request = UnmaskRequest.decode(change("unmask", place, unmask).encode(), server.nodes)
        nodes[place], revealed = kept(nodes[place]).reveal(request, rules)
        count = len(server.present_neighbors(place))
        seen.unmasked[place] = UnmaskReply.decode(
            revealed.encode(SERIES, ROUND), SERIES, ROUND, count, server.public(place), server.transcript
        )
    return server.unmasked(seen.unmasked), [node_of[place] for place in survivors], seen


def numbers(nodes: int, length: int, seed: int, bits: int = 32) -> list[Whole]:
    """Random numbers of every node, over all of their range."""
    draw = np.random.default_rng(seed)
    kind = np.uint32 if bits == 32 else np.uint64
    return [draw.integers(0, 2**bits, length, dtype=kind, endpoint=False) for _ in range(nodes)]
