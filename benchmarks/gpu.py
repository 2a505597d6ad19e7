"""Every method on a GPU beside one core: `python -m benchmarks.gpu`, on a machine that has one.

The same run twice for each method, with as many rounds of all users: on the processor as runs compute by default, with
one thread, and with `device = "cuda"` (or another, `--device`). Seconds of local training in a round are told, their
ratio, and how far apart the shared arrays and the validation figure of the two runs lie at the end: rounding, which a
GPU does in another order. Evaluation is on the processor in both. `--method fcf --backbone ncf` measures some of it,
`--dataset ml-1m` elsewhere, `--json` prints JSON only.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.combinations import TRAIN, combinations
from benchmarks.machine import describe_machine
from benchmarks.rounds import run_command
from benchmarks.shapes import DATA_VARIABLE
from benchmarks.tables import markdown
from bouquet.arrays import Arrays
from bouquet.config import Scalar
from bouquet.reporting.run_directory import RunDirectory
from bouquet.testing import last_checkpoint
from models import BACKBONES

DATASET = "ml-100k" if os.environ.get(DATA_VARIABLE) else "synthetic"
# Validation figures of the last round, which both runs have evaluated.
FIGURE = "NDCG@10"


@dataclass(frozen=True)
class Trained:
    """One run.

    Attributes:
        seconds: of local training in each round but the first, which loads and compiles.
        figure: NDCG@10 (full) on validation after the last round.
        shared: what all users have in common then.
    """

    seconds: list[float]
    figure: float
    shared: Arrays


def trained(settings: dict[str, Scalar]) -> Trained:
    """Run the program.

    Raises:
        RuntimeError: the run failed or was refused; the message has its last words.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = run_command(settings, "local", 1, str(out))
        one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=one_thread)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:].strip())
        directory = RunDirectory(out)
        lines = directory.rounds()
        figure = lines[-1]["validation"]["full"][FIGURE]
        return Trained([line["node_seconds"]["train"] for line in lines[1:]], figure, last_checkpoint(directory).shared)


def measure(
    chosen: Sequence[tuple[str, str, str]], device: str, dataset: str, rounds: int, further: dict[str, Scalar]
) -> Iterator[dict[str, Any]]:
    """A line for each, the processor first; both take about 20 seconds on MovieLens-100K."""
    common: dict[str, Scalar] = {"dataset": dataset, "num-server-rounds": rounds + 1, "evaluate-every": rounds + 1}
    common |= {"checkpoint-every": rounds + 1, "recommendations": 0, **further}
    if folder := os.environ.get(DATA_VARIABLE):
        common["data-dir"] = folder
    for strategy, backbone, plug_in in chosen:
        settings = {**common, "strategy": strategy, "backbone": backbone, "personalization": plug_in}
        here = trained(settings)
        there = trained({**settings, "device": device, "backend": "torch"})
        apart = [float(np.abs(there.shared[name] - values).max(initial=0.0)) for name, values in here.shared.items()]
        seconds = statistics.median(here.seconds), statistics.median(there.seconds)
        yield {
            "strategy": strategy,
            "backbone": backbone,
            "plug-in": plug_in,
            "one core, s": round(seconds[0], 4),
            f"{device}, s": round(seconds[1], 4),
            "ratio": round(seconds[0] / seconds[1], 2),
            "shared arrays apart": max(apart, default=0.0),
            "NDCG@10 apart": abs(here.figure - there.figure),
        }


def everything() -> list[dict[str, Any]]:
    """All methods with all models; nothing where no GPU is."""
    import torch

    if not torch.cuda.is_available():
        return []
    return list(measure(combinations(TRAIN, sorted(BACKBONES)), "cuda", DATASET, 3, {}))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--method", choices=TRAIN, action="append", help="one of the methods; again for more")
    parser.add_argument("--backbone", choices=sorted(BACKBONES), action="append", help="likewise")
    parser.add_argument("--device", default="cuda", help="where the second run trains")
    parser.add_argument("--dataset", default=DATASET)
    parser.add_argument("--rounds", type=int, default=3, help="that are measured, after the first")
    parser.add_argument("--settings", type=json.loads, default={}, help="JSON of settings of all runs")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    options = parser.parse_args(arguments)
    if options.device != "cpu":
        import torch

        if not torch.cuda.is_available():
            parser.exit(1, "torch sees no GPU here, so there is nothing to measure.\n")
    chosen = combinations(options.method or TRAIN, options.backbone or sorted(BACKBONES))
    lines = []
    for line in measure(chosen, options.device, options.dataset, options.rounds, options.settings):
        lines.append(line)
        words = f"{line['strategy']} on {line['backbone']} with {line['plug-in']}: {line['ratio']} times one core"
        print(f"{len(lines)} of {len(chosen)}: {words}", file=sys.stderr)
    if options.json:
        print(json.dumps(lines, indent=2))
    else:
        print(json.dumps(describe_machine(), indent=2), markdown(lines), sep="\n\n")


if __name__ == "__main__":
    main()
