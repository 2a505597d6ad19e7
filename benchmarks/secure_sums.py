"""What masks cost a round: `python -m benchmarks.secure_sums [--nodes 20] [--rounds 5]`, as a ratio within one process.

MovieLens-100K from the folder that BOUQUET_DATA names, else made data of its shape; the settings of
configs/ml-100k-fedavg.toml. One run without masks and one with, in one process: of a round the time of the clock, and
of the processor, all nodes and the server together. First rounds are left out: they load data and compile.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

from benchmarks.shapes import DATA_VARIABLE
from benchmarks.tables import markdown
from bouquet.config import Scalar
from bouquet.engines.local import LocalGrid
from bouquet.testing.runs import run_here, small_settings, write_data

CONFIG = Path(__file__).parents[1] / "configs" / "ml-100k-fedavg.toml"


class Timed(LocalGrid):
    """Notes the processor's time at the first message of every round."""

    def __init__(self, *arguments: Any, marks: dict[str, float]) -> None:
        super().__init__(*arguments)
        self._marks = marks

    def _answer(self, message: Any) -> Any:
        self._marks.setdefault(message.metadata.group_id, time.process_time())
        return super()._answer(message)


def settings_of(folder: Path, rounds: int) -> dict[str, Scalar]:
    """The settings of a run on the data that is there."""
    given: dict[str, Any] = {
        **tomllib.loads(CONFIG.read_text()),
        "num-server-rounds": rounds + 2,
        "evaluate-every": rounds + 2,
        "checkpoint-every": 0,
        "recommendations": 0,
    }
    if data := os.environ.get(DATA_VARIABLE):
        given["data-dir"] = data
        base = small_settings(folder)
        return {**base, "data-file": "", "time-column": "", **given}
    write_data(folder / "data.csv", 943, 1682, 100.0)
    return {**small_settings(folder), **given, "dataset": "file"}


def measure(nodes: int, rounds: int) -> list[dict[str, float | str]]:
    """A row without masks, one with, and their ratio: milliseconds of the wall clock for training and adding up."""
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = settings_of(folder, rounds)
        for masks in (False, True):
            marks: dict[str, float] = {}
            run = run_here(folder / str(masks), {**settings, "secure-sums": masks}, nodes, Timed, marks=marks)
            # The last round is evaluated.
            lines = run.rounds()[1:-1]
            seconds = [line["seconds"]["total"] for line in lines]
            took = [marks[str(line["round"] + 1)] - marks[str(line["round"])] for line in lines]
            found.append(
                {
                    "masks": "yes" if masks else "no",
                    "round ms": round(1000 * statistics.median(seconds), 1),
                    "fastest ms": round(1000 * min(seconds), 1),
                    "processor ms": round(1000 * statistics.median(took), 1),
                    "up KB per node": round(lines[0]["bytes"]["wire_up"] / nodes / 1000, 1),
                }
            )
    ratio: dict[str, float | str] = {"masks": "ratio"}
    for key in list(found[0])[1:]:
        ratio[key] = round(float(found[1][key]) / float(found[0][key]), 2)
    return [*found, ratio]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    print(markdown(measure(given.nodes, given.rounds)))


if __name__ == "__main__":
    main()
