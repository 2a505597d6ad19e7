"""A SuperNode and what runs its messages, as one program: `python -m client_app.edge.supernode …`.

Flower starts a Python process for every message, which imports everything anew, installs the app that the server has
sent, and runs it. Here a second process is forked off before anything of Flower is imported, the keeper. When there is
a message it forks a third, the executor, which asks the SuperNode for work as Flower's SuperExec does, and forks a
child for each message, one at a time, that finds imported, compiled and read what the children before it needed. When
no message has come for a while the executor ends: a device at rest is small. A child runs the ClientApp that is
installed on this machine, and no code that came with a run, unless `--accept-apps` was given.

Before it takes a message a SuperNode asks the conditions of its owner (`--only-when`). If one says no, it says goodbye
to the SuperLink and ends: nobody waits for what it does not do, and who keeps it running starts it again in time.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import importlib
import logging
import math
import os
import pickle
import secrets
import select
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

from bouquet import __version__
from bouquet.conditions import Conditions
from bouquet.engines.inside import be_supernode, next_task, run_message, runtime_client, vouch
from bouquet.engines.polling import BUSY, REST, Polling
from bouquet.engines.release import FOUND, LOST
from bouquet.errors import ConfigError, RunFailed
from bouquet.own_packages import PACKAGES
from client_app.edge.asking import (
    keep_little_memory,
    leave_after_a_lost_message,
    leave_unless,
    look_for_messages_often,
    pull_parts_soon,
    wait_for_a_busy_superlink,
)

APP = "bouquet/bouquet"
# Between two questions of the executor, and of one that waits for a child.
ASK_SECONDS, CHILD_SECONDS = 0.1, 0.2
# And so many times what the last one took, up to so long: where it takes long the machine is busy, and questions would
# take the processor from what they ask about.
_ASK_SHARE, _LONGEST_ASK = 10.0, 5.0
# A child that has no word of its own for the SuperNode yet, on a busy machine, is vouched for so often.
VOUCH_SECONDS = 10.0
# What a child has left to end by itself when the next message is there.
END_SECONDS = 2.0
# A SuperNode that waits for so long while its executor has nothing to do waits in vain.
LOST_SECONDS = 15.0
# An executor gives back the memory that it has filled after so long without a message.
REST_SECONDS = 60.0
# After a failure the executor asks again after a second, and then later and later.
_LONGEST_PAUSE = 30.0
# PR_SET_PDEATHSIG of <linux/prctl.h>.
_PARENT_DEATH_SIGNAL = 1


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
    for end in (waiting, working):
        os.set_blocking(end, False)
    keeper = os.fork()
    if keeper == 0:
        os.close(working)
        place.close()
        _end_with_parent(supernode)
        authority = Path(given.ssl_ca_certfile).read_bytes()
        executor = Executor(f"{host}:{port}", authority, secret, given.accept_apps, given.message_seconds)
        _end(_keep, executor, waiting, supernode)
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
    _end(_be_supernode, [*rest, *words], place)


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


def _said(pipe: int) -> bool:
    """Whether there was work since this was asked last, or the SuperNode has ended."""
    with contextlib.suppress(BlockingIOError):
        os.read(pipe, 65536)
        return True
    return False


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
            _end_with_parent(keeper)
            _end(executor.run, keeper, work)
        while not (ended := os.waitpid(process, os.WNOHANG))[0]:
            if os.getppid() != supernode:
                # It would look in vain for its SuperNode for a while; its child sees that it is gone.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(CHILD_SECONDS)
        # What was said meanwhile is done, or is said again.
        _said(work)
        if ended[1] and os.getppid() == supernode:
            raise RunFailed(f"The executor ended with status {os.waitstatus_to_exitcode(ended[1])}.")


class Executor:
    """Asks a SuperNode for tasks, and forks a child for each.

    Args:
        address: HOST:PORT of the SuperNode's runtime API.
        authority: the certificate that the SuperNode's is signed with, PEM.
        secret: what the SuperNode knows this executor by.
        accept_apps: run what came with a run, as Flower does.
        limit: seconds that a message may take.
    """

    def __init__(self, address: str, authority: bytes, secret: bytes, accept_apps: bool, limit: float) -> None:
        self._address, self._authority, self._secret = address, authority, secret
        self._accept_apps, self._limit = accept_apps, limit

    def run(self, keeper: int, work: int) -> None:
        """Ask until the keeper, whose child this is, has ended, or until nothing has come for a while.

        Args:
            work: a pipe that the SuperNode writes to as long as it waits for a reply.
        Raises:
            RunFailed: a child ended without its reply, for which the SuperNode would wait for ever, so all have to end.
        """
        pull_parts_soon()
        # Tries to reach the SuperNode, which would read like those that the SuperNode makes to reach the SuperLink.
        logging.getLogger("flwr").addFilter(_is_no_retry)
        client = runtime_client(self._address, self._authority, self._secret)
        pause, last, token, waits = ASK_SECONDS, time.monotonic(), "", math.inf
        while os.getppid() == keeper:
            # Before it asks: of a message that comes in between there is a task when there is a wait.
            said, begin = _said(work), time.monotonic()
            try:
                token = token or next_task(client)
            except Exception as error:  # whatever it is, the SuperNode is asked again
                pause = min(max(2 * pause, 1.0), _LONGEST_PAUSE)
                print(f"The executor cannot ask its SuperNode ({error}); next try in {pause:.0f} s.", file=sys.stderr)
                time.sleep(pause)
                waits = math.inf
                continue
            pause = ASK_SECONDS
            took = time.monotonic() - begin
            if token:
                token = self._work(client, token, keeper)
                last, waits = time.monotonic(), math.inf
            elif time.monotonic() - last > REST_SECONDS:
                return
            else:
                if not said:
                    waits = math.inf
                elif time.monotonic() - (waits := min(waits, time.monotonic())) > LOST_SECONDS:
                    raise RunFailed("The SuperNode waits for a reply, and no process is there that would give it.")
                time.sleep(_paced(ASK_SECONDS, took))

    def _work(self, client: Any, token: str, keeper: int) -> str:
        """Fork a child, wait for its end, and load what it has loaded, so that the next one finds it.

        A SuperNode has one message at a time. When it offers another it has the reply, or has given the message up, as
        when its server died while it sent: some parts never come, and the child would wait for hours. So the child is
        ended.

        Returns:
            what the SuperNode offered meanwhile, or "".
        Raises:
            RunFailed: the child was killed. The SuperNode may wait for its reply for ever, so all have to end.
        """
        read, write = os.pipe()
        executor = os.getpid()
        gc.collect()
        gc.freeze()
        child = os.fork()
        if child == 0:
            os.close(read)
            _end_with_parent(executor)
            _end(self._answer, token, executor, write)
        os.close(write)
        said, deadline, following = b"", time.monotonic() + self._limit, ""
        pause, vouched = CHILD_SECONDS, time.monotonic()
        while True:
            if select.select([read], [], [], pause)[0]:
                if not (more := os.read(read, 65536)):
                    break
                said += more
            elif not following:
                begin = time.monotonic()
                # Whatever it is, the SuperNode is asked and told again.
                with contextlib.suppress(Exception):
                    if begin - vouched > VOUCH_SECONDS:
                        vouched = begin
                        vouch(self._address, self._authority, token)
                    following = next_task(client)
                pause = _paced(CHILD_SECONDS, time.monotonic() - begin)
                if following:
                    deadline = min(deadline, time.monotonic() + END_SECONDS)
            if time.monotonic() > deadline or os.getppid() != keeper:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
        os.close(read)
        status = os.waitpid(child, 0)[1]
        if os.WIFSIGNALED(status):
            if not following:
                raise RunFailed(f"The process of a message was ended by signal {os.WTERMSIG(status)}.")
            return following
        # Of use or not: what a child misses it does for itself.
        modules, kernels, built = pickle.loads(said) if said else ([], [], None)
        for name in modules:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        if kernels:
            from client_app.training import compiler

            with contextlib.suppress(Exception):
                compiler.load(kernels)
        if built:
            from client_app import side

            with contextlib.suppress(Exception):
                side.build(*built)
        return following

    def _answer(self, token: str, executor: int, write: int) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        before = set(sys.modules)
        from bouquet.needs import hold_to_free_memory  # which the keeper does without

        hold_to_free_memory()
        if self._accept_apps:
            # What came with the run stands in the place of what is installed.
            for name in tuple(sys.modules):
                if name.split(".")[0] in PACKAGES:
                    del sys.modules[name]
        try:
            run_message(self._address, token, self._authority, executor, None if self._accept_apps else installed_app)
        finally:
            if not self._accept_apps:
                new = [name for name in tuple(sys.modules) if name not in before]
                compiler = sys.modules.get("client_app.training.compiler")
                side = sys.modules.get("client_app.side")
                built = side.last_built() if side else None
                os.write(write, pickle.dumps((new, compiler.in_use() if compiler else [], built)))


def installed_app(app: str, version: str, _: str) -> Any:
    """The ClientApp of this machine, for a run of the same release.

    Raises:
        ConfigError: the run is of another app, or another release.
    """
    if (app, version) != (APP, __version__):
        raise ConfigError(
            f"The run is of the app {app} {version}, and this node runs what is installed on it, {APP} {__version__}: "
            "install the same release on both sides."
        )
    from client_app.app import app as found

    return found


def _paced(least: float, took: float) -> float:
    """Seconds until the next question, where the last one took so long."""
    return max(least, min(_ASK_SHARE * took, _LONGEST_ASK))


def _is_no_retry(record: logging.LogRecord) -> bool:
    """Whether a line of Flower's log is about something else than another try to reach a server."""
    return not str(record.msg).startswith((LOST, FOUND))


def _end_with(keeper: int) -> None:
    """A SuperNode without its executor answers nothing: it ends, and is started again by whom keeps it running."""
    os.waitpid(keeper, 0)
    os.kill(os.getpid(), signal.SIGTERM)


def _end_with_parent(parent: int) -> None:
    """Have the kernel kill this forked process when its parent has ended, in whatever it is just then.

    Linux alone has that. Elsewhere each looks again and again who its parent is, which it cannot while it waits for a
    server that is gone.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before that was said
        os._exit(1)


def _end(work: Any, *arguments: Any) -> NoReturn:
    """Work in a forked process, and end it without what its origin would do at its own end."""
    status = 1
    try:
        work(*arguments)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main(sys.argv[1:])
