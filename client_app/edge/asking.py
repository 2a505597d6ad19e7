"""How a SuperNode asks for messages: soon again, and only when its owner's conditions allow it."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from bouquet.conditions import FRESH_SECONDS, RESTS, Conditions
from bouquet.engines.inside import parts_come_soon, supernode_asks, supernode_sleeps, supernode_tries_again
from bouquet.engines.polling import Polling
from bouquet.reporting.events import event

# Of a SuperNode that waits for its reply.
REPLY_SECONDS = 0.02
# So long after the last message a SuperNode still asks as often as while messages come.
BUSY_FOR = 60.0
# A part of a message that is on its way is asked for again after so long, then after twice that, at most so long.
PART_SECONDS, LATE_PART_SECONDS = 0.02, 1.0
# A node waits so many times as long as its last question took before it asks again: the more nodes a SuperLink has, and
# the less it keeps up with them, the less each of them asks.
PATIENCE = 20.0
# A reply that the server has not fetched yet is lost when its node leaves: Flower then says that the node is gone.
LINGER_SECONDS = 10.0

# Calls that a SuperLink with too much work has not taken up. Flower's SuperNode ends with the first of them, and a
# thousand SuperNodes that start anew are no help to such a SuperLink.
BUSY_CODES = ("CANCELLED", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED")

# M_ARENA_MAX of <malloc.h>.
_ARENA_MAX = -8


def pull_parts_soon() -> None:
    """Have this process ask soon again for the parts of a message."""
    parts_come_soon(PART_SECONDS, LATE_PART_SECONDS)


def wait_for_a_busy_superlink() -> None:
    """Have the SuperNode repeat what a SuperLink with too much work does not answer, later and later."""
    supernode_tries_again(BUSY_CODES)


def look_for_messages_often(work: Callable[[], None], polling: Polling) -> None:
    """Have the SuperNode look for its reply often, and for messages as long as some have come lately.

    A SuperLink that answers slowly is asked as seldom as by a node at rest: a hundred nodes that ask five times a
    second keep it from everything else.

    Args:
        work: called again and again while the reply to a message is waited for.
        polling: how often it looks for messages.
    """
    last, full, woke = -BUSY_FOR, False, time.monotonic()

    def sleep(seconds: float) -> None:
        nonlocal last, full, woke
        took = time.monotonic() - woke
        if seconds < 1:  # for a reply, which is there soon
            last, full = time.monotonic(), True
            work()
            time.sleep(REPLY_SECONDS)
        elif time.monotonic() - last < BUSY_FOR:
            time.sleep(max(polling.busy, min(PATIENCE * took, polling.rest)))
        else:
            if full:
                give_back_memory()
                full = False
            time.sleep(polling.rest)
        woke = time.monotonic()

    supernode_sleeps(sleep)


def keep_little_memory() -> None:
    """Have all threads take memory from one place: glibc gives each its own, which keeps what it was given."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)


def give_back_memory() -> None:
    """Give the system what messages have taken and left: a C library keeps it for the next ones."""
    gc.collect()
    # Of glibc alone.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def leave_unless(conditions: Conditions) -> None:
    """Have the SuperNode end, in order, rather than ask for a message while its conditions do not hold."""
    worked, last = False, -LINGER_SECONDS

    def replaced(pull: Callable[..., int | None]) -> Callable[..., int | None]:
        def asked(**given: Any) -> int | None:
            nonlocal worked, last
            if worked:  # the reply to what was pulled before has been sent meanwhile
                worked, last = False, time.monotonic()
            if reason := conditions.against(FRESH_SECONDS):
                if time.monotonic() - last > LINGER_SECONDS:
                    print(f"{RESTS} {reason}.", flush=True)
                    event("conditions do not hold", reason=reason)
                    os.kill(os.getpid(), signal.SIGTERM)
                return None
            run = pull(**given)
            worked = run is not None
            return run

        return asked

    supernode_asks(replaced)


def leave_after_a_lost_message() -> None:
    """Have the SuperNode end when it has given up a message, for example because its run is over.

    The task of that message stays, and what comes of it in the end would be sent in the place of the next reply, and
    every reply after it one message late. Who keeps the SuperNode running starts it again with nothing of that.
    """

    def replaced(pull: Callable[..., int | None]) -> Callable[..., int | None]:
        def pulled(*, receive: Callable[[], Any], **given: Any) -> int | None:
            came = False

            def received() -> Any:
                nonlocal came
                found = receive()
                came = found is not None
                return found

            run = pull(receive=received, **given)
            if run is None and came:
                print("A message was given up; this SuperNode ends, to be started anew.", flush=True)
                os.kill(os.getpid(), signal.SIGTERM)
            return run

        return pulled

    supernode_asks(replaced)
