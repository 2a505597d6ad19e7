"""`python -m benchmarks [--quick]`: all measurements, as benchmarks/results/<time>.json and .md."""

from __future__ import annotations

import argparse
import json
from datetime import datetime
from pathlib import Path

from benchmarks import local_training
from benchmarks.machine import describe_machine

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a look in about a minute")
    quick = parser.parse_args().quick
    document = {
        "machine": describe_machine(),
        "local_training": local_training.quick() if quick else local_training.full(),
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{datetime.now():%Y-%m-%d-%H%M%S}.json"
    path.write_text(json.dumps(document, indent=2) + "\n")
    machine = "\n".join(f"- {key}: {value}" for key, value in document["machine"].items())
    text = f"# Benchmarks\n\n{machine}\n\n## Local training\n\n{local_training.table(document['local_training'])}\n"
    path.with_suffix(".md").write_text(text)
    print(text)
    print(f"Written to {path} and {path.with_suffix('.md').name}")


if __name__ == "__main__":
    main()
