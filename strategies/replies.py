"""From the messages that come back to the replies that count."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
from flwr.app import Message, RecordDict
from numpy.typing import NDArray

from bouquet.errors import RunFailed, WireError
from bouquet.randomness import Words
from bouquet.records import message_bytes


class _Reply(Protocol):
    @property
    def users(self) -> Words: ...


R = TypeVar("R", bound=_Reply)


@dataclass(frozen=True)
class Sent:
    """A message on its way, and the users (positions in the roster) that it asks for."""

    message: Message
    users: NDArray[np.int64]


@dataclass(frozen=True)
class Failure:
    """A node that gave no valid reply."""

    node: int
    users: int
    reason: str


@dataclass(frozen=True)
class Received:
    """What came of one round's messages.

    Attributes:
        replies: the valid ones, in the order in which they were asked for, whatever order they came in.
        users: for each of them, its users' positions in the roster.
        failures: why the others are missing.
        bytes: size of the valid replies' arrays as they came.
        silent: nodes that did not answer themselves.
    """

    replies: list
    users: list[NDArray[np.int64]]
    failures: list[Failure]
    bytes: int
    silent: list[int] = field(default_factory=list)


def receive(
    sent: Sequence[Sent],
    messages: Iterable[Message],
    keys: Words,
    decode: Callable[[RecordDict], R],
    most_bytes: Callable[[int], int] | None = None,
) -> Received:
    """Match messages to what was sent, decode them, and set aside what is invalid.

    A node that died is reported by the SuperLink, so a reply is known by what it replies to, not by its source.

    Args:
        keys: [n] user keys of the roster.
        decode: raises `WireError` on a malformed reply.
        most_bytes: the largest size that a reply about so many users can have; larger ones are not even decoded.
    """
    came = {message.metadata.reply_to_message_id: message for message in messages}
    replies: list[R] = []
    users: list[NDArray[np.int64]] = []
    failures: list[Failure] = []
    silent: list[int] = []
    size = 0
    for item in sent:
        node = item.message.metadata.dst_node_id
        message = came.get(item.message.metadata.message_id)
        try:
            if message is None or not_from(node, message):
                silent.append(node)
            if message is None:
                raise WireError("no reply came in time")
            if message.has_error():
                raise WireError(error_text(message))
            came_bytes = message_bytes(message.content)
            if most_bytes and came_bytes > (most := most_bytes(len(item.users))):
                raise WireError(f"the reply has {came_bytes} bytes where at most {most} make sense")
            reply = decode(message.content)
            if not np.array_equal(reply.users, keys[item.users]):
                raise WireError("the reply is about other users than those asked for")
        except WireError as error:
            failures.append(Failure(node, len(item.users), str(error)))
            continue
        size += came_bytes
        replies.append(reply)
        users.append(item.users)
    return Received(replies, users, failures, size, silent)


def require_enough(received: Received, asked: int, least: float, what: str) -> None:
    """Fail the run when too few users gave a valid reply.

    Raises:
        RunFailed: names the counts and the first reason.
    """
    valid = sum(len(users) for users in received.users)
    if valid == 0 or valid < least * asked:
        reason = received.failures[0].reason if received.failures else "no messages were sent"
        raise RunFailed(f"{what}: only {valid} of {asked} users gave a valid reply. The first failure says: {reason}")


def not_from(node: int, message: Message) -> bool:
    """Whether the SuperLink answered in place of a node that is not there."""
    return bool(message.has_error() and message.metadata.src_node_id != node)


def error_text(message: Message) -> str:
    """The reason of an error reply, without the layers that Flower wraps around it."""
    reason = message.error.reason or f"error code {message.error.code}"
    match = re.search(r"Exception ClientAppException occurred\. Message: (.*)", reason, re.DOTALL)
    text = (match.group(1) if match else reason).strip().removesuffix("'>").strip()
    return text or reason
