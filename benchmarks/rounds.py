"""Whole rounds by engine and number of nodes, and with growing numbers of users: `python -m benchmarks.rounds`.

`--growth` measures growth instead, `--quick` a few minutes of either, `--json` prints JSON only. All users train and
are evaluated in every round.

Each figure is a run of the program of its own. The first round is left out: it loads data and compiles.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine
from benchmarks.shapes import DATA_VARIABLE
from benchmarks.tables import markdown
from bouquet.reporting.run_directory import RunDirectory

PROGRAM = [sys.executable, "-c", "from bouquet.cli.main import main; main()"]
# The rounds of a run, and the peak memory of its largest process, are told by the child itself.
MEASURED = [
    sys.executable,
    "-c",
    "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:]).returncode; "
    "print('peak', resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(done)",
]


def run_command(settings: dict[str, Any], engine: str, nodes: int, out: str) -> list[str]:
    """The command line of a run."""
    pairs = " ".join(f'{key}="{v}"' if isinstance(v, str) else f"{key}={v}" for key, v in settings.items())
    command = [*PROGRAM, "run", "--engine", engine, "--nodes", str(nodes), "--compare-with", ""]
    return [*command, "-c", pairs, "--out", out]


def run_rounds(settings: dict[str, Any], engine: str, nodes: int, rounds: int) -> list[dict[str, float]]:
    """What each round of a run took, but for the first.

    Returns:
        Seconds in all ("total"), where they went, peak memory of the run's largest process, bytes per user:

        training, evaluation: on the nodes, as if they shared the work of those that run at once evenly.
        aggregation: on the server.
        messages: everything else: encoding, carrying, waiting for and decoding messages both ways.
    Raises:
        RuntimeError: the run failed; the message has its last words.
    """
    given = {"num-server-rounds": rounds + 1, "evaluate-every": 1, "checkpoint-every": 0, **settings}
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "run")
        command = [*MEASURED, *run_command(given, engine, nodes, out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        directory = RunDirectory(out)
        lines, users = directory.rounds()[1:], directory.read_summary()["users"]
    at_once = 1 if engine == "local" else min(nodes, os.cpu_count() or 1)
    found = []
    for line in lines:
        training, evaluation = (line["node_seconds"][part] / at_once for part in ("train", "evaluate"))
        aggregation, total = line["seconds"]["aggregate"], line["seconds"]["total"]
        found.append(
            {
                "total": total,
                "training": training,
                "evaluation": evaluation,
                "aggregation": aggregation,
                "messages": total - training - evaluation - aggregation,
                "users": users,
                "peak_mib": int(done.stdout.split("peak")[-1]) / 1024,
                "down_per_user": line["bytes"]["down_per_user"],
                "up_per_user": line["bytes"]["up_per_user"],
            }
        )
    return found


def figures(rounds: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Medians over rounds, with the shortest round beside them; seconds, MiB and bytes."""
    middle = {name: statistics.median(round_[name] for round_ in rounds) for name in rounds[0]}
    return {
        "users": round(middle["users"]),
        "seconds_per_round": round(middle["total"], 4),
        "seconds_per_round_min": round(min(round_["total"] for round_ in rounds), 4),
        **{name: round(middle[name], 4) for name in ("training", "evaluation", "aggregation", "messages")},
        **{name: round(middle[name]) for name in ("peak_mib", "down_per_user", "up_per_user")},
    }


def by_engine(datasets: Sequence[str], nodes: Sequence[int], rounds: int, repetitions: int = 1) -> list[dict[str, Any]]:
    """One process, and Flower with several numbers of nodes, in turn within each repetition.

    The ratio is to one process on the same data in the same repetition; "ratio_min" compares the shortest rounds.
    """
    rows = []
    for dataset in datasets:
        settings: dict[str, Any] = {"dataset": dataset, "local-epochs": 10}
        if folder := os.environ.get(DATA_VARIABLE):
            settings["data-dir"] = folder
        found: dict[tuple[str, int], list[list[dict[str, float]]]] = {}
        for _ in range(repetitions):
            for place in [("local", 4), *(("flower", count) for count in nodes)]:
                found.setdefault(place, []).append(run_rounds(settings, *place, rounds))
        alone = [figures(repetition) for repetition in found["local", 4]]
        for (engine, count), runs in found.items():
            each = [figures(repetition) for repetition in runs]
            ratios = [a["seconds_per_round"] / b["seconds_per_round"] for a, b in zip(each, alone, strict=True)]
            pooled = figures([round_ for repetition in runs for round_ in repetition])
            shortest = min(figure["seconds_per_round_min"] for figure in alone)
            rows.append(
                {
                    "dataset": dataset,
                    "engine": engine,
                    "nodes": count,
                    **pooled,
                    "ratio_to_local": round(statistics.median(ratios), 2),
                    "ratio_min": round(pooled["seconds_per_round_min"] / shortest, 2),
                }
            )
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
            settings = {"dataset": "file", "data-file": str(path), "local-epochs": 10}
            found = figures(run_rounds(settings, "local", 4, rounds))
        rows.append({"dataset": "synthetic", "interactions": len(table), **found})
        first = rows[0]
        for name, of in (("ratio_per_user", "seconds_per_round"), ("ratio_per_user_min", "seconds_per_round_min")):
            rows[-1][name] = round(found[of] / users / (first[of] / first["users"]), 2)
    return rows


def quick() -> list[dict[str, Any]]:
    """A look in a minute or two."""
    return by_engine(["ml-100k"] if os.environ.get(DATA_VARIABLE) else ["synthetic"], [4], rounds=5)


def full() -> list[dict[str, Any]]:
    """Everything."""
    datasets = ["ml-100k", "ml-1m"] if os.environ.get(DATA_VARIABLE) else ["synthetic"]
    return by_engine(datasets, [1, 2, 4, 8, 16], rounds=8, repetitions=3)


def quick_growth() -> list[dict[str, Any]]:
    """A look."""
    return growth([1000, 2000], rounds=3)


def full_growth() -> list[dict[str, Any]]:
    """Up to 50,000 users."""
    return growth([6250, 12500, 25000, 50000], rounds=5)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--growth", action="store_true", help="growing numbers of users in one process")
    parser.add_argument("--quick", action="store_true", help="a few combinations")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    options = parser.parse_args(arguments)
    measured = {(False, False): full, (False, True): quick, (True, False): full_growth, (True, True): quick_growth}
    rows = measured[options.growth, options.quick]()
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        print(json.dumps(describe_machine(), indent=2), markdown(rows), sep="\n\n")


if __name__ == "__main__":
    main()
