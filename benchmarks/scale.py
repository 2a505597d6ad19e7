"""Many users, of whom few train in a round: `python -m benchmarks.scale --users 1000000 --per-round 10000`.

Made-up users in a file, one run of the program over it, and what it took: seconds of the whole run and of a round,
seconds of the one evaluation of all users after the last round, peak memory of the largest process, bytes that
travelled per user and round, and what lies on the disk afterwards. `--dataset gowalla` takes a known data set in place
of the file, `--settings '{"embedding-size": 32}'` changes any setting, `--json` prints JSON only. `--all` measures
every method with the models that `--backbones` names, plug-ins before FCF, and says of those that are refused why.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.combinations import TRAIN, combinations
from benchmarks.machine import describe_machine
from benchmarks.rounds import MEASURED, run_command
from benchmarks.shapes import DATA_VARIABLE
from benchmarks.tables import markdown
from bouquet.config import Scalar
from bouquet.methods import METHODS
from bouquet.reporting.run_directory import RunDirectory
from models import BACKBONES

ITEMS, MEAN_LENGTH = 2000, 12.0


def write_users(path: Path, users: int, items: int, mean_length: float) -> None:
    """A Parquet file of made-up users; the order of its rows is the order in time."""
    import numpy as np
    import pandas as pd

    from bouquet.ragged import positions
    from data_partition import synthetic

    histories = synthetic(users, items, mean_length=mean_length).histories
    columns = {"user": histories.row_of_value, "item": histories.values, "time": positions(histories.lengths)}
    pd.DataFrame({name: values.astype(np.int32) for name, values in columns.items()}).to_parquet(path, index=False)


def measure(settings: Mapping[str, Scalar], nodes: int) -> dict[str, Any]:
    """What one run took, evaluated after its last round.

    Raises:
        RuntimeError: the run failed or was refused; the message has its last words.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        begin, before = time.perf_counter(), _processor_seconds()
        command = [*MEASURED, *run_command(dict(settings), "local", nodes, str(out))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - begin
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:].strip())
        directory = RunDirectory(out)
        lines, summary = directory.rounds(), directory.read_summary()
        return {
            "users": summary["users"],
            "interactions": summary["interactions"],
            "a round": lines[-1]["asked"],
            "rounds": len(lines),
            "seconds": round(seconds, 1),
            "processor_seconds": round(_processor_seconds() - before, 1),
            # The first round reads data and makes files.
            "seconds_per_round": round(statistics.median(_training(line) for line in lines[1:] or lines), 2),
            "evaluation_seconds": round(lines[-1]["seconds"]["evaluate"], 1),
            "peak_mib": round(int(done.stdout.split("peak")[-1]) / 1024),
            "down_per_user": round(lines[-1]["bytes"]["down_per_user"]),
            "up_per_user": round(lines[-1]["bytes"]["up_per_user"]),
            "state_mib": round(_allocated(directory.path / "nodes") / 2**20),
            "disk_mib": round(_allocated(directory.path) / 2**20),
        }


def _processor_seconds() -> float:
    """Of all programs that were started from here and have ended."""
    times = os.times()
    return times.children_user + times.children_system


def _training(line: Mapping[str, Any]) -> float:
    return float(line["seconds"]["total"] - line["seconds"]["evaluate"])


def _allocated(folder: Path) -> int:
    """Bytes that the files under a folder take on the disk, holes left out."""
    return sum(512 * path.stat().st_blocks for path in folder.rglob("*") if path.is_file())


def _measured(options: argparse.Namespace, common: Mapping[str, Scalar]) -> Iterator[dict[str, Any]]:
    """A row for each method; with --all one that failed or was refused has its last words in place of figures."""
    strategies = options.strategies or (TRAIN if options.all else ["fedavg"])
    for strategy, backbone, plug_in in combinations(strategies, options.backbones):
        if plug_in != "none" and not options.all:
            continue
        of_row: dict[str, Scalar] = {"strategy": strategy, "backbone": backbone, "personalization": plug_in}
        try:
            row = {**of_row, **measure({**common, **of_row}, options.nodes)}
        except RuntimeError as error:
            if not options.all:
                raise
            row = {**of_row, "not measured": (str(error).splitlines() or ["it ended without a word"])[-1]}
        print(json.dumps(row), file=sys.stderr)  # what was measured stands, whatever comes later
        yield row


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=100_000, help="made up; with --dataset, how many it has")
    parser.add_argument("--items", type=int, default=ITEMS)
    parser.add_argument("--mean-length", type=float, default=MEAN_LENGTH, help="interactions per user")
    parser.add_argument("--dataset", default="", help="a known data set in place of users that are made up")
    parser.add_argument("--per-round", type=int, default=10_000, help="users who train in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--strategies", nargs="+", choices=sorted(METHODS), help="fedavg; with --all, all that train")
    parser.add_argument("--backbones", nargs="+", choices=sorted(BACKBONES), default=["mf"])
    parser.add_argument("--all", action="store_true", help="plug-ins, too, and a row for what is refused or fails")
    parser.add_argument("--settings", type=json.loads, default={}, help="more settings, as JSON")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        common: dict[str, Scalar] = {"dataset": options.dataset}
        if not options.dataset:
            file = Path(folder) / "data.parquet"
            write_users(file, options.users, options.items, options.mean_length)
            common = {"dataset": "file", "data-file": str(file), "time-column": "time"}
        elif data := os.environ.get(DATA_VARIABLE):
            common["data-dir"] = data
        common |= {"num-server-rounds": options.rounds, "evaluate-every": options.rounds}
        common |= {"fraction-train": min(1.0, options.per_round / options.users), **options.settings}
        rows = list(_measured(options, common))
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        print(json.dumps(describe_machine(), indent=2), markdown(rows), sep="\n\n")


if __name__ == "__main__":
    main()
