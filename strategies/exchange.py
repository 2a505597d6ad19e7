"""One round's messages: sent together, collected until all, enough, or the deadline; what comes later is dropped."""

from __future__ import annotations

import time
from collections.abc import Sequence

from flwr.app import Message
from flwr.serverapp import Grid

from strategies.replies import Sent

SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
# A quick answer is seen quickly, and a long round costs the SuperLink little.
PAUSE_GROWTH = 1.3


class Exchange:
    """Sends messages over a grid and collects what comes back.

    Flower's own `send_and_receive` looks every three seconds and waits for the last node; a federation of devices
    has a last node that never answers.

    Args:
        grid: Flower's.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._unanswered: set[str] = set()

    def ask(self, sent: Sequence[Sent], timeout: float, enough: float = 1.0) -> list[Message]:
        """The replies to these messages, in the order in which they came.

        Args:
            timeout: seconds after which nobody is waited for.
            enough: the share of the asked users whose replies are waited for; error replies count for nothing.
        """
        deadline = time.monotonic() + timeout
        accepted = [identity for identity in self._grid.push_messages([item.message for item in sent]) if identity]
        pending = {item.message.metadata.message_id: len(item.users) for item in sent}
        pending = {identity: users for identity, users in pending.items() if identity in set(accepted)}
        wanted = enough * sum(len(item.users) for item in sent)
        replies: list[Message] = []
        answered, pause = 0, SHORTEST_PAUSE
        while pending:
            begin = time.monotonic()
            for reply in self._grid.pull_messages(list(pending)):
                users = pending.pop(reply.metadata.reply_to_message_id, 0)
                answered += 0 if reply.has_error() else users
                replies.append(reply)
            now = time.monotonic()
            if not pending or answered >= wanted or now >= deadline:
                break
            # Asking must not become the work: thousands of pending messages make a pull slow.
            pause = min(max(2 * (now - begin), PAUSE_GROWTH * pause), LONGEST_PAUSE)
            time.sleep(min(pause, deadline - now))
        self._unanswered |= pending.keys()
        return replies

    def late(self) -> int:
        """How many replies came since the last call that nobody waits for any more; they are dropped."""
        if not self._unanswered:
            return 0
        came = list(self._grid.pull_messages(list(self._unanswered)))
        self._unanswered -= {message.metadata.reply_to_message_id for message in came}
        return sum(not message.has_error() for message in came)
