"""From the messages that come back to the replies that count."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

import numpy as np
from flwr.app import Message, RecordDict
from numpy.typing import NDArray

from bouquet.errors import Diverged, RunFailed, WireError
from bouquet.randomness import Words
from bouquet.records import message_bytes
from bouquet.reporting.words import harmless
from bouquet.wire import DIVERGED
from strategies.federation.bounds import FAR_LARGER

# Characters of an error that a node gives.
LONGEST_ERROR = 2000


class _Reply(Protocol):
    @property
    def users(self) -> Words: ...

    @property
    def left_out(self) -> Mapping[int, str]: ...


R = TypeVar("R", bound=_Reply)


class NodesGone(RunFailed):
    """Too few users gave a valid reply, because nodes went away while they were waited for."""


@dataclass(frozen=True)
class Sent:
    """A message on its way.

    Attributes:
        users: positions in the roster of those that it asks for.
        most_bytes: the largest size that the arrays of a reply can have; larger ones are not even put together.
    """

    message: Message
    users: NDArray[np.int64]
    most_bytes: int


@dataclass(frozen=True)
class Failure:
    """A node that gave no valid reply, or users that a valid one leaves out."""

    node: int
    users: int
    reason: str

    @property
    def diverged(self) -> bool:
        """Whether training ran away there, and nothing else went wrong."""
        return DIVERGED in self.reason or FAR_LARGER in self.reason

    def __post_init__(self) -> None:
        # Much of it is a node's own words, and people read them in a terminal.
        object.__setattr__(self, "reason", harmless(self.reason))


@dataclass(frozen=True)
class Received:
    """What came of one round's messages.

    Attributes:
        replies: the valid ones, in the order in which they were asked for, whatever order they came in.
        users: for each of them, the positions in the roster of the users that it is about.
        asked: for each of them, how many users were asked for.
        failures: why the others are missing.
        bytes: size of the valid replies' arrays as they came.
        silent: nodes that did not answer themselves.
        valid: nodes that gave a valid reply.
    """

    replies: list
    users: list[NDArray[np.int64]]
    failures: list[Failure]
    bytes: int
    silent: list[int] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    valid: list[int] = field(default_factory=list)

    def held(
        self,
        replies: list,
        kept: Sequence[int],
        refused: Mapping[int, str | Mapping[int, str]],
        nodes: Sequence[int],
        keys: Words,
    ) -> Received:
        """What is left after some replies, or some users of theirs, were refused for what they ask of the model.

        Args:
            replies: those that are left, without the refused users.
            kept: their places among the replies before.
            refused: by place, why a reply is refused, or why each of some users is.
            nodes: where each reply came from.
            keys: [n] user keys of the roster.
        """
        failures = list(self.failures)
        for place, reason in refused.items():
            if isinstance(reason, str):
                failures.append(Failure(nodes[place], len(self.users[place]), reason))
            else:
                failures += [Failure(nodes[place], 1, f"user {user:016x}: {why}") for user, why in reason.items()]
        users = [
            self.users[place][np.isin(keys[self.users[place]], reply.users)]
            for place, reply in zip(kept, replies, strict=True)
        ]
        asked = [self.asked[place] for place in kept]
        return replace(self, replies=replies, users=users, asked=asked, failures=failures)


def receive(
    sent: Sequence[Sent],
    messages: Iterable[Message],
    keys: Words,
    decode: Callable[[RecordDict, NDArray[np.int64]], R],
) -> Received:
    """Match messages to what was sent, decode them, and set aside what is invalid.

    A node that died is reported by the SuperLink, so a reply is known by what it replies to, not by its source.

    Args:
        keys: [n] user keys of the roster.
        decode: makes a reply of a message that answers for users at these positions; raises `WireError` on a
            malformed one, and leaves out users about whom it says something impossible.
    """
    came = {message.metadata.reply_to_message_id: message for message in messages}
    replies: list[R] = []
    users: list[NDArray[np.int64]] = []
    failures: list[Failure] = []
    silent: list[int] = []
    asked: list[int] = []
    valid: list[int] = []
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
            if came_bytes > item.most_bytes:
                raise WireError(f"the reply has {came_bytes} bytes where at most {item.most_bytes} make sense")
            reply = decode(message.content, item.users)
        except WireError as error:
            failures.append(Failure(node, len(item.users), str(error)))
            continue
        except Exception as error:
            # Whatever a node sends, it must not end the run of all others.
            reason = f"it cannot be read ({type(error).__name__}: {error})"
            failures.append(Failure(node, len(item.users), reason))
            continue
        size += came_bytes
        failures += [Failure(node, 1, f"user {user:016x}: {reason}") for user, reason in reply.left_out.items()]
        if len(reply.users):
            replies.append(reply)
            users.append(item.users[np.isin(keys[item.users], reply.users)])
            asked.append(len(item.users))
            valid.append(node)
    return Received(replies, users, failures, size, silent, asked, valid)


def require_enough(received: Received, asked: int, least: float, what: str) -> None:
    """Fail the run when too few users gave a valid reply.

    Raises:
        NodesGone: they would be enough, had no node gone away.
        Diverged: nobody is missing for another reason than that training ran away.
        RunFailed: names the counts and the first reason.
    """
    valid = sum(len(users) for users in received.users)
    if valid == 0 or valid < least * asked:
        reason = received.failures[0].reason if received.failures else "no messages were sent"
        gone = sum(failure.users for failure in received.failures if failure.node in received.silent)
        kind = NodesGone if gone and valid + gone >= least * asked else RunFailed
        if received.failures and all(failure.diverged for failure in received.failures):
            kind = Diverged
        raise kind(f"{what}: only {valid} of {asked} users gave a valid reply. The first failure says: {reason}")


def not_from(node: int, message: Message) -> bool:
    """Whether the SuperLink answered in place of a node that is not there."""
    return bool(message.has_error() and message.metadata.src_node_id != node)


def error_text(message: Message) -> str:
    """The reason of an error reply, without the layers that Flower wraps around it.

    A SuperNode says "<class 'bouquet.errors.ConfigError'>:<'reason'>", and a simulation "<class '…'>:<'\\nException
    ClientAppException occurred. Message: reason'>".
    """
    # Long enough for all of Flower's layers, and no longer.
    reason = (message.error.reason or f"error code {message.error.code}")[: 10 * LONGEST_ERROR]
    match = re.search(r"Exception ClientAppException occurred\. Message: (.*)", reason, re.DOTALL)
    text = match.group(1) if match else re.sub(r"^\s*<class '[\w.]+'>:<'", "", reason)
    return harmless(text).strip().removesuffix("'>").strip()[:LONGEST_ERROR] or "it gives no reason"
