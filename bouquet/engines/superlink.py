"""Flower's SuperLink with less work for its database: `python -m bouquet.engines.superlink …`, as `flower-superlink`.

Before nearly every call Flower 1.39 looks for task tokens that have expired, which are two statements that write.
SQLite lets one write at a time, so they bound how many nodes a SuperLink can serve. Tokens live for minutes: here it
looks once a second. And a call waits longer for one of its 15 connections, and for its turn to write, before it fails
with "QueuePool limit" or "database is locked": a message of which a part fails is lost to its node.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from bouquet.engines.inside import be_superlink

LOOK_SECONDS, TURN_SECONDS = 1.0, 120.0


def main() -> None:
    """Be a SuperLink."""
    be_superlink(functools.partial(at_most_every, LOOK_SECONDS), TURN_SECONDS)


def at_most_every(seconds: float, method: Callable[[Any], None]) -> Callable[[Any], None]:
    """A method that does nothing if it was called on the same object less than so long ago."""
    last: dict[int, float] = {}

    @functools.wraps(method)
    def seldom(self: Any) -> None:
        now = time.monotonic()
        if now - last.get(id(self), -seconds) >= seconds:
            last[id(self)] = now
            method(self)

    return seldom


if __name__ == "__main__":
    main()
