"""A SuperNode and what runs its messages, as one program: `python -m client_app.edge.supernode …`.

Flower starts a Python process for every message, which imports everything anew, installs the app that the server has
sent, and runs it. Here a second process is forked off before the SuperNode begins, the executor. It asks the SuperNode
for work as Flower's SuperExec does, and forks a child for each message, one at a time, that finds imported and
compiled what the children before it needed. A child runs the ClientApp that is installed on this machine, and no code
that came with a run, unless `--accept-apps` was given.

All of this touches the inside of Flower 1.39; a test says when a release has changed it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import pickle
import secrets
import select
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from bouquet import __version__
from bouquet.engines.app_folder import PACKAGES
from bouquet.errors import ConfigError

APP = "bouquet/bouquet"
# Between two questions of the executor, of one that waits for a child, and of a SuperNode that waits for its reply.
ASK_SECONDS, CHILD_SECONDS, REPLY_SECONDS = 0.1, 0.2, 0.02
# A SuperNode asks the SuperLink so often while messages come, and as Flower does (3 s) a while after the last one.
BUSY_SECONDS, BUSY_FOR = 0.2, 60.0
# A part of a message that is on its way is asked for again after so long, then after twice that, at most the second.
PART_SECONDS, LATE_PART_SECONDS = 0.02, 1.0
# After a failure the executor asks again after a second, and then later and later.
_LONGEST_PAUSE = 30.0


def main(arguments: list[str]) -> None:
    """Run a SuperNode with its executor; ends as the SuperNode does.

    Args:
        arguments: of `flower-supernode`, and `--accept-apps` and `--message-seconds`.
    """
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    own.add_argument("--accept-apps", action="store_true")
    own.add_argument("--message-seconds", type=float, default=3600.0)
    own.add_argument("--host", default="127.0.0.1")
    own.add_argument("--port", default="")
    own.add_argument("--ssl-ca-certfile", default="")
    given, rest = own.parse_known_args(arguments)
    # What both processes need, before they part.
    from flwr.supernode.cli import flower_supernode

    pull_parts_soon()
    secret = secrets.token_bytes(32)
    supernode = os.getpid()
    executor = os.fork()
    if executor == 0:
        authority = Path(given.ssl_ca_certfile).read_bytes()
        address = f"{given.host}:{given.port}"
        _end(Executor(address, authority, secret, given.accept_apps, given.message_seconds).run, supernode)
    threading.Thread(target=_end_with, args=(executor,), daemon=True).start()
    _look_for_messages_often()
    with tempfile.TemporaryDirectory(prefix="bq-") as folder:
        file = Path(folder) / "executor.secret"
        file.touch(mode=0o600)
        file.write_bytes(secret)
        words = ["--host", given.host, "--port", given.port, "--ssl-ca-certfile", given.ssl_ca_certfile]
        words += ["--isolation", "process", "--superexec-auth-secret-file", str(file)]
        sys.argv = ["flower-supernode", *rest, *words]
        flower_supernode()


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

    def run(self, supernode: int) -> None:
        """Ask until the SuperNode, whose child this is, has ended."""
        # Who asks all processes to end asks the SuperNode, which says goodbye first; the executor ends with it.
        for sign in (signal.SIGINT, signal.SIGTERM):
            signal.signal(sign, signal.SIG_IGN)
        client, pause = self._client(), ASK_SECONDS
        while os.getppid() == supernode:
            try:
                token = self._ask(client)
            except Exception as error:  # whatever it is, the SuperNode is asked again
                pause = min(max(2 * pause, 1.0), _LONGEST_PAUSE)
                print(f"The executor cannot ask its SuperNode ({error}); next try in {pause:.0f} s.", file=sys.stderr)
                time.sleep(pause)
                continue
            pause = ASK_SECONDS
            if token:
                self._work(token, supernode)
            else:
                time.sleep(ASK_SECONDS)

    def _client(self) -> Any:
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
        from flwr.supercore.retry import make_simple_http_retry_invoker
        from flwr.supercore.runtime import RuntimeHttpClient

        known = SuperExecAuthHttpInterceptor(
            master_secret=self._secret, protected_methods=frozenset({"/flwr.proto.Runtime/AcquireTask"})
        )
        return RuntimeHttpClient.from_server_address(
            server_address=self._address,
            insecure=False,
            root_certificates=self._authority,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec"), known],
            retry_invoker=make_simple_http_retry_invoker(),
        )

    def _ask(self, client: Any) -> str:
        from flwr.proto.runtime_pb2 import AcquireTaskRequest
        from flwr.supercore.constant import TaskType

        answer = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
        return str(answer.token) if answer.HasField("task") else ""

    def _work(self, token: str, supernode: int) -> None:
        """Fork a child, wait for its end, and load what it has loaded, so that the next one finds it."""
        read, write = os.pipe()
        executor = os.getpid()
        child = os.fork()
        if child == 0:
            os.close(read)
            _end(self._answer, token, executor, write)
        os.close(write)
        said, deadline = b"", time.monotonic() + self._limit
        while True:
            if select.select([read], [], [], CHILD_SECONDS)[0]:
                if not (more := os.read(read, 65536)):
                    break
                said += more
            if time.monotonic() > deadline or os.getppid() != supernode:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
        os.close(read)
        os.waitpid(child, 0)
        # Of use or not: what a child misses it does for itself.
        modules, kernels = pickle.loads(said) if said else ([], [])
        for name in modules:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        if kernels:
            from client_app.training import compiler

            with contextlib.suppress(Exception):
                compiler.load(kernels)

    def _answer(self, token: str, executor: int, write: int) -> None:
        from flwr.supernode.runtime import run_clientapp as flower

        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        before = set(sys.modules)
        if self._accept_apps:
            # What came with the run stands in the place of what is installed.
            for name in before:
                if name.split(".")[0] in PACKAGES:
                    del sys.modules[name]
        else:
            vars(flower)["install_from_fab"] = lambda *_, **__: None
            vars(flower)["get_load_client_app_fn"] = lambda *_, **__: installed_app
        try:
            flower.run_clientapp(
                runtime_api_address=self._address,
                token=token,
                insecure=False,
                certificates=self._authority,
                parent_pid=executor,
                runtime_dependency_install=False,
            )
        finally:
            if not self._accept_apps:
                new = [name for name in tuple(sys.modules) if name not in before]
                compiler = sys.modules.get("client_app.training.compiler")
                os.write(write, pickle.dumps((new, compiler.in_use() if compiler else [])))


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


def pull_parts_soon() -> None:
    """Have this process ask soon again for the parts of a message, which follow it; Flower waits a second or more."""
    from flwr.supercore.inflatable import inflatable_utils

    for pull in (inflatable_utils.pull_objects, inflatable_utils.pull_and_inflate_object_from_tree):
        # As long as before in all, however often it is asked.
        soon = {"initial_backoff": PART_SECONDS, "backoff_cap": LATE_PART_SECONDS, "max_tries_per_object": None}
        assert pull.__kwdefaults__
        assert soon.keys() <= pull.__kwdefaults__.keys()
        pull.__kwdefaults__.update(soon)


def _look_for_messages_often() -> None:
    """Have the SuperNode look for its reply often, and for messages as long as some have come lately."""
    from flwr.supernode import start_client_internal as flower

    last = -BUSY_FOR

    def sleep(seconds: float) -> None:
        nonlocal last
        if seconds < 1:  # for a reply, which is there soon
            last = time.monotonic()
            time.sleep(REPLY_SECONDS)
        else:
            time.sleep(BUSY_SECONDS if time.monotonic() - last < BUSY_FOR else seconds)

    vars(flower)["time"] = SimpleNamespace(sleep=sleep)


def _end_with(executor: int) -> None:
    """A SuperNode without its executor answers nothing: it ends, and is started again by whom keeps it running."""
    os.waitpid(executor, 0)
    os.kill(os.getpid(), signal.SIGTERM)


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
