"""One round's messages: sent together, collected until all, enough, or the deadline; what comes later is dropped."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from flwr.app import Message
from flwr.serverapp import Grid

from bouquet.engines.pull import Inbox
from bouquet.engines.push import push
from strategies.federation.replies import Sent

SHORTEST_PAUSE = 0.005
# A quick answer is seen quickly, and a long round costs the SuperLink little.
PAUSE_GROWTH = 1.3
# The parts of a reply follow it closely: until they have come, nobody sleeps longer.
PART_SECONDS = 0.2

# Nobody is waited for less than this, nor less than so many times as the slowest of the last rounds took.
LEAST_SECONDS, SLACK, ROUNDS_REMEMBERED = 60.0, 5.0, 5


class Pace:
    """How long replies to one kind of message take.

    Args:
        longest: seconds that are waited at most.
        fixed: always wait that long.
    """

    def __init__(self, longest: float, *, fixed: bool = False) -> None:
        self.longest, self._fixed = longest, fixed
        self._slowest: deque[float] = deque([0.0], maxlen=ROUNDS_REMEMBERED)

    def begin(self) -> None:
        """A round begins."""
        self._slowest.append(0.0)

    def observe(self, seconds: float) -> None:
        """A reply came after so many seconds, in time or not."""
        self._slowest[-1] = max(self._slowest[-1], seconds)

    def patience(self, enough: bool) -> float:
        """Seconds that are waited for the others of a round.

        Args:
            enough: whether as many have replied as a round needs. Without these the run would fail, so they have all
                the time that there is.
        """
        if self._fixed or not enough:
            return self.longest
        return min(self.longest, max(LEAST_SECONDS, SLACK * max(self._slowest)))


class Exchange:
    """Sends messages over a grid and collects what comes back.

    Flower's own `send_and_receive` looks every three seconds and waits for the last node; a federation of devices
    has a last node that never answers.

    Args:
        grid: Flower's.
        longest_pause: seconds between two looks for replies, at most.

    Attributes:
        timed_out: whether the last messages were waited for until the deadline.
    """

    def __init__(self, grid: Grid, longest_pause: float = 1.0) -> None:
        self._grid, self._inbox, self._longest_pause = grid, Inbox(grid), longest_pause
        self._unanswered: dict[str, tuple[Pace, float, int]] = {}
        self.timed_out = False

    def ask(self, sent: Sequence[Sent], wait: float | Pace, enough: float = 1.0, needed: float = 1.0) -> list[Message]:
        """The replies to these messages, in the order in which they came.

        Args:
            wait: seconds after which nobody is waited for, or what says so.
            enough: the share of the asked users whose replies are waited for; error replies count for nothing.
            needed: the share without which the round is worth nothing.
        """
        pace = wait if isinstance(wait, Pace) else Pace(wait)
        pace.begin()
        start = time.monotonic()
        accepted = [identity for identity in push(self._grid, [item.message for item in sent]) if identity]
        pending = {item.message.metadata.message_id: len(item.users) for item in sent}
        pending = {identity: users for identity, users in pending.items() if identity in set(accepted)}
        most_bytes = {item.message.metadata.message_id: item.most_bytes for item in sent}
        everyone = sum(len(item.users) for item in sent)
        replies: list[Message] = []
        answered, pause = 0, SHORTEST_PAUSE
        self.timed_out = False
        while pending:
            begin = time.monotonic()
            for reply in self._inbox.take({identity: most_bytes[identity] for identity in pending}):
                users = pending.pop(reply.metadata.reply_to_message_id, 0)
                if not reply.has_error():
                    answered += users
                    pace.observe(time.monotonic() - start)
                replies.append(reply)
            now = time.monotonic()
            deadline = start + pace.patience(answered >= needed * everyone)
            self.timed_out = bool(pending) and now >= deadline
            if not pending or answered >= enough * everyone or self.timed_out:
                break
            longest = PART_SECONDS if any(map(self._inbox.coming, pending)) else self._longest_pause
            # Asking must not become the work: thousands of pending messages make a pull slow.
            pause = min(max(2 * (now - begin), min(PAUSE_GROWTH * pause, longest)), self._longest_pause)
            time.sleep(min(pause, deadline - now))
        self._unanswered |= {identity: (pace, start, most_bytes[identity]) for identity in pending}
        return replies

    def late(self) -> int:
        """How many replies came since the last call that nobody waits for any more; they are dropped.

        How late they were is remembered: a node that is only slower than all others before it is waited for.
        """
        if not self._unanswered:
            return 0
        came = self._inbox.take({identity: most for identity, (_, _, most) in self._unanswered.items()})
        now = time.monotonic()
        for message in came:
            pace, start, _ = self._unanswered.pop(message.metadata.reply_to_message_id)
            if not message.has_error():
                pace.observe(now - start)
        return sum(not message.has_error() for message in came)
