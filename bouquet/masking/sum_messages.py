"""Stages `input`, `agree` and `unmask` of a secure sum: what the server asks, and what a node answers.

A message to train carries an `InputRequest` in a record of its own, beside what every such message has. What the server
says is checked by the nodes against each other, in the stage `agree`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import RecordDict
from numpy.typing import NDArray

from bouquet.errors import WireError
from bouquet.masking.fixed import Bits, Whole, dtype_of
from bouquet.masking.key_messages import MOST_NODES
from bouquet.masking.keys import SEALED, SIGNATURE, Public
from bouquet.masking.parts import (
    RECORD,
    Bytes,
    Mask,
    as_bytes,
    content_of,
    digest,
    read_bytes,
    read_mask,
    refuse_other,
    round_of,
    verified,
)
from bouquet.masking.shares import SECRET
from bouquet.records import pack, read_array, read_raw, read_record

AGREE, UNMASK = "query.agree", "query.unmask"

# Names and headers of arrays, and the settings.
OVERHEAD = 16 * 1024


@dataclass(frozen=True)
class InputRequest:
    """Give your numbers, under masks.

    Attributes:
        present: [n] the nodes that have sent shares.
        sealed: [m, 48] those for this node, of its neighbours among them, ascending.
        weight: W, of all users of the round.
        users: how many these are.
    """

    present: Mask
    sealed: Bytes
    weight: float
    users: int

    def arrays(self) -> dict[str, NDArray[Any]]:
        """As they travel, in a record of a message to train."""
        weight = np.array([self.weight, self.users], np.float64)
        return {"present": self.present, "sealed": self.sealed, "weight": weight}

    def add_to(self, content: RecordDict) -> None:
        """Put it into a message to train."""
        content[RECORD] = pack(self.arrays())

    def digest(self) -> bytes:
        """What an answer's signature covers of it, so that it answers this and nothing else."""
        said = (values.tobytes() for values in self.arrays().values())
        return digest(b"input request", "", 0, *said)

    @classmethod
    def decode(cls, content: RecordDict, nodes: int) -> InputRequest:
        present = read_mask(content, "present", nodes)
        sealed = read_raw(content, RECORD, "sealed")
        if sealed.dtype != np.uint8 or sealed.ndim != 2 or sealed.shape[1] != SEALED:
            raise WireError(f"the shares of others should be {SEALED} bytes each")
        weight, users = read_array(content, RECORD, "weight", np.float64, (2,)).tolist()
        if not (0 < weight < np.inf and 1 <= users <= MOST_NODES**2 and users == int(users)):
            raise WireError(f"a round of {users} users with a weight of {weight} makes no sense")
        return cls(present, sealed, weight, int(users))


@dataclass(frozen=True)
class MaskedInput:
    """A node's numbers under its masks, [D].

    Attributes:
        signature: of them, and of `about`: what was asked, and what else the node says in the same message.
    """

    values: Whole
    signature: bytes = b""

    def add_to(self, content: RecordDict) -> None:
        """Put it into a training reply."""
        content[RECORD] = pack({"values": self.values, "signature": as_bytes(self.signature)})

    @classmethod
    def decode(
        cls, content: RecordDict, length: int, bits: Bits, public: bytes, transcript: bytes, about: bytes
    ) -> MaskedInput:
        """Of so many numbers, from the node with these keys."""
        values = read_array(content, RECORD, "values", dtype_of(bits), (length,))
        found = cls(values, read_bytes(content, "signature", SIGNATURE))
        if not Public.of(public).verify(found.signature, found.signed(transcript, about)):
            raise WireError("the reply is not signed with the node's key of this round")
        return found

    def signed(self, transcript: bytes, about: bytes) -> bytes:
        """What the signature is of."""
        return digest(b"input", "", 0, transcript, about, self.values.data)


@dataclass(frozen=True)
class AgreeRequest:
    """Sign who is in the sum: [n]."""

    series: str
    round: int
    survivors: Mask

    def encode(self) -> RecordDict:
        return content_of(self.series, self.round, {"survivors": self.survivors})

    @classmethod
    def decode(cls, content: RecordDict, nodes: int) -> AgreeRequest:
        return cls(*round_of(content), read_mask(content, "survivors", nodes))


def said_beside(content: RecordDict) -> bytes:
    """The digest of what a training reply says of users, which its signature covers."""
    record = read_record(content, "users")
    return digest(b"users", "", 0, *(part for name in sorted(record) for part in (name.encode(), record[name].data)))


def agreed(transcript: bytes, present: Mask, survivors: Mask, model: bytes) -> bytes:
    """What nodes sign: the keys of all, whose masks are in the input, who is in the sum, what was trained from."""
    return digest(b"agree", "", 0, transcript, np.packbits(present).data, np.packbits(survivors).data, model)


@dataclass(frozen=True)
class AgreeReply:
    """A node's signature of `agreed`."""

    signature: bytes

    def encode(self, series: str, round_: int) -> RecordDict:
        return content_of(series, round_, {"signature": as_bytes(self.signature)})

    @classmethod
    def decode(cls, content: RecordDict, series: str, round_: int, public: bytes, content_: bytes) -> AgreeReply:
        """Of what everybody signs, from the node with these keys."""
        refuse_other(content, series, round_)
        signature = read_bytes(content, "signature", SIGNATURE)
        if not Public.of(public).verify(signature, content_):
            raise WireError("the node has not signed who is in the sum")
        return cls(signature)


@dataclass(frozen=True)
class UnmaskRequest:
    """Reveal what the sum needs.

    Attributes:
        signers: [n] who has signed.
        signatures: [s, 64] in the order of nodes.
    """

    series: str
    round: int
    signers: Mask
    signatures: Bytes

    def encode(self) -> RecordDict:
        return content_of(self.series, self.round, {"signers": self.signers, "signatures": self.signatures})

    @classmethod
    def decode(cls, content: RecordDict, nodes: int) -> UnmaskRequest:
        signers = read_mask(content, "signers", nodes)
        shape = (int(signers.sum()), SIGNATURE)
        return cls(*round_of(content), signers, read_array(content, RECORD, "signatures", np.uint8, shape))


@dataclass(frozen=True)
class UnmaskReply:
    """What a node reveals.

    Attributes:
        own: its self-mask, 16 bytes.
        shares: [m, 16] of each neighbour that sent shares, ascending: of its self-mask if it is in the sum, else of its
            mask key.
        given: [m] whether there is a share; one that could not be read is left out.
    """

    own: bytes
    shares: Bytes
    given: Mask = field(default_factory=lambda: np.zeros(0, bool))
    signature: bytes = b""

    def encode(self, series: str, round_: int) -> RecordDict:
        arrays = {"own": as_bytes(self.own), "shares": self.shares, "given": self.given}
        return content_of(series, round_, {**arrays, "signature": as_bytes(self.signature)})

    @classmethod
    def decode(
        cls, content: RecordDict, series: str, round_: int, count: int, public: bytes, transcript: bytes
    ) -> UnmaskReply:
        """About so many neighbours, from the node with these keys."""
        refuse_other(content, series, round_)
        shares = read_array(content, RECORD, "shares", np.uint8, (count, SECRET))
        given = read_mask(content, "given", count)
        own, signature = read_bytes(content, "own", SECRET), read_bytes(content, "signature", SIGNATURE)
        return verified(cls(own, shares, given, signature), public, transcript)

    def signed(self, transcript: bytes) -> bytes:
        """What the signature is of."""
        return digest(b"unmask", "", 0, transcript, self.own, self.shares.tobytes(), self.given.tobytes())
