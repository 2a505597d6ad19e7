"""The server's side of a secure sum: it carries keys and shares, adds up what is masked, and takes the masks off.

Nodes are numbered as their keys came. What is wrong with a reply is said when it is decoded (`messages`); what too few
replies are too few for, here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, islice

import numpy as np

from bouquet.errors import WireError
from bouquet.masking.fixed import Whole
from bouquet.masking.graph import LEAST_NODES, Graph
from bouquet.masking.key_messages import KeysReply, SharesReply, SharesRequest
from bouquet.masking.keys import SEALED, MaskKey, Public, commitment, mask_public, self_mask
from bouquet.masking.masks import add_masks, zeros
from bouquet.masking.rules import Rules
from bouquet.masking.shares import combine
from bouquet.masking.sum_messages import AgreeReply, AgreeRequest, InputRequest, UnmaskReply, UnmaskRequest, agreed

# With wrong shares among the right ones, so many choices are tried; of one liar's as many as shares are needed do.
_TRIES = 200


class Coordinator:
    """One round.

    Args:
        series, round_: of the run.
        rules: that all nodes hold to.
        keys: of the nodes that answered, in the order in which they are numbered.
    Raises:
        WireError: they are too few.

    Attributes:
        request: what all nodes are sent then.
        transcript: T.
    """

    def __init__(self, series: str, round_: int, rules: Rules, keys: Sequence[KeysReply]) -> None:
        if len(keys) < LEAST_NODES:
            raise WireError(f"a secure sum takes {LEAST_NODES} nodes, and {len(keys)} sent keys")
        self.request = SharesRequest(series, round_, tuple(keys))
        self.transcript = self.request.transcript(rules)
        self._rules, self.nodes = rules, len(keys)
        self._graph = Graph(self.nodes, rules.neighbors, rules.threshold, self.transcript)
        self._present = np.zeros(self.nodes, bool)
        self._survivors = np.zeros(self.nodes, bool)
        self._total: Whole = zeros(0, rules.bits)
        self._model = b""

    @property
    def quorum(self) -> int:
        """How many nodes must answer every stage that follows."""
        return max(self._graph.quorum, LEAST_NODES)

    def public(self, node: int) -> bytes:
        """What a node told of its keys."""
        return self.request.keys[node].public

    def neighbors(self, node: int) -> int:
        """How many neighbours a node has shares for."""
        return len(self._graph.neighbors_of(node))

    def present_neighbors(self, node: int) -> list[int]:
        """Those that have sent shares, ascending."""
        return [other for other in self._graph.neighbors_of(node) if self._present[other]]

    def shared(self, replies: Mapping[int, SharesReply], weight: float, users: int) -> dict[int, InputRequest]:
        """What the nodes that sent shares are asked for next.

        Args:
            weight: W, of all users that are asked.
            users: how many these are.
        Raises:
            WireError: they are too few.
        """
        self._require(len(replies), "sent shares")
        self._present[list(replies)] = True
        places = {node: {other: at for at, other in enumerate(self._graph.neighbors_of(node))} for node in replies}
        found = {}
        for node in replies:
            sealed = [replies[other].sealed[places[other][node]] for other in self.present_neighbors(node)]
            stacked = np.array(sealed, np.uint8).reshape(len(sealed), SEALED)
            found[node] = InputRequest(self._present, stacked, weight, users)
        return found

    def given(self, inputs: Mapping[int, Whole], model: bytes) -> AgreeRequest:
        """Add up what came, and say who is in the sum.

        Args:
            inputs: [D] by node.
            model: the digest of what they trained from.
        Raises:
            WireError: they are too few.
        """
        self._require(len(inputs), "gave input")
        self._survivors[list(inputs)] = True
        self._model = model
        self._total = sum_of(inputs.values())
        return AgreeRequest(self.request.series, self.request.round, self._survivors)

    @property
    def signed(self) -> bytes:
        """What nodes sign to agree."""
        return agreed(self.transcript, self._present, self._survivors, self._model)

    def agreed(self, replies: Mapping[int, AgreeReply]) -> UnmaskRequest:
        """What those that have signed are asked for next.

        Raises:
            WireError: they are too few.
        """
        self._require(len(replies), "signed who is in the sum")
        signers = np.zeros(self.nodes, bool)
        signers[list(replies)] = True
        content = b"".join(replies[node].signature for node in sorted(replies))
        signatures = np.frombuffer(content, np.uint8).reshape(len(replies), -1)
        return UnmaskRequest(self.request.series, self.request.round, signers, signatures)

    def unmasked(self, replies: Mapping[int, UnmaskReply]) -> Whole:
        """The sum over the nodes that gave input.

        Raises:
            WireError: what was revealed is too little.
        """
        self._require(len(replies), "revealed shares")
        revealed: dict[int, dict[int, bytes]] = {}
        for holder, reply in replies.items():
            for other, share, there in zip(self.present_neighbors(holder), reply.shares, reply.given, strict=True):
                if there:
                    revealed.setdefault(other, {})[self._graph.holders_of(other).index(holder)] = share.tobytes()
        masks: list[tuple[bytes, int]] = []
        for node in np.flatnonzero(self._present).tolist():
            shares = revealed.get(node, {})
            if self._survivors[node]:
                own = replies[node].own if node in replies else b""
                masks.append((self_mask(self._own(node, own, shares), self.transcript), -1))
            else:
                masks += self._pairs(node, self._masking(node, shares))
        add_masks(self._total, masks)
        return self._total

    def _own(self, node: int, told: bytes, shares: Mapping[int, bytes]) -> bytes:
        """b of a node in the sum, as it says itself or as the others' shares do."""
        wanted = Public.of(self.public(node)).commitment
        if told and commitment(told) == wanted:
            return told
        return self._found(node, shares, lambda secret: commitment(secret) == wanted)

    def _masking(self, node: int, shares: Mapping[int, bytes]) -> bytes:
        """s of a node that was lost."""
        wanted = Public.of(self.public(node)).masking
        return self._found(node, shares, lambda secret: mask_public(secret) == wanted)

    def _found(self, node: int, shares: Mapping[int, bytes], fits: object) -> bytes:
        assert callable(fits)
        needed = self._graph.shares_needed
        for chosen in islice(combinations(sorted(shares), needed), _TRIES):
            secret = combine({place: shares[place] for place in chosen}, needed)
            if fits(secret):
                return secret
        raise WireError(
            f"node {node} of {self.nodes} cannot be unmasked: {needed} shares are needed and {len(shares)} came"
        )

    def _pairs(self, node: int, masking: bytes) -> Iterable[tuple[bytes, int]]:
        """What the nodes in the sum have of a lost one in their input, to be taken off."""
        mask_key = MaskKey(masking)
        for other in self.present_neighbors(node):
            if self._survivors[other]:
                key = mask_key.pair(Public.of(self.public(other)).masking, self.transcript)
                # Added by `other`: +1 where it is the lower one of the two.
                yield key, -1 if other < node else 1

    def _require(self, count: int, what: str) -> None:
        if count < self.quorum:
            raise WireError(f"only {count} of {self.nodes} nodes {what}, and {self.quorum} are needed")


def sum_of(inputs: Iterable[Whole]) -> Whole:
    """The sum, modulo what the numbers are modulo of."""
    total: Whole | None = None
    for values in inputs:
        if total is None:
            total = values.copy()
        else:
            total += values
    assert total is not None
    return total
