"""Flower's own simulation, started, followed and ended so that nothing stays behind and a failure is a failure.

`flwr run` alone exits 0 when the run failed, shares a SuperLink with whoever started one before, and leaves it
running. Here every run has a SuperLink of its own: a private folder, a private port, a private environment.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

import tomli_w

from bouquet.config import Scalar
from bouquet.engines.app_folder import write_app_folder
from bouquet.engines.processes import end_all, marked_processes
from bouquet.engines.release import quiet_environment
from bouquet.errors import RunFailed

START_SECONDS = 60.0
POLL_SECONDS = 0.2
# `flwr ls` starts a Python of its own; the results folder tells sooner, this only catches a ServerApp that vanished.
STATUS_SECONDS = 15.0


class FlowerSimulation:
    """A SuperLink in simulation mode that lives for one run.

    Args:
        num_nodes: simulated SuperNodes.
        settings: the whole configuration of the run.
        cpus_per_node: Ray CPUs that one busy node takes.
        gpus_per_node: Ray GPUs that one busy node takes.
    """

    def __init__(
        self, num_nodes: int, settings: Mapping[str, Scalar], cpus_per_node: int = 1, gpus_per_node: float = 0.0
    ) -> None:
        self.num_nodes, self.settings = num_nodes, settings
        self.cpus_per_node, self.gpus_per_node = cpus_per_node, gpus_per_node
        self._folder = tempfile.TemporaryDirectory(prefix="bq-", ignore_cleanup_errors=True)
        self.home = Path(self._folder.name)
        self._superlink: subprocess.Popen[bytes] | None = None
        # Found again in the environment of every process that Flower and Ray start for this run.
        self._environment = quiet_environment() | {
            "FLWR_HOME": str(self.home),
            "RAY_TMPDIR": str(self.home),
            "RAY_DEDUP_LOGS": "0",
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        }

    def __enter__(self) -> FlowerSimulation:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def log(self) -> Path:
        """What the SuperLink and the ServerApp printed."""
        return self.home / "superlink.log"

    def run(self, is_finished: Callable[[], bool]) -> None:
        """Submit the run and wait for its end.

        Args:
            is_finished: called often; whether the results folder says that the run is over. It may also report
                progress.
        Raises:
            RunFailed: Flower could not start the run, or says that it did not complete.
        """
        run_id = self._submit()
        last_status = time.monotonic()
        while not is_finished():
            if self._superlink is None or self._superlink.poll() is not None:
                raise RunFailed(f"Flower's SuperLink ended unexpectedly.{self._last_words()}")
            if time.monotonic() - last_status > STATUS_SECONDS:
                if self._status(run_id).startswith("finished"):
                    break
                last_status = time.monotonic()
            time.sleep(POLL_SECONDS)
        deadline = time.monotonic() + START_SECONDS
        while not (status := self._status(run_id)).startswith("finished"):
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_SECONDS)
        if status != "finished:completed":
            raise RunFailed(f"Flower says that the run ended as '{status}'.{self._last_words()}")

    def close(self) -> None:
        """End the SuperLink and every process that it started, and remove its folder."""
        if self._superlink is not None and self._superlink.poll() is None:
            self._superlink.send_signal(signal.SIGTERM)
            try:
                self._superlink.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._superlink.kill()
        end_all(lambda: marked_processes("FLWR_HOME", str(self.home)))
        self._folder.cleanup()

    def _start(self) -> None:
        port = _free_port()
        write_app_folder(self.home / "app", self.settings)
        connection = {"address": f"127.0.0.1:{port}", "insecure": True}
        config = {"superlink": {"default": "bouquet", "bouquet": connection}}
        (self.home / "config.toml").write_text(tomli_w.dumps(config))
        command = ["flower-superlink", "--insecure", "--simulation", "--isolation", "subprocess"]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        with self.log.open("wb") as log:
            self._superlink = subprocess.Popen(
                command,
                cwd=self.home,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A Ctrl-C at the terminal is for us; we end Flower in order.
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while not _is_healthy(port):
            if self._superlink.poll() is not None or time.monotonic() > deadline:
                raise RunFailed(f"Flower's SuperLink did not start.{self._last_words()}")
            time.sleep(POLL_SECONDS)

    def _submit(self) -> str:
        federation = (
            f"num-supernodes={self.num_nodes} client-resources-num-cpus={self.cpus_per_node} "
            f"client-resources-num-gpus={self.gpus_per_node}"
        )
        answer = self._flwr(
            "run", str(self.home / "app"), "bouquet", "--federation-config", federation, "--format", "json"
        )
        return str(answer["run-id"])

    def _status(self, run_id: str) -> str:
        answer = self._flwr("ls", "bouquet", "--run-id", run_id, "--format", "json")
        runs = answer.get("runs") or [answer]
        return str(runs[0].get("status", "unknown"))

    def _flwr(self, *arguments: str) -> dict:
        done = subprocess.run(
            ["flwr", *arguments],
            cwd=self.home,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        try:
            answer = json.loads(done.stdout[done.stdout.index("{") :])
        except ValueError:
            raise RunFailed(f"`flwr {arguments[0]}` failed: {(done.stderr or done.stdout).strip()}") from None
        if not answer.get("success"):
            raise RunFailed(f"`flwr {arguments[0]}` failed: {answer.get('error-message') or done.stderr.strip()}")
        return answer

    def _last_words(self) -> str:
        if not self.log.exists():
            return ""
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return " Its last words:\n" + "\n".join(lines[-15:]) if lines else ""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
