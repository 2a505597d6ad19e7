"""Finding and ending the processes that a run has started, their children's children too, whatever ends the run.

Flower and Ray put some processes into sessions of their own, so a process group does not catch them all; but all of
them inherit the environment, and a value in it that only this run has finds them. A process that gives itself a new
name, as Ray's agents do, may write it over its environment: it is found as a child of one that has the value, or in
its session.

A process that is killed with SIGKILL cannot end what it has started. So a `Tree` has a watcher: a small process, in a
session of its own, that waits for the end of a pipe whose other end only the owner of the tree holds.

Processes are looked at with psutil, which is imported when there is something to look for: a watcher that waits does
without.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path

from bouquet.own_packages import command as own_program

GRACE_SECONDS = 10.0
WATCH_SECONDS = 1.0
LOOK_SECONDS = 0.02
# A process that is becoming another program has no environment for an instant, and so one look does not see it.
EMPTY_LOOKS = 8
TREE_MARK = "BOUQUET_TREE"
_NOWHERE = subprocess.DEVNULL


class Tree:
    """The processes that this one starts with `environment`, and all that they start: they end when this one does.

    Args:
        folder: removed with them; None: nothing is.
        grace: seconds that they have to end in order once this process is dead; 0: they are killed at once.
        become: this process goes on as another program that holds the tree instead of it.
    """

    def __init__(self, folder: Path | None = None, *, grace: float = 0.0, become: bool = False) -> None:
        mark = uuid.uuid4().hex
        self.environment = {TREE_MARK: mark}
        self._folder = folder
        self._leaders: list[int] = []
        outside = os.getsid(0)
        self._members = Members(mark, outside)
        command = [
            *own_program("bouquet.engines.processes"),
            str(os.getpid()),
            mark,
            str(outside),
            str(grace),
            str(folder or ""),
        ]
        self._watcher = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=_NOWHERE, stderr=_NOWHERE, start_new_session=True
        )
        assert self._watcher.stdin
        self._pipe = self._watcher.stdin
        if become:
            os.set_inheritable(self._pipe.fileno(), True)

    def lead(self, process: int) -> None:
        """Name a process of the tree that leads a session: all in it are the tree's, whatever they have of the mark."""
        self._leaders.append(process)
        self._tell(process)

    def end(self, grace: float = GRACE_SECONDS) -> None:
        """End all processes of the tree; others can be started in it."""
        _end_tree(self._members, self._leaders, grace)
        self._leaders.clear()
        self._tell(0)

    def close(self) -> None:
        """End all processes of the tree, remove its folder, and let the watcher go."""
        self.end()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        with contextlib.suppress(BrokenPipeError):
            self._pipe.close()
        self._watcher.wait()

    def _tell(self, leader: int) -> None:
        # Without its watcher a tree is ended by its owner alone.
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._pipe.write(b"%d\n" % leader)
            self._pipe.flush()


def marked_processes(name: str, value: str) -> list[int]:
    """Ids of the processes whose environment has `name=value`, as far as this user may look at them."""
    import psutil

    found = []
    for number in psutil.pids():
        with contextlib.suppress(psutil.Error, OSError):
            if psutil.Process(number).environ().get(name) == value and number != os.getpid() and _origin(number):
                found.append(number)
    return found


def end_all(find: Callable[[], list[int]], grace: float = GRACE_SECONDS) -> None:
    """Ask the processes to end, wait, then kill those that are left.

    Args:
        grace: seconds to wait; 0: they are not asked.
    """
    if grace:
        for process in find():
            _send(process, signal.SIGTERM)
        _until_none(find, grace, looks=1)
    # Again and again: one that is being killed may have started another.
    _until_none(lambda: _killed(find()), GRACE_SECONDS)


def _until_none(find: Callable[[], list[int]], seconds: float, looks: int = EMPTY_LOOKS) -> None:
    """Look until nothing was found `looks` times in a row, or until the time is over."""
    deadline = time.monotonic() + seconds
    empty = 0
    while empty < looks and time.monotonic() < deadline:
        empty = 0 if find() else empty + 1
        time.sleep(LOOK_SECONDS)


def _killed(processes: list[int]) -> list[int]:
    for process in processes:
        _send(process, signal.SIGKILL)
    return processes


def watch(owner: int, mark: str, outside: int, grace: float, folder: Path | None) -> None:
    """Wait for the end of standard input, or of the owner, whose child this is, then end a tree.

    What comes on standard input are leaders of groups, one a line; 0 says that those so far are gone.

    Args:
        owner: the process that holds the tree.
        mark: what its processes have in their environment.
        outside: the session of the owner.
        grace: seconds that they have to end in order.
        folder: removed with them.
    """
    # Who asks all processes to end, the owner among them, shall not end the one first that sees to the rest.
    for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(sign, signal.SIG_IGN)
    said = b""
    # The parent's death is asked for beside the pipe: a program that the owner has become may have let its own children
    # inherit the other end.
    while os.getppid() == owner:
        if select.select([sys.stdin], [], [], WATCH_SECONDS)[0]:
            if not (more := os.read(sys.stdin.fileno(), 4096)):
                break
            said += more
    leaders: list[int] = []
    for line in said.splitlines():
        leaders = [*leaders, int(line)] if int(line) else []
    _end_tree(Members(mark, outside), leaders, grace)
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


class Members:
    """The processes of a tree: those with its mark, their children, and all in the sessions that these have made.

    Args:
        mark: the value of `TREE_MARK` in their environment.
        outside: the session of the tree's owner, where other processes may be too. Every other session in which one
            with the mark is was made by a process of the tree, and so holds nothing else.
    """

    def __init__(self, mark: str, outside: int) -> None:
        self._mark, self._outside = mark, outside
        # Kept from look to look: the one with the mark may be gone before the others of its session.
        self._sessions: set[int] = set()

    def find(self, leaders: Iterable[int]) -> list[int]:
        """Their ids.

        Args:
            leaders: processes that lead a session of the tree, or did.
        """
        self._sessions |= set(leaders)
        import psutil

        origins = {number: origin for number in psutil.pids() if (origin := _origin(number))}
        found = set(marked_processes(TREE_MARK, self._mark)) & origins.keys()
        while True:
            self._sessions |= {origins[number][1] for number in found} - {self._outside}
            more = {
                number
                for number, (parent, session) in origins.items()
                if (parent in found or session in self._sessions) and number != os.getpid()
            }
            if more <= found:
                return sorted(found)
            found |= more


def _end_tree(members: Members, leaders: Iterable[int], grace: float) -> None:
    end_all(lambda: members.find(leaders), grace)


def _origin(number: int) -> tuple[int, int] | None:
    """Parent and session of a process; None: it is dead."""
    import psutil

    try:
        process = psutil.Process(number)
        with process.oneshot():
            dead = process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
            return None if dead else (process.ppid(), os.getsid(number))
    except (psutil.Error, OSError):
        return None


def _send(process: int, sign: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(process, sign)


if __name__ == "__main__":
    _owner, _mark, _outside, _grace, _folder = sys.argv[1:]
    watch(int(_owner), _mark, int(_outside), float(_grace), Path(_folder) if _folder else None)
