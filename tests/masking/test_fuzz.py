"""Messages of the protocol, changed at random on their way: none ends anything, none is taken for what it is not."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from flwr.app import RecordDict

from bouquet.errors import WireError
from bouquet.masking.coordinator import Coordinator
from bouquet.masking.key_messages import KeysReply, KeysRequest, SharesReply, SharesRequest
from bouquet.masking.participant import Participant
from bouquet.masking.rules import Rules
from bouquet.masking.sum_messages import AgreeReply, AgreeRequest, InputRequest, MaskedInput, UnmaskReply, UnmaskRequest
from bouquet.records import values_of
from tests.masking.protocol import MODEL, ROUND, SERIES, numbers
from tests.runs.mutations import mutated

RULES, NODES = Rules(), 3
Path = tuple[RecordDict, Callable[[RecordDict], object]]


def way(server: Coordinator, node: Participant, stage: str, request: RecordDict, asked: object) -> tuple[Path, Path]:
    """A request to node 0, which answers and whose answer the server reads, and its answer, which the server reads."""
    public, told = server.public(0), server.transcript

    def read(content: RecordDict) -> object:
        if stage == "shares":
            return SharesReply.decode(content, SERIES, ROUND, NODES - 1, public, told)
        if stage == "input":
            return MaskedInput.decode(content, 4, 32, public, told, asked.digest())
        if stage == "agree":
            return AgreeReply.decode(content, SERIES, ROUND, public, server.signed)
        return UnmaskReply.decode(content, SERIES, ROUND, NODES - 1, public, told)

    def answered(content: RecordDict) -> RecordDict:
        if stage == "shares":
            return node.share(SharesRequest.decode(content), RULES)[1].encode(SERIES, ROUND)
        if stage == "input":
            wanted = InputRequest.decode(content, NODES)
            found = RecordDict()
            node.mask(wanted, numbers(1, 4, 0)[0], MODEL, wanted.digest(), RULES)[1].add_to(found)
            return found
        if stage == "agree":
            return node.agree(AgreeRequest.decode(content, NODES), RULES)[1].encode(SERIES, ROUND)
        return node.reveal(UnmaskRequest.decode(content, NODES), RULES)[1].encode(SERIES, ROUND)

    return (request, lambda content: read(answered(content))), (answered(request), read)


def ways() -> dict[str, Path]:
    """Every message of a round of three nodes, there and back, with what becomes of it."""
    found: dict[str, Path] = {}
    asking = KeysRequest(SERIES, ROUND).encode()
    nodes, keys = map(list, zip(*(Participant.begin(KeysRequest(SERIES, ROUND)) for _ in range(NODES)), strict=True))
    found["keys, back"] = keys[0].encode(SERIES, ROUND), lambda content: KeysReply.decode(content, SERIES, ROUND)

    def keys_there(content: RecordDict) -> object:
        _, reply = Participant.begin(request := KeysRequest.decode(content))
        return KeysReply.decode(reply.encode(request.series, request.round), SERIES, ROUND)

    found["keys, there"] = asking, keys_there
    server = Coordinator(SERIES, ROUND, RULES, keys)

    def both(stage: str, request: RecordDict, asked: object = None) -> None:
        found[f"{stage}, there"], found[f"{stage}, back"] = way(server, nodes[0], stage, request, asked)

    both("shares", server.request.encode())
    shared = [node.share(server.request, RULES) for node in nodes]
    nodes = [node for node, _ in shared]
    asked = server.shared({place: reply for place, (_, reply) in enumerate(shared)}, 1.0, NODES)
    content = RecordDict()
    asked[0].add_to(content)
    both("input", content, asked[0])
    given = [nodes[at].mask(asked[at], numbers(1, 4, 0)[0], MODEL, asked[at].digest(), RULES) for at in range(NODES)]
    nodes = [node for node, _ in given]
    agree = server.given({at: masked.values for at, (_, masked) in enumerate(given)}, MODEL)
    both("agree", agree.encode())
    signed = [node.agree(agree, RULES) for node in nodes]
    nodes = [node for node, _ in signed]
    both("unmask", server.agreed({at: reply for at, (_, reply) in enumerate(signed)}).encode())
    return found


def same(one: RecordDict, other: RecordDict) -> bool:
    """Whether two messages say the same, where anybody reads it: other bytes can be the same numbers."""
    configs = [content.config_records.get("config", {}) for content in (one, other)]
    records = [content.array_records.get("secure", {}) for content in (one, other)]
    names = [set(record) for record in records]
    keys = ("series", "round")
    return all(configs[0].get(key) == configs[1].get(key) for key in keys) and all(
        name in names[1] and np.array_equal(*(values_of(record[name], name) for record in records)) for name in names[0]
    )


def fuzz(count: int, seed: int) -> Counter[str]:
    """So many changed messages; how often what became of them.

    Anything but a refusal in words ends the test.
    """
    logging.disable(logging.WARNING)  # Flower notes every record of another type
    source, paths = np.random.default_rng(seed), ways()
    found: Counter[str] = Counter()
    names = sorted(paths)
    for number in range(count):
        name = names[number % len(names)]
        content, follow = paths[name]
        try:
            changed = mutated(content, source)
        except ValueError:  # text that was made of numbers is made numbers again
            found["as it was"] += 1
            continue
        try:
            follow(changed)
        except WireError:
            found["refused"] += 1
            continue
        found["as it was" if same(content, changed) else f"accepted: {name}"] += 1
    logging.disable(logging.NOTSET)
    return found


def test_every_message_is_taken_as_it_is():
    for content, follow in ways().values():
        follow(content)


def test_no_changed_message_is_accepted():
    assert_none(fuzz(1000, 1), 1000)


@pytest.mark.slow
def test_no_changed_message_of_50_000_is_accepted():
    assert_none(fuzz(50_000, 2), 50_000)


def assert_none(found: Counter[str], count: int) -> None:
    assert found.keys() <= {"refused", "as it was"}, found
    assert found["refused"] > 0.7 * count
