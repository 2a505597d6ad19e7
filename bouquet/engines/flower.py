"""Flower's own simulation, started, followed and ended so that nothing stays behind and a failure is a failure.

`flwr run` alone exits 0 when the run failed, shares a SuperLink with whoever started one before, and leaves it
running. Here every run has a SuperLink of its own: a private folder, a private port, a private environment; and all of
it ends with the process that started it, even if that is killed.
"""

from __future__ import annotations

import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from bouquet.config import Scalar
from bouquet.engines.app_folder import write_app_folder
from bouquet.engines.control import POLL_SECONDS, Control
from bouquet.engines.ports import free_port, is_healthy
from bouquet.engines.processes import Tree
from bouquet.errors import RunFailed

START_SECONDS = 60.0


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
        self.home = Path(tempfile.mkdtemp(prefix="bq-"))
        # Killed at once when this process was: a run that is resumed meanwhile must not share its folder with this one.
        self._tree = Tree(self.home, grace=0)
        self._superlink: subprocess.Popen[bytes] | None = None

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
        federation = (
            f"num-supernodes={self.num_nodes} client-resources-num-cpus={self.cpus_per_node} "
            f"client-resources-num-gpus={self.gpus_per_node}"
        )
        run_id = self._control.submit(self.home / "app", "--federation-config", federation)
        try:
            self._control.follow(run_id, is_finished, self._is_running)
        except RunFailed as error:
            raise RunFailed(f"{error}{self._last_words()}") from None

    def close(self) -> None:
        """End the SuperLink and every process that it started, and remove its folder."""
        if self._superlink is not None and self._superlink.poll() is None:
            self._superlink.send_signal(signal.SIGTERM)
            try:
                self._superlink.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._superlink.kill()
        self._tree.close()

    def _is_running(self) -> bool:
        return self._superlink is not None and self._superlink.poll() is None

    def _start(self) -> None:
        port = free_port()
        write_app_folder(self.home / "app", self.settings)
        address = f"127.0.0.1:{port}"
        extra = {"RAY_TMPDIR": str(self.home), "RAY_DEDUP_LOGS": "0", **self._tree.environment}
        self._control = Control(self.home, {"address": address, "insecure": True}, extra)
        command = ["flower-superlink", "--insecure", "--simulation", "--isolation", "subprocess"]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        with self.log.open("wb") as log:
            self._superlink = subprocess.Popen(
                command,
                cwd=self.home,
                env=self._control.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A Ctrl-C at the terminal is for us; we end Flower in order.
                start_new_session=True,
            )
        self._tree.lead(self._superlink.pid)
        deadline = time.monotonic() + START_SECONDS
        while not is_healthy(address):
            if not self._is_running() or time.monotonic() > deadline:
                raise RunFailed(f"Flower's SuperLink did not start.{self._last_words()}")
            time.sleep(POLL_SECONDS)

    def _last_words(self) -> str:
        return last_words(self.log)


def last_words(log: Path) -> str:
    """The end of a log, for an error's sentence."""
    if not log.exists():
        return ""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " Its last words:\n" + "\n".join(lines[-15:]) if lines else ""
