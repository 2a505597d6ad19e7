"""A process that says where it is: when did it say so, and how much processor time had it used?"""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LAST_LINES = 15
LOOK_SECONDS = 0.01


class FollowError(Exception):
    """The process ended or was ended before it had said enough; the message has its last lines."""


@dataclass(frozen=True)
class Mark:
    """The first time that a number was said.

    Attributes:
        number: what was said.
        seconds: when, by a clock that only goes forward.
        cpu_seconds: processor time of the process until then, 0 where the system does not tell.
    """

    number: int
    seconds: float
    cpu_seconds: float


def follow(
    command: Sequence[str], folder: Path, marker: str, count: int, *, log: str = "", timeout: float = 3600.0
) -> list[Mark]:
    """Run a command until it has said `count` different numbers, then end it.

    Args:
        folder: where it runs.
        marker: regular expression; its first group is the number.
        log: pattern, relative to the folder, of files that are read beside the command's output.
        timeout: seconds after which the process is ended.
    Raises:
        FollowError: it could not be started, or ended before.
    """
    try:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise FollowError(f"{command[0]} cannot be started ({error.strerror}).") from None
    said: queue.Queue[tuple[float, float, str]] = queue.Queue()

    def hear(line: str) -> None:
        said.put((time.perf_counter(), _cpu_seconds(process.pid), line))

    def hear_all() -> None:
        for line in process.stdout or ():
            hear(line)

    output = threading.Thread(target=hear_all, daemon=True)
    output.start()
    files = _Files(folder, log)
    pattern, marks, last = re.compile(marker), dict[int, Mark](), deque[str](maxlen=LAST_LINES)
    deadline = time.monotonic() + timeout
    try:
        while len(marks) < count:
            # Asked before looking, so that what a process says last is still read.
            ended = process.poll() is not None and not output.is_alive()
            for line in files.new_lines():
                hear(line)
            try:
                seconds, cpu_seconds, line = said.get(timeout=0 if ended else LOOK_SECONDS)
            except queue.Empty:
                if ended:
                    status = f"it ended with status {process.returncode}"
                    raise FollowError(_why(status, marks, marker, last)) from None
                line = ""
            if time.monotonic() > deadline:
                raise FollowError(_why(f"it ran longer than {timeout:g} s", marks, marker, last))
            if line.strip():
                last.append(line.rstrip())
            if found := pattern.search(line):
                number = int(found[1])
                marks.setdefault(number, Mark(number, seconds, cpu_seconds))
    finally:
        _end(process)
        output.join()
    return list(marks.values())


class _Files:
    """The lines that files grow by."""

    def __init__(self, folder: Path, pattern: str) -> None:
        self._folder, self._pattern = folder, pattern
        self._read: dict[Path, int] = {path: path.stat().st_size for path in self._paths()}

    def new_lines(self) -> list[str]:
        lines: list[str] = []
        for path in self._paths():
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                content = file.read()
            whole = content[: content.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            lines += whole.decode(errors="replace").splitlines()
        return lines

    def _paths(self) -> list[Path]:
        return sorted(path for path in self._folder.glob(self._pattern) if path.is_file()) if self._pattern else []


def _why(what: str, marks: dict[int, Mark], marker: str, last: Sequence[str]) -> str:
    if len(marks) == 0:
        what += f" and no line of it matched the marker {marker!r}; give the right one with --marker"
    words = "\n".join(last)
    return f"{what}." + (f" Its last lines:\n{words}" if words else " It printed nothing.")


def _cpu_seconds(pid: int) -> float:
    """User and system time of a process and of its ended children."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _end(process: subprocess.Popen[str]) -> None:
    """End the process and all of its session."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, how)
        except ProcessLookupError:
            break
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            continue
    process.wait()
