"""What messages of secure sums are made of: a record of arrays, the round that they are of, and digests to sign."""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Protocol, TypeVar

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from numpy.typing import NDArray

from bouquet.errors import WireError
from bouquet.masking.keys import Public
from bouquet.records import pack, read_array, read_config, read_raw, read_scalar

RECORD = "secure"
Bytes = NDArray[np.uint8]
Mask = NDArray[np.bool_]


class Signed(Protocol):
    """A reply that a node has signed with its key of the round."""

    @property
    def signature(self) -> bytes: ...

    def signed(self, transcript: bytes) -> bytes:
        """What the signature is of."""


Reply = TypeVar("Reply", bound=Signed)


def content_of(series: str, round_: int, arrays: dict[str, NDArray[Any]]) -> RecordDict:
    """A message of this series and round, with arrays."""
    return RecordDict({"config": ConfigRecord({"series": series, "round": round_}), RECORD: pack(arrays)})


def round_of(content: RecordDict) -> tuple[str, int]:
    """The series and the round that a message says it is of."""
    config = read_config(content)
    return read_scalar(config, "series", str), read_scalar(config, "round", int)


def refuse_other(content: RecordDict, series: str, round_: int) -> None:
    """Refuse a reply that is not of this series and round."""
    if round_of(content) != (series, round_):
        raise WireError("the reply is to another round, or to another run")


def verified(reply: Reply, public: bytes, transcript: bytes) -> Reply:
    """The reply, which the node with these keys has signed; another is refused."""
    if not Public.of(public).verify(reply.signature, reply.signed(transcript)):
        raise WireError("the reply is not signed with the node's key of this round")
    return reply


def digest(kind: bytes, series: str, round_: int, *parts: bytes | memoryview) -> bytes:
    """SHA-256 over parts that cannot be taken for others: each after its length."""
    found = sha256(b"bouquet secure sums: " + kind + b" ")
    for part in (series.encode(), str(round_).encode(), *parts):
        size = part.nbytes if isinstance(part, memoryview) else len(part)
        found.update(size.to_bytes(8, "little"))
        found.update(part)
    return found.digest()


def as_bytes(content: bytes) -> Bytes:
    """Bytes as an array."""
    return np.frombuffer(content, np.uint8)


def read_bytes(content: RecordDict, name: str, size: int) -> bytes:
    """So many bytes."""
    return read_array(content, RECORD, name, np.uint8, (size,)).tobytes()


def read_some(content: RecordDict, name: str, most: int) -> bytes:
    """So many bytes at most."""
    values = read_raw(content, RECORD, name)
    if values.dtype != np.uint8 or values.ndim != 1 or len(values) > most:
        raise WireError(f"'{name}' should be at most {most} bytes")
    return values.tobytes()


def read_mask(content: RecordDict, name: str, size: int) -> Mask:
    """[size] yes or no of each node."""
    values = read_array(content, RECORD, name, np.bool_, (size,))
    if (values.view(np.uint8) > 1).any():
        raise WireError(f"'{name}' should say yes or no of each of {size} nodes")
    return values
