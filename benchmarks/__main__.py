"""`python -m benchmarks [--quick]`: all measurements, as benchmarks/results/<time>.json and .md."""

from __future__ import annotations

import argparse
import json
import os
from datetime import datetime
from pathlib import Path

from benchmarks import fedca_server, local_training, rounds
from benchmarks.machine import describe_machine
from benchmarks.shapes import DATA_VARIABLE
from benchmarks.tables import markdown

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a look in a few minutes")
    quick = parser.parse_args().quick
    real = ["ml-100k"] if quick else ["ml-100k", "ml-1m"]
    real = real if os.environ.get(DATA_VARIABLE) else ["synthetic"]
    if quick:
        tables = {
            "Local training, one core": local_training.quick(),
            "FedCA on the server, one core": fedca_server.quick(),
            "Whole rounds, all users": rounds.by_engine(real, [4], rounds=5),
            "Growth": rounds.growth([1000, 2000], rounds=3),
        }
    else:
        tables = {
            "Local training, one core": local_training.full(),
            "FedCA on the server, one core": fedca_server.full(),
            "Whole rounds, all users": rounds.by_engine(real, [1, 2, 4, 8, 16], rounds=8, repetitions=3),
            "Growth": rounds.growth([6250, 12500, 25000, 50000], rounds=5),
        }
    tables["Local training on the GPU"] = local_training.on_gpu()
    machine = describe_machine()
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{datetime.now():%Y-%m-%d-%H%M%S}.json"
    path.write_text(json.dumps({"machine": machine, **tables}, indent=2) + "\n")
    parts = ["# Benchmarks", "\n".join(f"- {key}: {value}" for key, value in machine.items())]
    absent = "Skipped: torch sees no GPU here."
    parts += [f"## {title}\n\n{markdown(rows) if rows else absent}" for title, rows in tables.items()]
    text = "\n\n".join(parts) + "\n"
    path.with_suffix(".md").write_text(text)
    print(text)
    print(f"Written to {path} and {path.with_suffix('.md').name}")


if __name__ == "__main__":
    main()
