"""What a running device says of itself to whoever asks later: `status.json` in its folder, and a lock beside it.

The lock is held as long as `bouquet node` runs, and the kernel frees it however that ends; so whether a node is running
does not rest on a file that a killed process has left.
"""

from __future__ import annotations

import contextlib
import json
import os
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path

from bouquet.errors import ConfigError
from bouquet.files import is_locked, locked, write_atomically

NAME, LOCK = "status.json", ".running"

CONNECTING, CONNECTED, LOST = "connecting", "connected", "lost"
WAITING, UNREACHABLE, FAILED, RESTING = "waiting", "unreachable", "failed", "resting"


def running(state: Path) -> AbstractContextManager[None]:
    """Be the one `bouquet node` of a folder.

    Raises:
        ConfigError: another one is.
    """
    taken = ConfigError(f"Another `bouquet node` is running on {state}. End it first, or name another folder: --state.")
    # Who asks whether it is held holds it for an instant.
    return locked(state / LOCK, taken, seconds=1.0)


def is_running(state: Path) -> bool:
    """Whether a `bouquet node` runs on a folder."""
    return is_locked(state / LOCK)


class NodeRecord:
    """Writes down what becomes of a device's connection, whenever it changes.

    Args:
        state: folder of the device.
        superlink: HOST:PORT.
    """

    def __init__(self, state: Path, superlink: str) -> None:
        self._path = state / NAME
        self._document: dict[str, object] = {"superlink": superlink, "process": os.getpid(), "started": _now()}

    def becomes(self, connection: str, reason: str = "") -> None:
        """The connection is so from now on."""
        new = {"connection": connection, "reason": reason}
        if new.items() <= self._document.items():
            return
        if connection != self._document.get("connection"):
            self._document["since"] = _now()
        self._document |= new
        self._write()

    def ends(self) -> None:
        """The node is ended in order."""
        self._document["ended"] = _now()
        self._write()

    def _write(self) -> None:
        # Not forced to the disk: after a power cut nothing of it holds any more.
        # Nor does a full disk end a node that has only something to say.
        with contextlib.suppress(OSError):
            write_atomically(self._path, json.dumps(self._document, indent=2) + "\n", durable=False, private=True)


def read_record(state: Path) -> dict[str, str]:
    """What the last `bouquet node` of a folder wrote; empty if there is nothing that can be read."""
    try:
        document = json.loads((state / NAME).read_text())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
