"""A SuperNode and what runs its messages, as one program: `python -m client_app.edge.supernode …`.

Flower starts a Python process for every message, which imports everything anew, installs the app that the server has
sent, and runs it. Here a second process is forked off before anything of Flower is imported, the keeper. When there is
a message it forks a third, [the executor](executor.py), which asks the SuperNode for work as Flower's SuperExec does.

Before it takes a message a SuperNode asks the conditions of its owner (`--only-when`). If one says no, it says goodbye
to the SuperLink and ends: nobody waits for what it does not do, and who keeps it running starts it again in time.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import select
import signal
import socket
import sys
import threading
import time
from pathlib import Path

from bouquet.conditions import Conditions
from bouquet.engines.inside import be_supernode
from bouquet.engines.polling import BUSY, REST, Polling
from bouquet.errors import RunFailed
from client_app.edge.asking import (
    keep_little_memory,
    leave_after_a_lost_message,
    leave_unless,
    look_for_messages_often,
    pull_parts_soon,
    wait_for_a_busy_superlink,
)
from client_app.edge.executor import Executor, said_on
from client_app.edge.forks import CHILD_SECONDS, end_with_parent, work_and_end


def main(arguments: list[str]) -> None:
    """Run a SuperNode with its executor; ends as the SuperNode does.

    Args:
        arguments: of `flower-supernode`, and `--accept-apps`, `--only-when`, `--message-seconds`, `--poll-interval` and
            `--rest-poll-interval`.
    """
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    own.add_argument("--accept-apps", action="store_true")
    own.add_argument("--only-when", action="append", default=[])
    own.add_argument("--message-seconds", type=float, default=3600.0)
    own.add_argument(f"--{BUSY}", type=float, default=Polling.busy, dest="busy")
    own.add_argument(f"--{REST}", type=float, default=Polling.rest, dest="rest")
    own.add_argument("--ssl-ca-certfile", default="")
    given, rest = own.parse_known_args(arguments)
    keep_little_memory()
    place = free_place()
    host, port = place.getsockname()
    secret = secrets.token_bytes(32)
    supernode = os.getpid()
    waiting, working = os.pipe()
    for side in (waiting, working):
        os.set_blocking(side, False)
    keeper = os.fork()
    if keeper == 0:
        os.close(working)
        place.close()
        end_with_parent(supernode)
        authority = Path(given.ssl_ca_certfile).read_bytes()
        executor = Executor(f"{host}:{port}", authority, secret, given.accept_apps, given.message_seconds)
        work_and_end(_keep, executor, waiting, supernode)
    os.close(waiting)
    pull_parts_soon()
    threading.Thread(target=_end_with, args=(keeper,), daemon=True).start()
    look_for_messages_often(lambda: _say(working), Polling(given.busy, given.rest))
    leave_after_a_lost_message()
    wait_for_a_busy_superlink()
    if given.only_when:
        leave_unless(Conditions(given.only_when))
    # Through a pipe: a file would be left with the secret in it when this process is killed.
    read, write = os.pipe()
    os.write(write, secret)
    os.close(write)
    words = ["--host", host, "--port", str(port), "--ssl-ca-certfile", given.ssl_ca_certfile]
    words += ["--isolation", "process", "--superexec-auth-secret-file", f"/dev/fd/{read}"]
    work_and_end(_be_supernode, [*rest, *words], place)


def free_place() -> socket.socket:
    """A port of the loopback, held until Flower can listen on it, so that nobody else is given it meanwhile.

    On a busy machine Flower needs a minute to come that far. (Not in `bouquet.engines.ports`, whose imports the keeper
    would have for as long as a device is on.) Should the port be lost even so, the SuperNode ends, and
    who starts it again gets another.
    """
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    return held


def _be_supernode(words: list[str], place: socket.socket) -> None:
    """Be Flower's SuperNode, for as long as it has a connection.

    What Flower does not expect of one, as an error in the SuperLink, ends its loop in silence, and not the thread that
    its executor asks: such a SuperNode would be there for ever, and ask for nothing.

    Args:
        words: of its command line.
        place: holds its port until now.
    Raises:
        RunFailed: it has ended; who keeps it running starts it again.
    """
    place.close()
    be_supernode(words)
    raise RunFailed("The SuperNode has lost its connection.")


def _say(pipe: int) -> None:
    """Tell the keeper that there is work; it has been told if nothing more fits into the pipe."""
    with contextlib.suppress(BlockingIOError, BrokenPipeError):
        os.write(pipe, b"1")


def _keep(executor: Executor, work: int, supernode: int) -> None:
    """Fork an executor when there is work and none is there, as long as the SuperNode lives, whose child this is.

    Raises:
        RunFailed: an executor did not end by itself.
    """
    # Who asks all processes to end asks the SuperNode, which says goodbye first; the others end after it.
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, signal.SIG_IGN)
    keeper = os.getpid()
    while os.getppid() == supernode:
        # The pipe ends with the SuperNode, too.
        if not select.select([work], [], [], CHILD_SECONDS)[0] or os.getppid() != supernode:
            continue
        process = os.fork()
        if process == 0:
            end_with_parent(keeper)
            work_and_end(executor.run, keeper, work)
        while not (ended := os.waitpid(process, os.WNOHANG))[0]:
            if os.getppid() != supernode:
                # It would look in vain for its SuperNode for a while; its child sees that it is gone.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(CHILD_SECONDS)
        # What was said meanwhile is done, or is said again.
        said_on(work)
        if ended[1] and os.getppid() == supernode:
            raise RunFailed(f"The executor ended with status {os.waitstatus_to_exitcode(ended[1])}.")


def _end_with(keeper: int) -> None:
    """A SuperNode without its executor answers nothing: it ends, and is started again by whom keeps it running."""
    os.waitpid(keeper, 0)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main(sys.argv[1:])
