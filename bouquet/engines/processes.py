"""Finding and ending the processes that a run has started, their children's children too.

Flower and Ray put some processes into sessions of their own, so a process group does not catch them all; but
all of them inherit the environment, and a value in it that only this run has finds them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

GRACE_SECONDS = 10.0


def marked_processes(name: str, value: str) -> list[int]:
    """Ids of the processes whose environment has `name=value`; none where there is no /proc."""
    mark = f"{name}={value}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if mark in environment and int(entry.name) != os.getpid() and not _is_dead(entry):
            found.append(int(entry.name))
    return found


def end_all(find: Callable[[], list[int]]) -> None:
    """Ask the processes to end, wait, then kill those that are left."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + GRACE_SECONDS
        for process in find():
            _send(process, sign)
        while find() and time.monotonic() < deadline:
            time.sleep(0.05)
        if not find():
            return


def _is_dead(entry: Path) -> bool:
    try:
        return "State:\tZ" in (entry / "status").read_text()
    except OSError:
        return True


def _send(process: int, sign: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(process, sign)
