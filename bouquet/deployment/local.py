"""A federation of processes on this machine: a SuperLink and its SuperNodes, with TLS and registered keys.

Everything of it lies in one folder, and every process that belongs to it carries the folder in its environment,
so that the next command finds it again and `down` leaves nothing behind.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bouquet.config import Scalar
from bouquet.deployment.keys import HOSTS, make_keys
from bouquet.engines.control import POLL_SECONDS, Control
from bouquet.engines.flower import last_words
from bouquet.engines.polling import Polling
from bouquet.engines.ports import free_port, is_healthy
from bouquet.engines.processes import end_all, marked_processes
from bouquet.engines.release import (
    executor_environment,
    has_fleet_port,
    secure_connection,
    superlink_command,
    supernode_command,
)
from bouquet.errors import ConfigError, RunFailed, StateError
from bouquet.files import write_atomically
from bouquet.own_packages import command as own_program

START_SECONDS = 90.0
MARK, PROCESS_MARK = "BOUQUET_DEPLOYMENT", "BOUQUET_PROCESS"
SUPERLINK = "superlink"


@dataclass
class Node:
    """One SuperNode of the deployment, and what its ClientApp is told."""

    config: dict[str, Scalar] = field(default_factory=dict)
    node_id: str = ""


@dataclass
class Plan:
    """What `deployment.json` holds: enough to start every process again as it was.

    Attributes:
        control, fleet: addresses of the SuperLink for operators and for nodes.
        settings: of the data, for every run.
        nodes: by name.
        polling: how often nodes ask for messages, as settings of `bouquet.engines.polling`.
    """

    control: str
    fleet: str
    settings: dict[str, Scalar] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    polling: dict[str, str] = field(default_factory=dict)


class LocalDeployment:
    """The processes of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.expanduser().absolute()
        self.keys = self.folder / "keys"
        self._file = self.folder / "deployment.json"

    def exists(self) -> bool:
        """Whether something was started here before."""
        return self._file.exists()

    @property
    def plan(self) -> Plan:
        """What was started.

        Raises:
            ConfigError: nothing was.
            StateError: the file is damaged.
        """
        if not self.exists():
            raise ConfigError(f"There is no deployment in {self.folder}. Start one with: bouquet deploy up --nodes 3")
        try:
            document = json.loads(self._file.read_text())
            nodes = {name: Node(node["config"], node["node_id"]) for name, node in document.pop("nodes").items()}
            return Plan(**document, nodes=nodes)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StateError(f"{self._file} is damaged ({error}).") from None

    def save(self, plan: Plan) -> None:
        """Remember what is started."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self._file, json.dumps(asdict(plan), indent=2) + "\n")

    @property
    def control(self) -> Control:
        """The SuperLink as its operator sees it."""
        return Control(self.folder / "operator", secure_connection(self.plan.control, self.keys / "operator/ca.crt"))

    def up(
        self,
        configs: Mapping[str, Mapping[str, Scalar]],
        settings: Mapping[str, Scalar],
        polling: Mapping[str, str] | None = None,
    ) -> None:
        """Start what is not running, and wait until every node is online.

        Args:
            configs: by name of the node, what its ClientApp is told; `state-dir` is added.
            settings: of the data, remembered for runs.
            polling: how often nodes ask for messages, and the SuperLink's executor for a run; remembered.
        Raises:
            RunFailed: a process did not start, or a node did not come.
        """
        if self.exists():
            plan = self.plan
        else:
            self.down()  # what a folder that was removed has left running would be taken for this one's
            plan = _new_plan()
        plan.settings = dict(settings)
        plan.polling |= polling or {}
        for name, config in configs.items():
            node = plan.nodes.setdefault(name, Node())
            node.config = {**config, "state-dir": str(self.folder / "nodes" / name / "state")}
        make_keys(self.keys, HOSTS, list(plan.nodes))
        self.save(plan)
        self.start_superlink()
        for name, node in plan.nodes.items():
            node.node_id = self.control.register(self.keys / "operator" / f"{name}.pub") or node.node_id
        self.save(plan)
        for name in plan.nodes:
            self.start_node(name)
        self.await_online(list(plan.nodes))

    def start_superlink(self) -> None:
        """Start the SuperLink if it is not running, and wait until it answers.

        Raises:
            RunFailed: it did not start.
        """
        plan, home = self.plan, self.folder / SUPERLINK
        host, port = plan.control.rsplit(":", 1)
        home.mkdir(parents=True, exist_ok=True)
        command = superlink_command(host, int(port), plan.fleet, home / "superlink.db", self.keys / "server")
        self._start(SUPERLINK, home, command)
        deadline = time.monotonic() + START_SECONDS
        while not is_healthy(plan.control, self.keys / "operator" / "ca.crt"):
            if not self.processes(SUPERLINK) or time.monotonic() > deadline:
                raise RunFailed(f"Flower's SuperLink did not start.{last_words(self.log(SUPERLINK))}")
            time.sleep(POLL_SECONDS)

    def start_node(self, name: str) -> None:
        """Start a SuperNode if it is not running."""
        plan, home = self.plan, self.folder / "nodes" / name
        node = plan.nodes[name]
        home.mkdir(parents=True, exist_ok=True)
        config = {**node.config, "state-key": str(self.keys / "nodes" / name / "state.key")}
        command = supernode_command(plan.fleet, self.keys / "nodes" / name, config, polling=Polling.of(plan.polling))
        self._start(name, home, [*own_program("bouquet.deployment.supervise"), *command])

    def await_online(self, names: Sequence[str]) -> None:
        """Wait until the SuperLink sees all of these nodes.

        Raises:
            RunFailed: a SuperNode ended, or did not come in time.
        """
        deadline = time.monotonic() + START_SECONDS
        nodes, missing = self.plan.nodes, list(names)
        while True:
            online = {str(node["node-id"]) for node in self.control.nodes() if node["status"] == "online"}
            before, missing = missing, [name for name in missing if nodes[name].node_id not in online]
            if not missing:
                return
            if len(missing) < len(before):  # many nodes on few cores come one after another
                deadline = time.monotonic() + START_SECONDS
            for name in missing:
                if not self.processes(name):
                    raise RunFailed(f"The SuperNode {name} ended.{last_words(self.log(name))}")
            if time.monotonic() > deadline:
                raise RunFailed(f"{', '.join(missing)} did not reach the SuperLink.{last_words(self.log(missing[0]))}")
            time.sleep(POLL_SECONDS)

    def down(self) -> int:
        """End every process of the deployment, and return how many there were."""
        found = marked_processes(MARK, str(self.folder))
        end_all(lambda: marked_processes(MARK, str(self.folder)))
        return len(found)

    def end(self, name: str) -> None:
        """End one node, or the SuperLink, with everything that it started."""
        end_all(lambda: self.processes(name))

    def processes(self, name: str) -> list[int]:
        """Ids of the processes of one node or of the SuperLink."""
        return marked_processes(PROCESS_MARK, f"{self.folder}#{name}")

    def log(self, name: str) -> Path:
        """What a process printed."""
        return (self.folder if name == SUPERLINK else self.folder / "nodes") / name / "log.txt"

    def _start(self, name: str, home: Path, command: Sequence[str]) -> None:
        if self.processes(name):
            return
        environment: dict[str, Any] = {**self.control.environment, "FLWR_HOME": str(home / "flower")}
        environment |= executor_environment(Polling.of(self.plan.polling))
        environment |= {MARK: str(self.folder), PROCESS_MARK: f"{self.folder}#{name}", "BOUQUET_LOG": "json"}
        with self.log(name).open("ab") as log:
            subprocess.Popen(
                command,
                cwd=home,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # They live on when the command that started them has ended.
                start_new_session=True,
            )


def _new_plan() -> Plan:
    control = f"127.0.0.1:{free_port()}"
    return Plan(control, f"127.0.0.1:{free_port()}" if has_fleet_port() else control)
