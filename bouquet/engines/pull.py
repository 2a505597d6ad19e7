"""Replies as the SuperLink holds them: measured first, put together afterwards.

Flower carries an array as a list of chunks, and equal chunks once. A few megabytes on the wire can so name gigabytes,
which `HttpGrid.pull_messages` of 1.39 puts together unasked; what it cannot put together it raises, and the run of all
nodes ends. And it believes what the bytes of a reply say about which message they answer. So the ServerApp takes the
parts itself: here the sizes are added up before anything is made, what goes wrong is an error of the one reply, and
which message it answers is what the SuperLink says.

All that this touches is inside Flower; a test says when a release has changed it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flwr.app import Error, Message
from flwr.serverapp import Grid

from bouquet.engines.release import CLIENT_RAISED
from bouquet.folding import unfolded

if TYPE_CHECKING:
    from flwr.superlink.grid import HttpGrid

# Heads, names and settings of a message, and of each of its objects.
_MESSAGE_BYTES, _OBJECT_BYTES = 256 * 1024, 1024
_MOST_OBJECTS = 100_000


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
        return _pull_measured(grid, most_bytes)  # type: ignore[arg-type]
    return list(grid.pull_messages(list(most_bytes)))


def is_remote(grid: Grid) -> bool:
    """Whether nodes are behind a SuperLink elsewhere, and not in this process or Flower's simulation."""
    return hasattr(grid, "_runtime_client")


def _pull_measured(grid: HttpGrid, most_bytes: Mapping[str, int]) -> list[Message]:
    # Only a ServerApp that Flower runs gets here, and there these are imported already.
    import httpx
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest
    from flwr.supercore.inflatable.inflatable_utils import ObjectPullError

    client, run_id = grid._runtime_client, grid._run.run_id  # type: ignore[union-attr]
    try:
        answer = client.PullMessages(PullAppMessagesRequest(message_ids=list(most_bytes)))
    except httpx.HTTPStatusError as error:
        if error.response.status_code == httpx.codes.REQUEST_ENTITY_TOO_LARGE:
            return []
        raise
    messages = []
    for proto, tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
        metadata = proto.metadata
        try:
            message = _put_together(grid, metadata, tree, most_bytes.get(metadata.reply_to_message_id, 0))
        except ObjectPullError as error:
            # It was not uploaded to the end, and may come once more; nobody here is to blame.
            messages.append(_error(metadata, grid.node.node_id, f"its reply did not arrive whole ({error})"))
            continue
        except httpx.HTTPError:
            raise  # the SuperLink is not there
        except _Refused as error:
            message = _error(metadata, metadata.src_node_id, str(error))
        except Exception as error:
            reason = f"its reply cannot be put together ({type(error).__name__}: {str(error)[:300]})"
            message = _error(metadata, metadata.src_node_id, reason)
        client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=grid.node, run_id=run_id, message_object_id=metadata.message_id)
        )
        messages.append(message)
    return messages


def _put_together(grid: HttpGrid, metadata: Any, tree: Any, most: int) -> Message:
    """One reply.

    Raises:
        _Refused: it is too large, or not to the message that the SuperLink says.
        Exception: whatever Flower raises for parts that do not fit together.
    """
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
    from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects

    fetch = make_pull_object_fn_protobuf(
        pull_object_protobuf=grid._runtime_client.PullObject,
        node=grid.node,
        run_id=grid._run.run_id,  # type: ignore[union-attr]
    )
    objects: dict[str, None] = {}
    for part in iterate_object_tree(tree):
        objects[part.object_id] = None
        if len(objects) > _MOST_OBJECTS:
            raise _Refused(f"the reply has more than {_MOST_OBJECTS} parts")
    room = most + _MESSAGE_BYTES + _OBJECT_BYTES * len(objects)
    came = 0

    def fetch_within(identity: str) -> bytes:
        nonlocal came
        content = fetch(identity)
        came += len(content)
        if came > room:
            raise _Refused(f"the reply has more than the {most} bytes that make sense")
        return content

    # A reply's parts follow it: Flower would wait for a second or more before it asks again.
    contents = pull_objects(
        list(objects), fetch_within, initial_backoff=0.02, backoff_cap=0.2, max_tries_per_object=None
    )
    if (size := inflated_bytes(contents)) > most:
        raise _Refused(f"the reply would have {size} bytes where at most {most} make sense")
    message = inflate_object_from_contents(metadata.message_id, contents)
    if not isinstance(message, Message) or message.metadata.reply_to_message_id != metadata.reply_to_message_id:
        raise _Refused("the reply claims to answer another message than it does")
    if message.has_content():
        message.content = unfolded(message.content)
    message.metadata.__dict__.update(_message_id=metadata.message_id, _src_node_id=metadata.src_node_id)
    return message


def inflated_bytes(contents: Mapping[str, bytes]) -> int:
    """Bytes of all arrays of a message once their chunks are put together, out of the parts as they travel.

    Raises:
        ValueError, KeyError, TypeError, IndexError: a part is not as Flower makes it.
    """
    from flwr.supercore.constant import HEAD_BODY_DIVIDER
    from flwr.supercore.inflatable.inflatable_object import get_object_head_values_from_object_content

    heads = {identity: get_object_head_values_from_object_content(content) for identity, content in contents.items()}
    bodies = {
        identity: content.find(HEAD_BODY_DIVIDER) + len(HEAD_BODY_DIVIDER) for identity, content in contents.items()
    }
    total = 0
    for identity, (kind, children, _) in heads.items():
        if kind != "Array":
            continue
        if not all(heads[child][0] == "ArrayChunk" for child in children):
            raise ValueError(
                "an array is made of something else than chunks"
            )  # arrays of arrays double with each level
        sizes = [len(contents[child]) - bodies[child] for child in children]
        total += sum(sizes[index] for index in json.loads(contents[identity][bodies[identity] :])["arraychunk_ids"])
    return total


def _error(metadata: Any, source: int, reason: str) -> Message:
    """An error in place of a reply."""
    from flwr.app import Metadata
    from flwr.app.message import make_message
    from flwr.supercore.constant import SYSTEM_MESSAGE_TYPE

    return make_message(
        metadata=Metadata(
            run_id=metadata.run_id,
            message_id="",
            src_node_id=source,
            dst_node_id=metadata.dst_node_id,
            message_type=SYSTEM_MESSAGE_TYPE,
            group_id="",
            ttl=0,
            reply_to_message_id=metadata.reply_to_message_id,
            created_at=metadata.created_at,
        ),
        error=Error(code=CLIENT_RAISED, reason=reason),
    )
