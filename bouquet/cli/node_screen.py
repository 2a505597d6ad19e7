"""What a person sees of a device: whether the server knows it, and who has to do what until it does."""

from __future__ import annotations

import base64
import hashlib
import os
import sys
from pathlib import Path

from bouquet.deployment.supervise import LONGEST_PAUSE, Listener
from bouquet.engines.release import EXIT, LET_IN, REFUSED

# A SuperLink that is there has answered by then.
SILENT_SECONDS = 20.0
# Lines of a reason that one of Flower's programs gives for its end.
_REASON_LINES = 2


class NodeScreen(Listener):
    """Tells what becomes of a device's SuperNode, each thing once, and the next try in a line.

    Args:
        superlink: HOST:PORT.
        keys: folder of the device's keys.
        log: where everything that Flower says goes.
        known: the device took part in a run before.
    """

    def __init__(self, superlink: str, keys: Path, log: Path, known: bool) -> None:
        self._superlink, self._keys, self._log = superlink, keys, log
        self._known, self._explained = known, False
        self._in = self._refused = self._silent = False
        self._reason: list[str] | None = None

    def said(self, line: str) -> None:
        # Events are for whoever collects them, as with every other process.
        if line.startswith("{") and os.environ.get("BOUQUET_LOG") == "json":
            print(line, file=sys.stderr, flush=True)
        if LET_IN in line:
            self._in = self._known = True
            self._explained = False
            _print(f"Connected: the SuperLink at {self._superlink} has let this device in.")
        elif REFUSED in line:
            self._refused = True
        if self._reason is not None and len(self._reason) < _REASON_LINES and line.strip():
            self._reason.append(line.strip())
        if EXIT in line:
            self._reason = []

    def alive(self, seconds: float) -> None:
        if not self._in and not self._silent and seconds > SILENT_SECONDS:
            self._silent = True
            _print(f"The SuperLink at {self._superlink} does not answer; trying on. Flower's own words: {self._log}")

    def ended(self, program: str, status: int, pause: float) -> None:
        again = f"Next try in {pause:.0f} s."
        if not self._refused:
            reason = " ".join(self._reason or [f"{program} ended with status {status}"]).removesuffix(".")
            _print(f"No connection to the SuperLink at {self._superlink}: {reason}. All of it: {self._log}. {again}")
        elif self._explained:
            _print(f"Not let in yet. {again}")
        else:
            self._explained = True
            _print(f"{self._waiting()}\n{again} Later tries come more rarely, at least every {LONGEST_PAUSE:.0f} s.")
        self._in = self._refused = self._silent = False
        self._reason = None

    def _waiting(self) -> str:
        public = self._keys / "node.pub"
        who = (
            f"the operator must register this device's key, {public}{fingerprint(public)}, with:\n"
            f"  bouquet deploy register {public}"
        )
        if not self._known:
            return f"Waiting to be let in by the SuperLink at {self._superlink}: {who}"
        return (
            f"Waiting to be let in again by the SuperLink at {self._superlink}: for up to a minute it may take this "
            f"device for still connected. If it goes on, {who}"
        )


def fingerprint(public: Path) -> str:
    """The fingerprint of a public key, as `ssh-keygen -l` says it, in brackets; "" where there is no such file."""
    try:
        blob = base64.b64decode(public.read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return ""
    return f" (SHA256:{base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip('=')})"


def _print(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
