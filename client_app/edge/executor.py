"""What runs the messages of a SuperNode: it asks for work, and forks a child for each message, one at a time.

A child finds imported, compiled and read what the children before it needed. When no message has come for a while the
executor ends: a device at rest is small. A child runs the ClientApp that is installed on this machine, and no code that
came with a run, unless `--accept-apps` was given.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import math
import os
import pickle
import select
import signal
import sys
import time
from typing import Any

from bouquet import __version__
from bouquet.engines.inside import next_task, run_message, runtime_client, vouch
from bouquet.engines.release import FOUND, LOST
from bouquet.errors import ConfigError, RunFailed
from bouquet.own_packages import PACKAGES
from client_app.edge.asking import pull_parts_soon
from client_app.edge.forks import CHILD_SECONDS, end_with_parent, work_and_end

APP = "bouquet/bouquet"
# Between two questions.
ASK_SECONDS = 0.1
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
            said, begin = said_on(work), time.monotonic()
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
            end_with_parent(executor)
            work_and_end(self._answer, token, executor, write)
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


def said_on(pipe: int) -> bool:
    """Whether there was work since this was asked last, or the SuperNode has ended."""
    with contextlib.suppress(BlockingIOError):
        os.read(pipe, 65536)
        return True
    return False
