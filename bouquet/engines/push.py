"""Messages on their way to nodes: folded where they go to other processes."""

from __future__ import annotations

from collections.abc import Sequence

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from bouquet.engines.inside import is_remote
from bouquet.folding import folded


def push(grid: Grid, messages: Sequence[Message]) -> list[str]:
    """Send messages, whose contents stay what they were.

    Returns:
        the id of each, in order; "" for one that was not accepted.
    """
    if not is_remote(grid):
        return list(grid.push_messages(messages))
    contents, before = [message.content for message in messages], dict[str, ArrayRecord]()
    try:
        for message in messages:
            message.content = folded(message.content, before)
        return list(grid.push_messages(messages))
    finally:
        for message, content in zip(messages, contents, strict=True):
            message.content = content
