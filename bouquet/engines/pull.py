"""Replies as the SuperLink holds them: measured first, put together afterwards.

Flower carries an array as a list of chunks, and equal chunks once. A few megabytes on the wire can so name gigabytes,
which `HttpGrid.pull_messages` of 1.39 puts together unasked; what it cannot put together it raises, and the run of all
nodes ends. And it believes what the bytes of a reply say about which message they answer. So the ServerApp takes the
parts itself: here the sizes are added up before anything is made, what goes wrong is an error of the one reply, and
which message it answers is what the SuperLink says.
"""

from __future__ import annotations

import json
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
# A part that is on its way is asked for again after so long, then later, and at most so much later.
PART_SECONDS, LATE_PART_SECONDS = 0.02, 0.2


class _Refused(Exception):
    """The reason why a reply is not put together."""


def pull(grid: Grid, most_bytes: Mapping[str, int]) -> list[Message]:
    """The replies that have come to these messages.

    Args:
        grid: Flower's. Over a network replies are measured; within one process they are already there.
        most_bytes: by the message that is waited for, the largest size that the arrays of its reply can have. What is
            larger, or cannot be read, comes as an error from its node.
    """
    if not most_bytes:
        return []
    if is_remote(grid):
        return _pull_measured(Mailbox(grid), most_bytes)
    return list(grid.pull_messages(list(most_bytes)))


def _pull_measured(mailbox: Mailbox, most_bytes: Mapping[str, int]) -> list[Message]:
    # Only a ServerApp that Flower runs gets here, and there it is imported already.
    import httpx

    messages: list[Message] = []
    try:
        for message in _taken(mailbox, most_bytes):
            messages.append(message)
    except httpx.ConnectTimeout:
        pass  # The SuperLink is too busy to shake hands. What was not confirmed is there when it is asked again.
    return messages


def _taken(mailbox: Mailbox, most_bytes: Mapping[str, int]) -> Iterator[Message]:
    """The replies that are there, or errors in their place, each when it is confirmed.

    Raises:
        httpx.HTTPError: the SuperLink does not answer.
    """
    import httpx

    try:
        answers = mailbox.replies(list(most_bytes))
    except httpx.HTTPStatusError as error:
        if error.response.status_code == httpx.codes.REQUEST_ENTITY_TOO_LARGE:
            return
        raise
    for metadata, tree in answers:
        try:
            message = _put_together(mailbox, metadata, tree, most_bytes.get(metadata.reply_to_message_id, 0))
        except NotWhole as error:
            # It was not uploaded to the end, and may come once more; nobody here is to blame.
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
        yield message


def _put_together(mailbox: Mailbox, metadata: Any, tree: Any, most: int) -> Message:
    """One reply.

    Raises:
        _Refused: it is too large, or not to the message that the SuperLink says.
        NotWhole: a part of it never came.
        Exception: whatever Flower raises for parts that do not fit together.
    """
    objects: dict[str, None] = {}
    for part in mailbox.parts(tree):
        objects[part] = None
        if len(objects) > _MOST_OBJECTS:
            raise _Refused(f"the reply has more than {_MOST_OBJECTS} parts")
    room = most + _MESSAGE_BYTES + _OBJECT_BYTES * len(objects)
    came = 0

    def weigh(content: bytes) -> None:
        nonlocal came
        came += len(content)
        if came > room:
            raise _Refused(f"the reply has more than the {most} bytes that make sense")

    contents = mailbox.fetch(list(objects), weigh, PART_SECONDS, LATE_PART_SECONDS)
    if (size := inflated_bytes(contents)) > most:
        raise _Refused(f"the reply would have {size} bytes where at most {most} make sense")
    message = put_together(metadata.message_id, contents)
    if not isinstance(message, Message) or message.metadata.reply_to_message_id != metadata.reply_to_message_id:
        raise _Refused("the reply claims to answer another message than it does")
    if message.has_content():
        message.content = unfolded(message.content)
    sent_by(message, metadata)
    return message


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
