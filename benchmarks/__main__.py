"""`python -m benchmarks [--quick]`: all measurements, as benchmarks/results/<time>.json and .md."""

from __future__ import annotations

import argparse
import json
from datetime import datetime
from pathlib import Path

from benchmarks import fedca_server, gpu, local_training, rounds
from benchmarks.machine import describe_machine
from benchmarks.tables import markdown

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a look in a few minutes")
    quick = parser.parse_args().quick
    tables = {
        "Local training, one core": local_training.quick() if quick else local_training.full(),
        "Device-side methods, one core": local_training.measure_methods(
            sorted(local_training.METHODS), repetitions=1 if quick else 5
        ),
        "FedCA on the server, one core": fedca_server.quick() if quick else fedca_server.full(),
        "Whole rounds, all users": rounds.quick() if quick else rounds.full(),
        "Growth": rounds.quick_growth() if quick else rounds.full_growth(),
        "On the GPU": gpu.everything(),
    }
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
