"""Stages `keys` and `shares` of a secure sum: what the server asks, and what a node answers.

What a node says after its keys is signed with the key that it made for the round, so the server takes nothing that was
changed on the way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import RecordDict
from numpy.typing import NDArray

from bouquet.errors import WireError
from bouquet.masking.keys import PUBLIC, SEALED, SIGNATURE, Public
from bouquet.masking.parts import (
    RECORD,
    Bytes,
    as_bytes,
    content_of,
    digest,
    read_bytes,
    read_some,
    refuse_other,
    round_of,
    verified,
)
from bouquet.masking.rules import Rules
from bouquet.records import read_array, read_raw

KEYS, SHARES = "query.keys", "query.shares"

MOST_NODES = 2**16
LONGEST_CERTIFICATE, LONGEST_ENDORSEMENT = 4096, 256
_VERSION = 1


@dataclass(frozen=True)
class KeysRequest:
    """Make keys for a round."""

    series: str
    round: int

    def encode(self) -> RecordDict:
        return content_of(self.series, self.round, {})

    @classmethod
    def decode(cls, content: RecordDict) -> KeysRequest:
        return cls(*round_of(content))


@dataclass(frozen=True)
class KeysReply:
    """A node's keys.

    Attributes:
        public: 128 bytes, as `Public`.
        certificate: of its registered key, DER; b"" where it has none.
        endorsement: the registered key's signature of `endorsed`.
        signature: by the key of the round.
    """

    public: bytes
    certificate: bytes = b""
    endorsement: bytes = b""
    signature: bytes = b""

    def encode(self, series: str, round_: int) -> RecordDict:
        parts: dict[str, NDArray[Any]] = {name: as_bytes(part) for name, part in vars(self).items()}
        return content_of(series, round_, parts)

    @classmethod
    def decode(cls, content: RecordDict, series: str, round_: int) -> KeysReply:
        """Of this series and round.

        Raises:
            WireError: it is no such reply, or was not signed by the keys that it holds.
        """
        refuse_other(content, series, round_)
        sizes = {"certificate": LONGEST_CERTIFICATE, "endorsement": LONGEST_ENDORSEMENT}
        certificate, endorsement = (read_some(content, name, most) for name, most in sizes.items())
        found = cls(
            read_bytes(content, "public", PUBLIC), certificate, endorsement, read_bytes(content, "signature", SIGNATURE)
        )
        if not Public.of(found.public).verify(found.signature, found.signed(series, round_)):
            raise WireError("its keys are not signed with the one among them")
        return found

    def signed(self, series: str, round_: int) -> bytes:
        """What the signature is of."""
        return digest(b"keys", series, round_, self.public, self.certificate, self.endorsement)

    def endorsed(self, series: str, round_: int) -> bytes:
        """What a registered key signs."""
        return digest(b"endorsed", series, round_, self.public)


@dataclass(frozen=True)
class SharesRequest:
    """The keys of everybody.

    Attributes:
        keys: of all nodes, in an order that is the server's; their signatures do not travel.
    """

    series: str
    round: int
    keys: tuple[KeysReply, ...]

    def encode(self) -> RecordDict:
        variable: list[bytes] = [part for found in self.keys for part in (found.certificate, found.endorsement)]
        arrays: dict[str, NDArray[Any]] = {
            "public": np.frombuffer(b"".join(found.public for found in self.keys), np.uint8).reshape(-1, PUBLIC),
            "lengths": np.array([len(part) for part in variable], np.int32).reshape(-1, 2),
            "identity": as_bytes(b"".join(variable)),
        }
        return content_of(self.series, self.round, arrays)

    @classmethod
    def decode(cls, content: RecordDict) -> SharesRequest:
        series, round_ = round_of(content)
        public, lengths = read_raw(content, RECORD, "public"), read_raw(content, RECORD, "lengths")
        count = len(public) if public.ndim == 2 else 0
        if public.dtype != np.uint8 or public.shape != (count, PUBLIC) or not 0 < count <= MOST_NODES:
            raise WireError(f"the keys should be {PUBLIC} bytes for each of at most {MOST_NODES} nodes")
        if lengths.dtype != np.int32 or lengths.shape != (count, 2):
            raise WireError("there should be two lengths for each node")
        if (lengths < 0).any() or (lengths > (LONGEST_CERTIFICATE, LONGEST_ENDORSEMENT)).any():
            raise WireError("a certificate or its signature is longer than makes sense")
        identity = read_bytes(content, "identity", int(lengths.sum()))
        ends = np.cumsum(lengths.reshape(-1)).tolist()
        parts = [identity[end - size : end] for end, size in zip(ends, lengths.reshape(-1).tolist(), strict=True)]
        keys = zip(public, parts[::2], parts[1::2], strict=True)
        return cls(series, round_, tuple(KeysReply(own.tobytes(), *identity) for own, *identity in keys))

    def transcript(self, rules: Rules) -> bytes:
        """T: the round, the rules and all keys."""
        said = f"{rules.neighbors} {rules.threshold!r} {rules.clip!r} {rules.bits} {rules.noise!r}".encode()
        parts = (part for found in self.keys for part in (found.public, found.certificate, found.endorsement))
        return digest(b"transcript %d" % _VERSION, self.series, self.round, said, *parts)


@dataclass(frozen=True)
class SharesReply:
    """A node's shares for its neighbours, ascending: [k, 48], each for one of them to read."""

    sealed: Bytes
    signature: bytes = b""

    def encode(self, series: str, round_: int) -> RecordDict:
        return content_of(series, round_, {"sealed": self.sealed, "signature": as_bytes(self.signature)})

    @classmethod
    def decode(
        cls, content: RecordDict, series: str, round_: int, count: int, public: bytes, transcript: bytes
    ) -> SharesReply:
        """With shares for so many neighbours, from the node with these keys."""
        refuse_other(content, series, round_)
        sealed = read_array(content, RECORD, "sealed", np.uint8, (count, SEALED))
        return verified(cls(sealed, read_bytes(content, "signature", SIGNATURE)), public, transcript)

    def signed(self, transcript: bytes) -> bytes:
        """What the signature is of."""
        return digest(b"shares", "", 0, transcript, self.sealed.tobytes())
