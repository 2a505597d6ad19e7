"""What the server asks at each stage of a secure sum, and what a node answers; encoded and decoded as all messages are.

A message to train carries an `InputRequest` in a record of its own, beside what every such message has. What a node
says after its keys is signed with the key that it made for the round, so the server takes nothing that was changed on
the way; what the server says is checked by the nodes against each other, in the stage `agree`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from numpy.typing import NDArray

from bouquet.errors import WireError
from bouquet.masking.fixed import Bits, Whole, dtype_of
from bouquet.masking.keys import PUBLIC, SEALED, SIGNATURE, Public
from bouquet.masking.shares import SECRET
from bouquet.records import pack, read_array, read_config, read_raw, read_record, read_scalar

KEYS, SHARES, AGREE, UNMASK = "query.keys", "query.shares", "query.agree", "query.unmask"

MOST_NODES = 2**16
LONGEST_CERTIFICATE, LONGEST_ENDORSEMENT = 4096, 256
# Names and headers of arrays, and the settings.
OVERHEAD = 16 * 1024

_RECORD, _VERSION = "secure", 1
Bytes = NDArray[np.uint8]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Rules:
    """What all nodes of a run hold to.

    Attributes:
        neighbors: k; 0: all others.
        threshold: τ.
        clip: C.
        bits: of a number that travels.
        noise: standard deviation of the noise that the sum over the nodes left has at least, by shares of the nodes; 0:
            none.
    """

    neighbors: int = 0
    threshold: float = 2 / 3
    clip: float = 8.0
    bits: Bits = 32
    noise: float = 0.0


@dataclass(frozen=True)
class KeysRequest:
    """Make keys for a round."""

    series: str
    round: int

    def encode(self) -> RecordDict:
        return _content(self.series, self.round, {})

    @classmethod
    def decode(cls, content: RecordDict) -> KeysRequest:
        return cls(*_round_of(content))


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
        parts: dict[str, NDArray[Any]] = {name: _bytes(part) for name, part in vars(self).items()}
        return _content(series, round_, parts)

    @classmethod
    def decode(cls, content: RecordDict, series: str, round_: int) -> KeysReply:
        """Of this series and round.

        Raises:
            WireError: it is no such reply, or was not signed by the keys that it holds.
        """
        _refuse_other(content, series, round_)
        sizes = {"certificate": LONGEST_CERTIFICATE, "endorsement": LONGEST_ENDORSEMENT}
        certificate, endorsement = (_read_some(content, name, most) for name, most in sizes.items())
        found = cls(_read(content, "public", PUBLIC), certificate, endorsement, _read(content, "signature", SIGNATURE))
        if not Public.of(found.public).verify(found.signature, found.signed(series, round_)):
            raise WireError("its keys are not signed with the one among them")
        return found

    def signed(self, series: str, round_: int) -> bytes:
        """What the signature is of."""
        return _digest(b"keys", series, round_, self.public, self.certificate, self.endorsement)

    def endorsed(self, series: str, round_: int) -> bytes:
        """What a registered key signs."""
        return _digest(b"endorsed", series, round_, self.public)


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
            "identity": _bytes(b"".join(variable)),
        }
        return _content(self.series, self.round, arrays)

    @classmethod
    def decode(cls, content: RecordDict) -> SharesRequest:
        series, round_ = _round_of(content)
        public, lengths = read_raw(content, _RECORD, "public"), read_raw(content, _RECORD, "lengths")
        count = len(public) if public.ndim == 2 else 0
        if public.dtype != np.uint8 or public.shape != (count, PUBLIC) or not 0 < count <= MOST_NODES:
            raise WireError(f"the keys should be {PUBLIC} bytes for each of at most {MOST_NODES} nodes")
        if lengths.dtype != np.int32 or lengths.shape != (count, 2):
            raise WireError("there should be two lengths for each node")
        if (lengths < 0).any() or (lengths > (LONGEST_CERTIFICATE, LONGEST_ENDORSEMENT)).any():
            raise WireError("a certificate or its signature is longer than makes sense")
        identity = _read(content, "identity", int(lengths.sum()))
        ends = np.cumsum(lengths.reshape(-1)).tolist()
        parts = [identity[end - size : end] for end, size in zip(ends, lengths.reshape(-1).tolist(), strict=True)]
        keys = zip(public, parts[::2], parts[1::2], strict=True)
        return cls(series, round_, tuple(KeysReply(own.tobytes(), *identity) for own, *identity in keys))

    def transcript(self, rules: Rules) -> bytes:
        """T: the round, the rules and all keys."""
        said = f"{rules.neighbors} {rules.threshold!r} {rules.clip!r} {rules.bits} {rules.noise!r}".encode()
        parts = (part for found in self.keys for part in (found.public, found.certificate, found.endorsement))
        return _digest(b"transcript %d" % _VERSION, self.series, self.round, said, *parts)


@dataclass(frozen=True)
class SharesReply:
    """A node's shares for its neighbours, ascending: [k, 48], each for one of them to read."""

    sealed: Bytes
    signature: bytes = b""

    def encode(self, series: str, round_: int) -> RecordDict:
        return _content(series, round_, {"sealed": self.sealed, "signature": _bytes(self.signature)})

    @classmethod
    def decode(
        cls, content: RecordDict, series: str, round_: int, count: int, public: bytes, transcript: bytes
    ) -> SharesReply:
        """With shares for so many neighbours, from the node with these keys."""
        _refuse_other(content, series, round_)
        sealed = read_array(content, _RECORD, "sealed", np.uint8, (count, SEALED))
        return _verified(cls(sealed, _read(content, "signature", SIGNATURE)), public, transcript)

    def signed(self, transcript: bytes) -> bytes:
        """What the signature is of."""
        return _digest(b"shares", "", 0, transcript, self.sealed.tobytes())


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
        content[_RECORD] = pack(self.arrays())

    def digest(self) -> bytes:
        """What an answer's signature covers of it, so that it answers this and nothing else."""
        said = (values.tobytes() for values in self.arrays().values())
        return _digest(b"input request", "", 0, *said)

    @classmethod
    def decode(cls, content: RecordDict, nodes: int) -> InputRequest:
        present = _read_mask(content, "present", nodes)
        sealed = read_raw(content, _RECORD, "sealed")
        if sealed.dtype != np.uint8 or sealed.ndim != 2 or sealed.shape[1] != SEALED:
            raise WireError(f"the shares of others should be {SEALED} bytes each")
        weight, users = read_array(content, _RECORD, "weight", np.float64, (2,)).tolist()
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
        content[_RECORD] = pack({"values": self.values, "signature": _bytes(self.signature)})

    @classmethod
    def decode(
        cls, content: RecordDict, length: int, bits: Bits, public: bytes, transcript: bytes, about: bytes
    ) -> MaskedInput:
        """Of so many numbers, from the node with these keys."""
        values = read_array(content, _RECORD, "values", dtype_of(bits), (length,))
        found = cls(values, _read(content, "signature", SIGNATURE))
        if not Public.of(public).verify(found.signature, found.signed(transcript, about)):
            raise WireError("the reply is not signed with the node's key of this round")
        return found

    def signed(self, transcript: bytes, about: bytes) -> bytes:
        """What the signature is of."""
        return _digest(b"input", "", 0, transcript, about, self.values.data)


@dataclass(frozen=True)
class AgreeRequest:
    """Sign who is in the sum: [n]."""

    series: str
    round: int
    survivors: Mask

    def encode(self) -> RecordDict:
        return _content(self.series, self.round, {"survivors": self.survivors})

    @classmethod
    def decode(cls, content: RecordDict, nodes: int) -> AgreeRequest:
        return cls(*_round_of(content), _read_mask(content, "survivors", nodes))


def said_beside(content: RecordDict) -> bytes:
    """The digest of what a training reply says of users, which its signature covers."""
    record = read_record(content, "users")
    return _digest(b"users", "", 0, *(part for name in sorted(record) for part in (name.encode(), record[name].data)))


def agreed(transcript: bytes, present: Mask, survivors: Mask, model: bytes) -> bytes:
    """What nodes sign: the keys of all, whose masks are in the input, who is in the sum, what was trained from."""
    return _digest(b"agree", "", 0, transcript, np.packbits(present).data, np.packbits(survivors).data, model)


@dataclass(frozen=True)
class AgreeReply:
    """A node's signature of `agreed`."""

    signature: bytes

    def encode(self, series: str, round_: int) -> RecordDict:
        return _content(series, round_, {"signature": _bytes(self.signature)})

    @classmethod
    def decode(cls, content: RecordDict, series: str, round_: int, public: bytes, content_: bytes) -> AgreeReply:
        """Of what everybody signs, from the node with these keys."""
        _refuse_other(content, series, round_)
        signature = _read(content, "signature", SIGNATURE)
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
        return _content(self.series, self.round, {"signers": self.signers, "signatures": self.signatures})

    @classmethod
    def decode(cls, content: RecordDict, nodes: int) -> UnmaskRequest:
        signers = _read_mask(content, "signers", nodes)
        shape = (int(signers.sum()), SIGNATURE)
        return cls(*_round_of(content), signers, read_array(content, _RECORD, "signatures", np.uint8, shape))


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
        arrays = {"own": _bytes(self.own), "shares": self.shares, "given": self.given}
        return _content(series, round_, {**arrays, "signature": _bytes(self.signature)})

    @classmethod
    def decode(
        cls, content: RecordDict, series: str, round_: int, count: int, public: bytes, transcript: bytes
    ) -> UnmaskReply:
        """About so many neighbours, from the node with these keys."""
        _refuse_other(content, series, round_)
        shares = read_array(content, _RECORD, "shares", np.uint8, (count, SECRET))
        given = _read_mask(content, "given", count)
        own, signature = _read(content, "own", SECRET), _read(content, "signature", SIGNATURE)
        return _verified(cls(own, shares, given, signature), public, transcript)

    def signed(self, transcript: bytes) -> bytes:
        """What the signature is of."""
        return _digest(b"unmask", "", 0, transcript, self.own, self.shares.tobytes(), self.given.tobytes())


def _content(series: str, round_: int, arrays: dict[str, NDArray[Any]]) -> RecordDict:
    return RecordDict({"config": ConfigRecord({"series": series, "round": round_}), _RECORD: pack(arrays)})


def _round_of(content: RecordDict) -> tuple[str, int]:
    config = read_config(content)
    return read_scalar(config, "series", str), read_scalar(config, "round", int)


def _refuse_other(content: RecordDict, series: str, round_: int) -> None:
    if _round_of(content) != (series, round_):
        raise WireError("the reply is to another round, or to another run")


def _verified(reply: Any, public: bytes, transcript: bytes) -> Any:
    if not Public.of(public).verify(reply.signature, reply.signed(transcript)):
        raise WireError("the reply is not signed with the node's key of this round")
    return reply


def _digest(kind: bytes, series: str, round_: int, *parts: bytes | memoryview) -> bytes:
    """SHA-256 over parts that cannot be taken for others: each after its length."""
    found = sha256(b"bouquet secure sums: " + kind + b" ")
    for part in (series.encode(), str(round_).encode(), *parts):
        size = part.nbytes if isinstance(part, memoryview) else len(part)
        found.update(size.to_bytes(8, "little"))
        found.update(part)
    return found.digest()


def _bytes(content: bytes) -> Bytes:
    return np.frombuffer(content, np.uint8)


def _read(content: RecordDict, name: str, size: int) -> bytes:
    return read_array(content, _RECORD, name, np.uint8, (size,)).tobytes()


def _read_some(content: RecordDict, name: str, most: int) -> bytes:
    values = read_raw(content, _RECORD, name)
    if values.dtype != np.uint8 or values.ndim != 1 or len(values) > most:
        raise WireError(f"'{name}' should be at most {most} bytes")
    return values.tobytes()


def _read_mask(content: RecordDict, name: str, size: int) -> Mask:
    values = read_array(content, _RECORD, name, np.bool_, (size,))
    if (values.view(np.uint8) > 1).any():
        raise WireError(f"'{name}' should say yes or no of each of {size} nodes")
    return values
