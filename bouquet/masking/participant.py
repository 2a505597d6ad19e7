"""A node in a secure sum: what it answers at each stage of one round, and what it refuses.

It answers each stage once, in their order. What it remembers between two messages is plain bytes (`dump`), for a place
that is forgotten when the process ends: a node that was started anew has dropped out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Protocol

import numpy as np

from bouquet.errors import WireError
from bouquet.masking.fixed import Whole
from bouquet.masking.graph import LEAST_NODES, Graph
from bouquet.masking.key_messages import KeysReply, KeysRequest, SharesReply, SharesRequest
from bouquet.masking.keys import PUBLIC, Channels, MaskKey, Public, Secrets, self_mask
from bouquet.masking.masks import add_masks
from bouquet.masking.rules import Rules
from bouquet.masking.shares import SECRET, split
from bouquet.masking.sum_messages import (
    AgreeReply,
    AgreeRequest,
    InputRequest,
    MaskedInput,
    UnmaskReply,
    UnmaskRequest,
    agreed,
)

STAGES = ("keys", "shares", "input", "agree", "unmask")


class Identity(Protocol):
    """A node's registered key, and whom it takes for nodes of its federation."""

    @property
    def certificate(self) -> bytes:
        """Of the registered key, DER."""
        ...

    def sign(self, content: bytes) -> bytes:
        """With the registered key."""
        ...

    def refuse_strangers(self, keys: SharesRequest) -> None:
        """Raises: WireError: one of the nodes is not certified, or stands there twice."""
        ...


@dataclass(frozen=True, repr=False)
class Participant:
    """One node in one round.

    Attributes:
        series, round: of the run.
        secrets: its keys.
        stage: how many stages it has answered.
        nodes, place: n, and where it stands among them; known with all keys, as are the next two.
        transcript: T.
        publics: [n · 128] what all have told.
        present: [n] the nodes that have sent shares, a byte each; known with the input, as are the next two.
        shares: [n · 32] of those neighbours' secrets, zeros where there is none.
        known: [n] whether there is.
        model: the digest of what was trained from.
        survivors: [n] who is in the sum, as it has signed.
    """

    series: str
    round: int
    secrets: Secrets
    stage: int = 1
    nodes: int = 0
    place: int = 0
    transcript: bytes = b""
    publics: bytes = b""
    present: bytes = b""
    shares: bytes = b""
    known: bytes = b""
    model: bytes = b""
    survivors: bytes = b""

    @classmethod
    def begin(cls, request: KeysRequest, identity: Identity | None = None) -> tuple[Participant, KeysReply]:
        """The stage "keys"."""
        begun = cls(request.series, request.round, Secrets.fresh())
        reply = KeysReply(begun.secrets.public)
        if identity:
            endorsement = identity.sign(reply.endorsed(request.series, request.round))
            reply = replace(reply, certificate=identity.certificate, endorsement=endorsement)
        return begun, replace(reply, signature=begun.secrets.sign(reply.signed(request.series, request.round)))

    def share(
        self, request: SharesRequest, rules: Rules, least: int = LEAST_NODES, identity: Identity | None = None
    ) -> tuple[Participant, SharesReply]:
        """The stage "shares".

        Args:
            least: nodes that a sum must be over.
        Raises:
            WireError: there are too few nodes, strangers, or keys that are not this round's.
        """
        self._refuse_other("shares", request.series, request.round)
        nodes = len(request.keys)
        if nodes < max(least, LEAST_NODES):
            raise WireError(f"a secure sum over {nodes} nodes, and this node asks for {max(least, LEAST_NODES)}")
        publics = [found.public for found in request.keys]
        if publics.count(own := self.secrets.public) != 1:
            raise WireError("the keys of this node are not among those of the round, or not once")
        for start in (0, PUBLIC // 4, PUBLIC // 2):
            if len({public[start : start + PUBLIC // 4] for public in publics}) < nodes:
                raise WireError("two nodes have the same key")
        if identity:
            identity.refuse_strangers(request)
        after = replace(
            self,
            stage=2,
            nodes=nodes,
            place=publics.index(own),
            transcript=request.transcript(rules),
            publics=b"".join(publics),
        )
        graph = after._graph(rules)
        holders, needed = graph.holders_of(after.place), graph.shares_needed
        own_shares = split(self.secrets.own, needed, len(holders))
        mask_shares = split(self.secrets.masking, needed, len(holders))
        channels = Channels(self.secrets.sharing, after.transcript)
        sealed = [
            channels.to(after._public(holder).sharing).close(of_own + of_mask, after.place, holder)
            for holder, of_own, of_mask in zip(holders, own_shares, mask_shares, strict=True)
            if holder != after.place
        ]
        reply = SharesReply(np.frombuffer(b"".join(sealed), np.uint8).reshape(len(sealed), -1))
        return after, replace(reply, signature=self.secrets.sign(reply.signed(after.transcript)))

    def mask(
        self, request: InputRequest, values: Whole, model: bytes, about: bytes, rules: Rules
    ) -> tuple[Participant, MaskedInput]:
        """The stage "input".

        Args:
            values: [D] this node's numbers; masked in place.
            model: the digest of what it trained from.
            about: what else it says in the same message.
        Raises:
            WireError: shares of the others are missing or are not this round's.
        """
        senders = self.refuse_input(request, rules)
        shares, known = np.zeros((self.nodes, 2 * SECRET), np.uint8), np.zeros(self.nodes, bool)
        channels = Channels(self.secrets.sharing, self.transcript)
        for sender, sealed in zip(senders, request.sealed, strict=True):
            if opened := channels.to(self._public(sender).sharing).open(sealed.tobytes(), sender, self.place):
                shares[sender], known[sender] = np.frombuffer(opened, np.uint8), True
        # One that lies costs its own shares; if it is all of them, this node was told other keys than the others.
        if int(known.sum()) + 1 < self._graph(rules).shares_needed:
            raise WireError(f"the shares of {len(senders) - int(known.sum())} neighbours cannot be read")
        masks = [(self_mask(self.secrets.own, self.transcript), 1)]
        mask_key = MaskKey(self.secrets.masking)
        for other in senders:
            key = mask_key.pair(self._public(other).masking, self.transcript)
            masks.append((key, 1 if self.place < other else -1))
        add_masks(values, masks)
        given = MaskedInput(values)
        given = replace(given, signature=self.secrets.sign(given.signed(self.transcript, about)))
        after = replace(
            self,
            stage=3,
            present=request.present.tobytes(),
            shares=shares.tobytes(),
            known=known.tobytes(),
            model=model,
        )
        return after, given

    def refuse_input(self, request: InputRequest, rules: Rules) -> list[int]:
        """What is known before there are numbers.

        Returns:
            The neighbours that have sent shares, ascending.
        Raises:
            WireError: too few nodes have, or it is asked out of turn.
        """
        self._refuse_stage("input")
        graph, present = self._graph(rules), request.present
        if not present[self.place] or int(present.sum()) < graph.quorum:
            raise WireError(f"only {int(present.sum())} of {self.nodes} nodes have sent shares")
        senders = [other for other in graph.neighbors_of(self.place) if present[other]]
        if len(senders) != len(request.sealed):
            raise WireError(f"there are shares of {len(request.sealed)} neighbours where {len(senders)} have sent some")
        return senders

    def agree(self, request: AgreeRequest, rules: Rules, least: int = LEAST_NODES) -> tuple[Participant, AgreeReply]:
        """The stage "agree".

        Raises:
            WireError: too few are in the sum, or others than have sent shares, or this node is not.
        """
        self._refuse_other("agree", request.series, request.round)
        present = np.frombuffer(self.present, bool)
        survivors = int(request.survivors.sum())
        graph = self._graph(rules)
        if survivors < max(graph.quorum, least, LEAST_NODES):
            raise WireError(f"a sum over {survivors} of {self.nodes} nodes is refused: they are too few")
        if (request.survivors & ~present).any() or not request.survivors[self.place]:
            raise WireError("the sum is over other nodes than have sent shares")
        near = int(request.survivors[graph.holders_of(self.place)].sum())
        if near < graph.shares_needed or not graph.is_connected(request.survivors):
            raise WireError(f"a sum with {near - 1} neighbours of this node is refused: they are too few")
        content = agreed(self.transcript, present, request.survivors, self.model)
        after = replace(self, stage=4, survivors=request.survivors.tobytes())
        return after, AgreeReply(self.secrets.sign(content))

    def reveal(self, request: UnmaskRequest, rules: Rules) -> tuple[Participant, UnmaskReply]:
        """The stage "unmask".

        Raises:
            WireError: too few nodes have signed what this one has signed.
        """
        self._refuse_other("unmask", request.series, request.round)
        graph = self._graph(rules)
        present, survivors = np.frombuffer(self.present, bool), np.frombuffer(self.survivors, bool)
        content = agreed(self.transcript, present, survivors, self.model)
        signers = np.flatnonzero(request.signers).tolist()
        if len(signers) < graph.quorum or (request.signers & ~survivors).any():
            raise WireError(f"{len(signers)} nodes have signed who is in the sum, and {graph.quorum} of it must")
        for signer, signature in zip(signers, request.signatures, strict=True):
            if not self._public(signer).verify(signature.tobytes(), content):
                raise WireError("a node has signed another sum, or was sent another model")
        others = [other for other in graph.neighbors_of(self.place) if present[other]]
        shares = np.frombuffer(self.shares, np.uint8).reshape(self.nodes, 2, SECRET)
        which = np.where(survivors[others], 0, 1)
        reply = UnmaskReply(self.secrets.own, shares[others, which], np.frombuffer(self.known, bool)[others])
        reply = replace(reply, signature=self.secrets.sign(reply.signed(self.transcript)))
        return replace(self, stage=5, secrets=Secrets(b"", b"", b"", b""), shares=b""), reply

    def dump(self) -> dict[str, bytes]:
        """What `load` makes the same node of."""
        flat = {field.name: getattr(self, field.name) for field in fields(self)}
        numbers = {name: value for name, value in flat.items() if isinstance(value, int | str)}
        parts = {name: value for name, value in flat.items() if isinstance(value, bytes)}
        own = {f"secret-{name}": value for name, value in asdict(self.secrets).items()}
        return {"numbers": json.dumps(numbers).encode(), **parts, **own}

    @classmethod
    def load(cls, content: Mapping[str, bytes]) -> Participant:
        """The inverse of `dump`."""
        own = {field.name: content[f"secret-{field.name}"] for field in fields(Secrets)}
        parts = {field.name: content[field.name] for field in fields(cls) if field.name in content}
        flat: dict[str, Any] = {**json.loads(content["numbers"]), **parts}
        return cls(secrets=Secrets(**own), **flat)

    def _graph(self, rules: Rules) -> Graph:
        return Graph(self.nodes, rules.neighbors, rules.threshold, self.transcript)

    def _public(self, node: int) -> Public:
        return Public.of(self.publics[node * PUBLIC : (node + 1) * PUBLIC])

    def _refuse_stage(self, stage: str) -> None:
        if STAGES[self.stage % len(STAGES)] != stage:
            raise WireError(f"it is asked for '{stage}' after '{STAGES[self.stage - 1]}': each stage is answered once")

    def _refuse_other(self, stage: str, series: str, round_: int) -> None:
        if (series, round_) != (self.series, self.round):
            raise WireError(f"this node has no keys for round {round_} of this run")
        self._refuse_stage(stage)
