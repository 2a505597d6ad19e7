"""Whole rounds: all users train and are evaluated, by engine and number of nodes, with memory and bytes.

Each figure is a run of the program of its own. The first round is left out: it loads data and compiles.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.shapes import DATA_VARIABLE
from bouquet.reporting.run_directory import RunDirectory

PROGRAM = [sys.executable, "-c", "from bouquet.cli.main import main; main()"]
# The rounds of a run, and the peak memory of its largest process, are told by the child itself.
MEASURED = [
    sys.executable,
    "-c",
    "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:]).returncode; "
    "print('peak', resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(done)",
]


def run_rounds(settings: dict[str, Any], engine: str, nodes: int, rounds: int) -> dict[str, Any]:
    """Seconds per round (median, minimum), where they go, peak memory, bytes per user.

    Raises:
        RuntimeError: the run failed; the message has its last words.
    """
    given = {"num-server-rounds": rounds, "evaluate-every": 1, "checkpoint-every": 0, **settings}
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "run")
        pairs = " ".join(f'{key}="{v}"' if isinstance(v, str) else f"{key}={v}" for key, v in given.items())
        command = [*MEASURED, *PROGRAM, "run", "--engine", engine, "--nodes", str(nodes), "--compare-with", ""]
        done = subprocess.run([*command, "-c", pairs, "--out", out], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        directory = RunDirectory(out)
        lines, summary = directory.rounds()[1:], directory.read_summary()
    seconds = [line["seconds"]["total"] for line in lines]
    parts = {name: statistics.median(line["seconds"][name] for line in lines) for name in ("train", "evaluate")}
    inside = {name: statistics.median(line["node_seconds"][name] for line in lines) for name in parts}
    return {
        "engine": engine,
        "nodes": nodes,
        "users": summary["users"],
        "seconds_per_round": round(statistics.median(seconds), 4),
        "seconds_per_round_min": round(min(seconds), 4),
        "training_on_nodes": round(inside["train"], 4),
        "evaluation_on_nodes": round(inside["evaluate"], 4),
        "aggregation": round(statistics.median(line["seconds"]["aggregate"] for line in lines), 4),
        "peak_mib": round(int(done.stdout.split("peak")[-1]) / 1024),
        "down_per_user": round(summary["bytes"]["down_per_user_round"]),
        "up_per_user": round(summary["bytes"]["up_per_user_round"]),
    }


def by_engine(datasets: Sequence[str], nodes: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """One process, and Flower with several numbers of nodes; the ratio is to one process on the same data."""
    rows = []
    for dataset in datasets:
        settings: dict[str, Any] = {"dataset": dataset, "local-epochs": 10}
        if folder := os.environ.get(DATA_VARIABLE):
            settings["data-dir"] = folder
        alone = run_rounds(settings, "local", 4, rounds)
        for found in [alone, *(run_rounds(settings, "flower", count, rounds) for count in nodes)]:
            ratio = found["seconds_per_round"] / alone["seconds_per_round"]
            rows.append({"dataset": dataset, **found, "ratio_to_local": round(ratio, 2)})
    return rows


def growth(sizes: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """More and more users of one kind, in one process: the ratio is per user, to the smallest size."""
    import pandas as pd

    from data_partition import synthetic

    rows: list[dict[str, Any]] = []
    for users in sizes:
        made = synthetic(users, 3000, mean_length=64.0)
        table = pd.DataFrame({"user": made.histories.row_of_value, "item": made.histories.values})
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "data.parquet"
            table.to_parquet(path)
            found = run_rounds({"dataset": "file", "data-file": str(path), "local-epochs": 10}, "local", 4, rounds)
        each = found["seconds_per_round"] / users
        first = rows[0]["seconds_per_round"] / rows[0]["users"] if rows else each
        rows.append({"dataset": "synthetic", **found, "ratio_per_user": round(each / first, 2)})
    return rows
