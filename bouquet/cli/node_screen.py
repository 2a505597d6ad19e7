"""What a person sees of a device: whether the server knows it, and who has to do what until it does."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from bouquet.cli import node_record as states
from bouquet.cli.node_record import NodeRecord
from bouquet.cli.public_keys import named
from bouquet.conditions import RESTS
from bouquet.deployment.supervise import LONGEST_PAUSE, Listener
from bouquet.engines.release import EXIT, FOUND, LET_IN, LOST, REFUSED

# A SuperLink that is there has answered by then.
SILENT_SECONDS = 20.0
# Lines of a reason that one of Flower's programs gives for its end.
_REASON_LINES = 2


class NodeScreen(Listener):
    """Tells what becomes of a device's SuperNode, each thing once, and the next try in a line; and writes it down.

    Args:
        superlink: HOST:PORT.
        keys: folder of the device's keys.
        log: where everything that Flower says goes.
        record: for `bouquet node status`.
        known: the device took part in a run before.
    """

    def __init__(self, superlink: str, keys: Path, log: Path, record: NodeRecord, known: bool) -> None:
        self._superlink, self._keys, self._log, self._record = superlink, keys, log, record
        self._known, self._explained, self._tried = known, False, False
        self._in = self._lost = self._refused = self._silent = False
        self._left = self._rests = ""
        self._reason: list[str] | None = None
        self._last = ""

    def starts(self) -> None:
        if self._rests:
            self._rests = ""
            _print("All conditions hold: taking part again.")
        elif self._tried:  # what came of the last try holds until this one comes to something
            return
        self._tried = True
        self._record.becomes(states.CONNECTING)

    def rests(self, reason: str) -> None:
        if not self._rests:
            _print(f"Resting: {reason}. This device takes no part until all its conditions hold.")
        self._rests = reason
        self._record.becomes(states.RESTING, reason)
        self._forget_try()

    def said(self, line: str) -> None:
        # Events are for whoever collects them, as with every other process.
        if line.startswith("{") and os.environ.get("BOUQUET_LOG") == "json":
            print(line, file=sys.stderr, flush=True)
        if LET_IN in line:
            self._in = self._known = True
            self._explained = False
            _print(f"Connected: the SuperLink at {self._superlink} has let this device in.")
            self._record.becomes(states.CONNECTED)
        elif REFUSED in line:
            self._refused = True
        elif self._in and LOST in line and not self._lost:
            self._lost = True
            _print(f"The connection to the SuperLink at {self._superlink} is lost; it comes again by itself.")
            self._record.becomes(states.LOST)
        elif self._in and FOUND in line and self._lost:
            self._lost = False
            _print(f"Connected again to the SuperLink at {self._superlink}.")
            self._record.becomes(states.CONNECTED)
        elif line.startswith(RESTS):
            self._left = line.removeprefix(RESTS).strip().removesuffix(".")
        self._last = line.strip() or self._last
        if self._reason is not None and len(self._reason) < _REASON_LINES and line.strip():
            self._reason.append(line.strip())
        if EXIT in line:
            self._reason = []

    def alive(self, seconds: float) -> None:
        if not self._in and not self._silent and seconds > SILENT_SECONDS:
            self._silent = True
            _print(f"The SuperLink at {self._superlink} does not answer; trying on. Flower's own words: {self._log}")
            self._record.becomes(states.UNREACHABLE)

    def ended(self, program: str, status: int, pause: float) -> None:
        again = f"Next try in {pause:.0f} s."
        if self._left:  # and all its conditions hold again
            self.rests(self._left)
        elif not self._refused:
            unsaid = f"the SuperNode ended with status {status}" + (f", after {self._last}" if self._last else "")
            reason = " ".join(self._reason or [unsaid]).removesuffix(".")
            _print(f"No connection to the SuperLink at {self._superlink}: {reason}. All of it: {self._log}. {again}")
            self._record.becomes(states.FAILED, reason)
        elif self._explained:
            _print(f"Not let in yet. {again}")
        else:
            self._explained = True
            _print(f"{self._waiting()}\n{again} Later tries come more rarely, at least every {LONGEST_PAUSE:.0f} s.")
        if self._refused:
            self._record.becomes(states.WAITING)
        self._forget_try()

    def _forget_try(self) -> None:
        self._in = self._lost = self._refused = self._silent = False
        self._left, self._last, self._reason = "", "", None

    def _waiting(self) -> str:
        public = self._keys / "node.pub"
        who = (
            f"the operator must register this device's key, {named(public)}, with:\n  bouquet deploy register {public}"
        )
        if not self._known:
            return f"Waiting to be let in by the SuperLink at {self._superlink}: {who}"
        return (
            f"Waiting to be let in again by the SuperLink at {self._superlink}: for up to a minute it may take this "
            f"device for still connected. If it goes on, {who}"
        )


def _print(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
