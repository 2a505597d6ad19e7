"""Keeps a SuperNode running: `python -m bouquet.deployment.supervise flower-supernode …`.

A SuperNode ends when the SuperLink refuses it: because its key is not registered yet, or because it was killed and the
SuperLink believes for up to a minute that the killed one is still there. It is then started again, ever more rarely.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

FIRST_PAUSE, LONGEST_PAUSE = 2.0, 60.0
# One that lived this long was let in.
STEADY_SECONDS = 30.0
_END_SECONDS = 10.0


def supervise(command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    """Start a program again whenever it ends, until this process is asked to end.

    Raises:
        KeyboardInterrupt: on Ctrl-C or SIGTERM, after the program has ended.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    pause = FIRST_PAUSE
    while True:
        begin = time.monotonic()
        process = start(command, environment)
        try:
            status = process.wait()
        except BaseException:
            end(process)
            raise
        if time.monotonic() - begin > STEADY_SECONDS:
            pause = FIRST_PAUSE
        print(f"{command[0]} ended with status {status}; started again in {pause:.0f} s.", file=sys.stderr, flush=True)
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def start(command: Sequence[str], environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a program that reads nothing."""
    return subprocess.Popen(list(command), env=environment, stdin=subprocess.DEVNULL)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask a program to end, and kill it if it does not."""
    process.terminate()
    try:
        process.wait(timeout=_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    try:
        supervise(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
