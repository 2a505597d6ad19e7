"""How much one person's devices take: `bouquet node` as on a device, many of them beside one SuperLink.

Each has keys, a history and a folder of state of its own, and all the processes that a device has: what keeps the node
running, its SuperNode, and an executor with its children while messages come. Memory is the share that a process has of
its pages (PSS), the sum over all processes of all devices. Devices have a lower priority than the SuperLink and the
ServerApp, which in a deployment do not share their processors with a hundred others.

    python -m benchmarks.devices --devices 100
    python -m benchmarks.devices --devices 10 --strategies sequential-rules fedavg --rounds 3
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bouquet.config import Scalar, defaults
from bouquet.deployment.keys import make_keys
from bouquet.engines.app_folder import write_app_folder
from bouquet.engines.control import Control
from bouquet.engines.ports import free_port, is_healthy
from bouquet.engines.processes import Tree, marked_processes
from bouquet.engines.release import secure_connection, superlink_command
from bouquet.errors import RunFailed
from bouquet.experiments.settings import option_classes
from bouquet.reporting.run_directory import RunDirectory
from data_partition import synthetic

ITEMS, MEAN_LENGTH = 300, 15.0
LOOK_SECONDS = 5.0
NICENESS = 19
# A device holds its processes in a tree of its own, so the mark of the tree that it is in does not find them.
MARK = "BOUQUET_BENCHMARK"
MIB = 1024


class Watch(threading.Thread):
    """Looks at all processes of the devices again and again.

    Attributes:
        highest: KiB, the most that all of them had together at one look.
        processes: the most processes at one look.
    """

    def __init__(self, mark: str) -> None:
        super().__init__(daemon=True)
        self._mark = mark
        self.highest = self.processes = 0
        self.ending = threading.Event()

    def look(self) -> tuple[int, int]:
        """KiB and processes, now."""
        found = [_share(number) for number in marked_processes(MARK, self._mark)]
        return sum(found), len(found)

    def run(self) -> None:
        while not self.ending.wait(LOOK_SECONDS):
            memory, processes = self.look()
            self.highest, self.processes = max(self.highest, memory), max(self.processes, processes)


def _share(number: int) -> int:
    """KiB of a process, its part of shared pages counted; 0 if it is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{number}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0


def measure(count: int, strategies: Sequence[str], rounds: int, folder: Path) -> None:
    """Start a SuperLink and `count` devices, let them take part in a run of every strategy, and print what it took."""
    names = [f"device-{number}" for number in range(1, count + 1)]
    make_keys(folder / "keys", [], names)
    authority = folder / "keys/operator/ca.crt"
    devices, operator = Tree(), Tree()
    port, fleet = free_port(), f"127.0.0.1:{free_port()}"
    command = superlink_command("127.0.0.1", port, fleet, folder / "superlink.db", folder / "keys/server")
    control = Control(folder / "operator", secure_connection(f"127.0.0.1:{port}", authority), operator.environment)
    with (folder / "superlink.log").open("wb") as file:
        superlink = subprocess.Popen(command, env=control.environment, stdout=file, stderr=file)
    try:
        while not is_healthy(f"127.0.0.1:{port}", authority):
            time.sleep(0.2)
        begin = time.monotonic()
        for name in names:
            control.register(folder / "keys/operator" / f"{name}.pub")
        print(f"{count} keys registered in {time.monotonic() - begin:.0f} s", flush=True)
        _start(names, folder, fleet, {**control.environment, **devices.environment, MARK: str(folder)})
        begin = time.monotonic()
        while (online := sum(node["status"] == "online" for node in control.nodes())) < count:
            print(f"  {online} online after {time.monotonic() - begin:.0f} s", flush=True)
            time.sleep(LOOK_SECONDS)
        print(f"all {count} online after {time.monotonic() - begin:.0f} s", flush=True)
        watch = Watch(str(folder))
        _print_memory("at rest, before a message", *watch.look(), count)
        for strategy in strategies:
            _run(strategy, rounds, count, folder, control, superlink, watch := Watch(str(folder)))
            _print_memory(f"{strategy}, highest look", watch.highest, watch.processes, count)
        time.sleep(90)
        _print_memory("at rest, a minute after the last message", *watch.look(), count)
    finally:
        devices.close()
        superlink.terminate()
        superlink.wait(20)
        operator.close()


def _start(names: Sequence[str], folder: Path, fleet: str, environment: Mapping[str, str]) -> None:
    made = synthetic(len(names), ITEMS, mean_length=MEAN_LENGTH).histories
    rows = "".join(f"i{item},Title of i{item}\n" for item in range(ITEMS))
    (folder / "catalogue.csv").write_text("item,title\n" + rows)
    for number, name in enumerate(names):
        own = folder / name
        own.mkdir()
        lines = (f"i{item},{time_}\n" for time_, item in enumerate(np.asarray(made.row(number)).tolist()))
        (own / "history.csv").write_text("item,time\n" + "".join(lines))
        command = [
            "nice", "-n", str(NICENESS), str(Path(sys.executable).parent / "bouquet"), "node", "--superlink", fleet,
            "--user", name, "--data", str(own / "history.csv"), "--state", str(own / "state"),
            "--keys", str(folder / "keys/nodes" / name),
        ]  # fmt: skip
        with (own / "log").open("wb") as file:
            subprocess.Popen(command, env=dict(environment), stdin=subprocess.DEVNULL, stdout=file, stderr=file)


def _run(
    strategy: str,
    rounds: int,
    count: int,
    folder: Path,
    control: Control,
    superlink: subprocess.Popen[bytes],
    watch: Watch,
) -> None:
    out = RunDirectory(folder / f"run-{strategy}")
    settings: dict[str, Scalar] = defaults(option_classes()) | {
        "catalogue-file": str(folder / "catalogue.csv"), "strategy": strategy,
        "min-nodes": count, "max-users": count, "node-timeout": 600.0, "num-server-rounds": rounds,
        "evaluate-every": rounds, "round-timeout": 600.0, "out": str(out.path),
    }  # fmt: skip
    out.create(settings, {"engine": "deployment", "nodes": count})
    write_app_folder(folder / f"app-{strategy}", settings)
    watch.start()
    begin = time.monotonic()
    run = control.submit(folder / f"app-{strategy}")
    try:
        control.follow(run, lambda: out.read_summary()["status"] != "running", lambda: superlink.poll() is None)
    except RunFailed as error:
        print(f"{strategy}: {error}")
    watch.ending.set()
    lines = out.rounds()
    seconds = [line["seconds"]["train"] for line in lines]
    answered = " ".join(str(line["users"]) for line in lines)
    print(
        f"{strategy}: {time.monotonic() - begin:.0f} s in all; training, s, by round: "
        f"{' '.join(f'{value:.0f}' for value in seconds)} (median {statistics.median(seconds or [0]):.0f}); "
        f"users that answered: {answered}",
        flush=True,
    )


def _print_memory(when: str, memory: int, processes: int, count: int) -> None:
    print(
        f"  {when}: {memory / MIB / count:.0f} MiB and {processes / count:.1f} processes per device, "
        f"{memory / MIB / MIB:.1f} GiB in all",
        flush=True,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=100)
    parser.add_argument("--strategies", nargs="+", default=["sequential-rules", "fedavg"])
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bouquet-devices-") as temporary:
        measure(chosen.devices, chosen.strategies, chosen.rounds, Path(temporary))
