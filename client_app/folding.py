"""The node's side of `bouquet.folding`: a message that came folded is answered so."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable

from bouquet.folding import folded, is_folded, unfolded


def unfolding(message: Message, context: Context, answer: ClientAppCallable) -> Message:
    """A mod of Flower's: what the app sees is never folded."""
    came_folded = is_folded(message.content)
    if came_folded:
        message.content = unfolded(message.content)
    reply = answer(message, context)
    if came_folded and reply.has_content():
        reply.content = folded(reply.content)
    return reply
