"""Replies as the SuperLink holds them: measured first, put together afterwards.

Flower carries an array as a list of chunks, and equal chunks once. A few megabytes on the wire can so name gigabytes,
which `HttpGrid.pull_messages` of 1.39 puts together unasked; what it cannot put together it raises, and the run of all
nodes ends. And it believes what the bytes of a reply say about which message they answer. So the ServerApp takes the
parts itself: here the sizes are added up before anything is made, what goes wrong is an error of the one reply, and
which message it answers is what the SuperLink says.

A reply is there before its parts are, and if its node dies meanwhile they never come. Nobody waits for them here: what
is whole is given out, the rest stays until the next look.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from flwr.app import Error, Message
from flwr.serverapp import Grid

from bouquet.engines.inside import Mailbox, NotWhole, error_message, head, is_remote, put_together, sent_by
from bouquet.engines.release import CLIENT_RAISED
from bouquet.folding import unfolded

# Heads, names and settings of a message, and of each of its objects.
_MESSAGE_BYTES, _OBJECT_BYTES = 256 * 1024, 1024
_MOST_OBJECTS = 100_000


class _Refused(Exception):
    """The reason why a reply is not put together."""


class _Opened:
    """A reply of which the SuperLink has said that it is there, and the parts that have come of it.

    Args:
        metadata: as the SuperLink gives it.
        parts: names of all parts, some perhaps several times.
        most: bytes that its arrays can have.
    """

    def __init__(self, metadata: Any, parts: Iterator[str], most: int) -> None:
        self.metadata, self._unread, self._most, self._room = metadata, parts, most, most + _MESSAGE_BYTES
        self._missing, self._contents, self._lock = dict[str, None](), dict[str, bytes](), threading.Lock()

    def fetch(self, mailbox: Mailbox) -> bool:
        """Take those of its parts that are there; whether these are all.

        Raises:
            _Refused: it is too large.
            NotWhole: a part of it will never come.
        """
        for part in self._unread:
            if part not in self._missing:
                self._missing[part] = None
                self._room += _OBJECT_BYTES
            if len(self._missing) > _MOST_OBJECTS:
                raise _Refused(f"the reply has more than {_MOST_OBJECTS} parts")
        return mailbox.fetch(list(self._missing), self._keep)

    def _keep(self, part: str, content: bytes) -> None:
        # A thread of the look before may still be at it, so that a part comes twice.
        with self._lock:
            if part in self._contents:
                return
            self._room -= len(content)
            if self._room < 0:
                raise _Refused(f"the reply has more than the {self._most} bytes that make sense")
            self._contents[part] = content
            self._missing.pop(part)

    def put_together(self) -> Message:
        """The reply, of which all parts are here.

        Raises:
            _Refused: it is too large, or not to the message that the SuperLink says.
            Exception: whatever Flower raises for parts that do not fit together.
        """
        if (size := inflated_bytes(self._contents)) > self._most:
            raise _Refused(f"the reply would have {size} bytes where at most {self._most} make sense")
        message = put_together(self.metadata.message_id, self._contents)
        answers = self.metadata.reply_to_message_id
        if not isinstance(message, Message) or message.metadata.reply_to_message_id != answers:
            raise _Refused("the reply claims to answer another message than it does")
        if message.has_content():
            message.content = unfolded(message.content)
        sent_by(message, self.metadata)
        return message


class Inbox:
    """Takes replies to the messages of a ServerApp.

    Args:
        grid: Flower's. Over a network replies are measured; within one process they are already there.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid, self._opened = grid, dict[str, _Opened]()

    def take(self, most_bytes: Mapping[str, int]) -> list[Message]:
        """The replies that have come whole; waits for none.

        Args:
            most_bytes: by the message that is waited for, the largest size that the arrays of its reply can have. What
                is larger, or cannot be read, comes as an error from its node.
        """
        if not most_bytes:
            return []
        if is_remote(self._grid):
            return self._take_measured(Mailbox(self._grid), most_bytes)
        return list(self._grid.pull_messages(list(most_bytes)))

    def coming(self, identity: str) -> bool:
        """Whether parts of the reply to this message are on their way."""
        return identity in self._opened

    def forget(self, identity: str) -> None:
        """Of the reply to this message nothing is wanted any more."""
        self._opened.pop(identity, None)

    def _take_measured(self, mailbox: Mailbox, most_bytes: Mapping[str, int]) -> list[Message]:
        # Only a ServerApp that Flower runs gets here, and there it is imported already.
        import httpx

        messages: list[Message] = []
        try:
            self._open(mailbox, most_bytes)
            for message in self._whole(mailbox, most_bytes):
                messages.append(message)
        except httpx.ConnectTimeout:
            pass  # The SuperLink is too busy to shake hands. What was opened is here, the rest there, at the next look.
        return messages

    def _open(self, mailbox: Mailbox, most_bytes: Mapping[str, int]) -> None:
        """Ask for replies that have come since the last look; what was opened is not told again.

        Raises:
            httpx.HTTPError: the SuperLink does not answer.
        """
        import httpx

        if not (unopened := [identity for identity in most_bytes if identity not in self._opened]):
            return
        try:
            answers = mailbox.replies(unopened)
        except httpx.HTTPStatusError as error:
            if error.response.status_code == httpx.codes.REQUEST_ENTITY_TOO_LARGE:
                return
            raise
        for metadata, tree in answers:
            answered = metadata.reply_to_message_id
            self._opened[answered] = _Opened(metadata, mailbox.parts(tree), most_bytes.get(answered, 0))

    def _whole(self, mailbox: Mailbox, most_bytes: Mapping[str, int]) -> Iterator[Message]:
        """The replies that are whole, or errors in their place, each when it is confirmed.

        Raises:
            httpx.HTTPError: the SuperLink does not answer.
        """
        import httpx

        for identity in [identity for identity in most_bytes if identity in self._opened]:
            opened = self._opened[identity]
            metadata = opened.metadata
            try:
                if not opened.fetch(mailbox):
                    continue
                message = opened.put_together()
            except NotWhole as error:
                # Nobody here is to blame.
                del self._opened[identity]
                yield _error(metadata, mailbox.node.node_id, f"its reply did not arrive whole ({error})")
                continue
            except httpx.HTTPError:
                raise  # the SuperLink is not there
            except _Refused as error:
                message = _error(metadata, metadata.src_node_id, str(error))
            except Exception as error:
                reason = f"its reply cannot be put together ({type(error).__name__}: {str(error)[:300]})"
                message = _error(metadata, metadata.src_node_id, reason)
            mailbox.confirm(metadata)
            del self._opened[identity]
            yield message


def inflated_bytes(contents: Mapping[str, bytes]) -> int:
    """Bytes of all arrays of a message once their chunks are put together, out of the parts as they travel.

    Raises:
        ValueError, KeyError, TypeError, IndexError: a part is not as Flower makes it.
    """
    heads = {identity: head(content) for identity, content in contents.items()}
    total = 0
    for identity, (kind, children, body) in heads.items():
        if kind != "Array":
            continue
        if not all(heads[child][0] == "ArrayChunk" for child in children):
            raise ValueError(
                "an array is made of something else than chunks"
            )  # arrays of arrays double with each level
        sizes = [len(contents[child]) - heads[child][2] for child in children]
        total += sum(sizes[index] for index in json.loads(contents[identity][body:])["arraychunk_ids"])
    return total


def _error(metadata: Any, source: int, reason: str) -> Message:
    """An error in place of a reply."""
    return error_message(metadata, source, Error(code=CLIENT_RAISED, reason=reason))
