"""Talking to a SuperLink the way an operator does: `flwr` with its JSON answers, in a private Flower home."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tomli_w

from bouquet.config import Scalar
from bouquet.engines.release import quiet_environment
from bouquet.errors import RunFailed

POLL_SECONDS = 0.2
# `flwr ls` starts a Python of its own; the results folder tells sooner, this only catches a ServerApp that vanished.
STATUS_SECONDS = 15.0
END_SECONDS = 120.0
CONNECTION = "bouquet"


class Control:
    """One SuperLink, seen by its operator.

    Args:
        home: a private Flower home; the connection is written there.
        connection: address and certificates, as in Flower's `config.toml`.
        environment: of the programs that are called, beside the quiet one.
    """

    def __init__(
        self, home: Path, connection: Mapping[str, Scalar], environment: Mapping[str, str] | None = None
    ) -> None:
        self.home = home
        home.mkdir(parents=True, exist_ok=True)
        config = {"superlink": {"default": CONNECTION, CONNECTION: dict(connection)}}
        (home / "config.toml").write_text(tomli_w.dumps(config))
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        self.environment = {**quiet_environment(), "FLWR_HOME": str(home), "PATH": path, **(environment or {})}

    def submit(self, app: Path, *options: str) -> str:
        """Start a run of an app folder, and return its id.

        Raises:
            RunFailed: the SuperLink did not take it.
        """
        answer = self.call("run", str(app), CONNECTION, *options, "--format", "json")
        return str(answer["run-id"])

    def status(self, run_id: str) -> str:
        """What the SuperLink says of a run, for example "finished:completed"."""
        answer = self.call("ls", CONNECTION, "--run-id", run_id, "--format", "json")
        runs = answer.get("runs") or [answer]
        return str(runs[0].get("status", "unknown"))

    def stop(self, run_id: str) -> None:
        """End a run."""
        self.call("stop", run_id, CONNECTION, "--format", "json")

    def register(self, public_key: Path) -> str:
        """Let the node with this key in; its id, or "" if it was let in before.

        Raises:
            RunFailed: the SuperLink refused the key.
        """
        try:
            answer = self.call("supernode", "register", str(public_key), CONNECTION, "--format", "json")
        except RunFailed as error:
            if "already" in str(error):
                return ""
            raise
        return str(answer["node-id"])

    def nodes(self) -> list[dict[str, Any]]:
        """Every registered node: `node-id`, `status` (registered, online, offline), `online-elapsed` and more."""
        answer = self.call("supernode", "list", CONNECTION, "--format", "json")
        return list(answer.get("nodes") or [])

    def follow(self, run_id: str, is_finished: Callable[[], bool], is_alive: Callable[[], bool]) -> None:
        """Wait for the end of a run.

        Args:
            is_finished: called often; whether the results folder says that the run is over. It may report progress.
            is_alive: whether the SuperLink still runs; one slow answer should not count against it.
        Raises:
            RunFailed: the SuperLink ended, or says that the run did not complete.
        """
        last_status = time.monotonic()
        while not is_finished():
            if not is_alive():
                raise RunFailed("Flower's SuperLink ended, or does not answer any more.")
            if time.monotonic() - last_status > STATUS_SECONDS:
                if self._status(run_id, is_alive).startswith("finished"):
                    break
                last_status = time.monotonic()
            time.sleep(POLL_SECONDS)
        deadline = time.monotonic() + END_SECONDS
        while not (status := self._status(run_id, is_alive)).startswith("finished") and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        if status != "finished:completed":
            raise RunFailed(f"Flower says that the run ended as '{status}'.")

    def _status(self, run_id: str, is_alive: Callable[[], bool]) -> str:
        """`status`, or "unknown" where the SuperLink is there but too busy to say."""
        try:
            return self.status(run_id)
        except RunFailed:
            if not is_alive():
                raise
            return "unknown"

    def call(self, *arguments: str) -> dict[str, Any]:
        """`flwr …`, and the JSON that it answered.

        Raises:
            RunFailed: it failed; with its reason.
        """
        done = subprocess.run(
            ["flwr", *arguments],
            cwd=self.home,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        words = " ".join(arguments[: 2 if arguments[0] == "supernode" else 1])
        try:
            answer = json.loads(done.stdout[done.stdout.index("{") :])
        except ValueError:
            if done.returncode == 0:
                return {}
            raise RunFailed(f"`flwr {words}` failed: {(done.stderr or done.stdout).strip()}") from None
        if not answer.get("success"):
            raise RunFailed(f"`flwr {words}` failed: {answer.get('error-message') or done.stderr.strip()}")
        return dict(answer)
