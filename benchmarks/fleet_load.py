"""How many nodes a SuperLink carries: light nodes, which are Flower's own connections in threads of one process.

A light node does on the wire what a SuperNode does (look for work every 3 s, pull every object of a message, confirm,
push every object of the reply) and runs the ClientApp in this process, so what is measured is the SuperLink and the
ServerApp and not the start of processes. One user per node, made data, TLS as in a deployment.

    python -m benchmarks.fleet_load --nodes 20 50 --rounds 3
    python -m benchmarks.fleet_load --nodes 50 --database memory      without a file
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

from flwr.app import Context, Message, RecordDict
from flwr.client.grpc_rere_client.connection import grpc_request_response
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import (
    inflate_object_from_contents,
    pull_objects,
    push_object_contents_from_iterable,
)
from flwr.supercore.retry import make_simple_grpc_retry_invoker

from bouquet.config import Scalar, defaults
from bouquet.deployment.keys import make_keys
from bouquet.engines.app_folder import write_app_folder
from bouquet.engines.control import Control
from bouquet.engines.inside import use_task_identity
from bouquet.engines.ports import free_port, is_healthy
from bouquet.engines.processes import Tree
from bouquet.engines.release import secure_connection, superlink_command
from bouquet.errors import RunFailed
from bouquet.experiments.settings import option_classes
from bouquet.reporting.run_directory import RunDirectory
from client_app.app import app as client_app
from data_partition import synthetic

# As often as a SuperNode looks for work.
POLL_SECONDS = 3.0


class LightNode(threading.Thread):
    """One node: a connection of Flower's and the ClientApp."""

    _working = threading.Lock()
    calls: ClassVar[Counter[str]] = Counter()

    def __init__(self, address: str, authority: Path, run_config: dict[str, Scalar], place: dict[str, Scalar]) -> None:
        super().__init__(daemon=True)
        self._address, self._authority = address, str(authority)
        self._run_config, self._place = run_config, place
        self.online = threading.Event()
        self.ending = threading.Event()

    def run(self) -> None:
        retry = make_simple_grpc_retry_invoker()
        with grpc_request_response(self._address, False, retry, root_certificates=self._authority) as connection:
            node, receive, send, _, _, pull, push, confirm = connection
            self.online.set()
            while not self.ending.is_set():
                self.calls["pull messages"] += 1
                if (received := receive()) is None:
                    self.ending.wait(POLL_SECONDS)
                    continue
                self._answer(node, *received, send, pull, push, confirm)

    def _answer(self, node: int, message: Message, tree: Any, send: Any, pull: Any, push: Any, confirm: Any) -> None:
        run = message.metadata.run_id
        wanted = [item.object_id for item in iterate_object_tree(tree)]
        contents = pull_objects(wanted, pull_object_fn=lambda name: pull(run, name))
        confirm(run, message.metadata.message_id)
        message.content = inflate_object_from_contents(message.metadata.message_id, contents).content
        context = Context(run, node, self._place, RecordDict(), dict(self._run_config))
        # One after another: they share two cores, and it is not training that is measured.
        with self._working:
            reply = client_app(message, context)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        objects = get_all_nested_objects(reply)
        missing, session = send(reply, get_object_tree(reply), 0.0)
        self.calls["objects down"] += len(wanted)
        self.calls["objects up"] += len(missing)
        parts = ((name, objects[name].deflate()) for name in missing)
        push_object_contents_from_iterable(parts, push_object_fn=lambda name, part: push(run, session, name, part))


def measure(nodes: int, rounds: int, database: str, folder: Path) -> None:
    """Start a SuperLink, let `nodes` light nodes do `rounds` rounds, and print what that took."""
    make_keys(folder / "keys", [], [])
    authority, tree = folder / "keys/operator/ca.crt", Tree()
    data = folder / "data.csv"
    made = synthetic(nodes, 60, mean_length=15.0).histories
    lines = (f"{user},{item},{time_}" for user in range(nodes) for time_, item in enumerate(made.row(user).tolist()))
    data.write_text("user,item,time\n" + "\n".join(lines) + "\n")
    out = RunDirectory(folder / "run")
    settings: dict[str, Scalar] = defaults(option_classes()) | {
        "dataset": "file", "data-file": str(data), "time-column": "time", "min-nodes": nodes, "node-timeout": 300.0,
        "num-server-rounds": rounds, "evaluate-every": rounds, "round-timeout": 300.0, "embedding-size": 16,
        "out": str(out.path),
    }  # fmt: skip
    out.create(settings, {"engine": "deployment", "nodes": nodes})
    port, fleet = free_port(), f"127.0.0.1:{free_port()}"
    where = folder / "superlink.db" if database == "file" else Path(":flwr-in-memory:")
    command = superlink_command("127.0.0.1", port, fleet, where, folder / "keys/server")
    # Light nodes register themselves, so that nobody starts `flwr` once for each.
    command.remove("--enable-supernode-auth")
    control = Control(folder / "operator", secure_connection(f"127.0.0.1:{port}", authority), tree.environment)
    log = folder / "superlink.log"
    with log.open("wb") as file:
        superlink = subprocess.Popen(command, env=control.environment, stdout=file, stderr=file)
    try:
        while not is_healthy(f"127.0.0.1:{port}", authority):
            time.sleep(0.2)
        begin = time.monotonic()
        fleet_ = [
            LightNode(fleet, authority, settings, {
                "partition-id": number, "num-partitions": nodes, "state-dir": str(folder / f"state-{number}")
            })
            for number in range(nodes)
        ]  # fmt: skip
        for node in fleet_:
            node.start()
        for node in fleet_:
            node.online.wait(300)
        online, before = time.monotonic() - begin, _processor_seconds(superlink.pid)
        LightNode.calls.clear()
        write_app_folder(folder / "app", settings)
        run = control.submit(folder / "app")
        try:
            control.follow(run, lambda: out.read_summary()["status"] != "running", lambda: superlink.poll() is None)
        except RunFailed as error:
            print(f"{nodes} nodes: {error}")
        for node in fleet_:
            node.ending.set()
        used = _processor_seconds(superlink.pid) - before
        _print(nodes, database, online, used, out.rounds(), log.read_text(errors="replace").count("database is locked"))
    finally:
        superlink.terminate()
        superlink.wait(20)
        tree.close()


def _print(nodes: int, database: str, online: float, used: float, lines: list[dict[str, Any]], locked: int) -> None:
    calls = LightNode.calls
    seconds = " ".join(f"{line['seconds']['train']:.1f}" for line in lines)
    answered = " ".join(str(line["users"]) for line in lines)
    print(
        f"{nodes} nodes, database {database}: all online after {online:.1f} s; seconds of training by round: {seconds}"
    )
    print(f"  users that answered: {answered}; 'database is locked' {locked} times in the SuperLink's log")
    messages = len(lines) + 2  # one per round, the roster, one evaluation
    print(
        f"  per node and message: {calls['objects down'] / nodes / messages:.0f} objects down, "
        f"{calls['objects up'] / nodes / messages:.0f} up; SuperLink {used / nodes / messages:.2f} processor seconds",
        flush=True,
    )


def _processor_seconds(process: int) -> float:
    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[20])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--database", choices=("file", "memory"), default="file")
    chosen = parser.parse_args()
    use_task_identity()
    for count in chosen.nodes:
        with tempfile.TemporaryDirectory(prefix="bouquet-load-") as temporary:
            measure(count, chosen.rounds, chosen.database, Path(temporary))
