"""Keeps a SuperNode running: `python -m bouquet.deployment.supervise flower-supernode …`.

A SuperNode ends when the SuperLink refuses it: because its key is not registered yet, or because it was killed and the
SuperLink believes for up to a minute that the killed one is still there. It is then started again, ever more rarely.
One that has left because a condition of its owner does not hold is started when all hold again.
When the process that supervises is ended, so is the SuperNode with all that it started, even after SIGKILL.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bouquet.conditions import Conditions
from bouquet.engines.processes import Tree

FIRST_PAUSE, LONGEST_PAUSE = 2.0, 60.0
# Between two questions whether conditions hold again; to ask costs a device a process or two.
LONGEST_REST = 15.0
# One that lived this long was let in.
STEADY_SECONDS = 30.0
POLL_SECONDS = 0.5
MOST_LOG_BYTES = 1_000_000
_END_SECONDS = 10.0


class Listener:
    """Hears what becomes of a program; this one says only when it ended."""

    def starts(self) -> None:
        """The program is about to be started."""

    def rests(self, reason: str) -> None:
        """The program is not started as long as a condition says no; called whenever one does."""

    def said(self, line: str) -> None:
        """The program wrote this line to its log."""

    def alive(self, seconds: float) -> None:
        """The program has been running for so long; called often."""

    def ended(self, program: str, status: int, pause: float) -> None:
        """The program ended by itself, and is started again after a pause in seconds."""
        print(f"{program} ended with status {status}; started again in {pause:.0f} s.", file=sys.stderr, flush=True)


class Program:
    """A program that reads nothing, and all that it starts.

    Args:
        command: its name and arguments.
        environment: its environment; None: this process's.
        log: where it writes to; None: where this process does.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, log: Path | None = None
    ) -> None:
        self.command, self.log = list(command), log
        self._tree = Tree(grace=_END_SECONDS)
        self._environment = {**(os.environ if environment is None else environment), **self._tree.environment}
        self._process: subprocess.Popen[bytes] | None = None
        self._read = 0

    def start(self) -> None:
        """Start it."""
        if self.log is None:
            self._process = self._popen(None)
        else:
            with self.log.open("ab") as file:
                self._read = file.tell()
                self._process = self._popen(file.fileno())
        self._tree.lead(self._process.pid)

    def wait(self, seconds: float) -> int | None:
        """Its status, or None if it is still running after so many seconds."""
        assert self._process
        # Linux says when it ends; elsewhere `subprocess` looks twenty times a second, as long as a device is on.
        with contextlib.suppress(AttributeError, OSError):
            if self._process.poll() is None:
                ends = os.pidfd_open(self._process.pid)
                try:
                    select.select([ends], [], [], seconds)
                finally:
                    os.close(ends)
            return self._process.poll()
        try:
            return self._process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None

    def new_lines(self) -> list[str]:
        """What it wrote to its log since this was asked last, by whole lines."""
        if self.log is None:
            return []
        with self.log.open("rb") as file:
            file.seek(self._read)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._read += len(whole)
        if self._read > MOST_LOG_BYTES and len(whole) == len(content):
            # It appends, so it goes on at the beginning.
            os.truncate(self.log, 0)
            self._read = 0
        return whole.decode(errors="replace").splitlines()

    def end(self) -> None:
        """Ask it to end, kill it if it does not, and so with all that it started."""
        if self._process:
            self._process.terminate()
            if self.wait(_END_SECONDS) is None:
                self._process.kill()
                self._process.wait()
        self._tree.end()

    def close(self) -> None:
        """`end`, and nothing is started any more."""
        self.end()
        self._tree.close()

    def _popen(self, output: int | None) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # A Ctrl-C at the terminal is for us; we end it in order.
            start_new_session=True,
        )


def supervise(program: Program, listener: Listener, conditions: Conditions | None = None) -> None:
    """Start a program again whenever it ends, until this process is asked to end.

    Args:
        conditions: while they do not hold, it is not started. To end it then is its own affair: only it knows whether
            it is in the middle of something.
    Raises:
        KeyboardInterrupt: on Ctrl-C or SIGTERM, after the program has ended.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    pause = FIRST_PAUSE
    conditions = conditions or Conditions()
    try:
        while True:
            if _rested(conditions, listener):
                pause = FIRST_PAUSE
            listener.starts()
            begin = time.monotonic()
            program.start()
            status = None
            while status is None:
                status = program.wait(POLL_SECONDS)
                for line in program.new_lines():
                    listener.said(line)
                listener.alive(time.monotonic() - begin)
            # What a program that was killed had started.
            program.end()
            if time.monotonic() - begin > STEADY_SECONDS:
                pause = FIRST_PAUSE
            if conditions.against():
                continue
            listener.ended(program.command[0], status, pause)
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
    finally:
        program.close()


def _rested(conditions: Conditions, listener: Listener) -> bool:
    """Wait until all conditions hold; whether there was anything to wait for."""
    pause, rested = FIRST_PAUSE, False
    while reason := conditions.against():
        rested = True
        listener.rests(reason)
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_REST)
    return rested


def run_once(program: Program) -> int:
    """Run a program to its end, and return its status.

    Raises:
        KeyboardInterrupt: on Ctrl-C or SIGTERM, after the program has ended.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        program.start()
        while (status := program.wait(POLL_SECONDS)) is None:
            pass
        return status
    finally:
        program.close()


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    try:
        supervise(Program(sys.argv[1:]), Listener())
    except KeyboardInterrupt:
        sys.exit(130)
