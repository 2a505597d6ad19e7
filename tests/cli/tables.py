"""What tests of tables read of a folder."""

from __future__ import annotations

import csv
import json


def csv_lines(folder):
    with (folder / "table.csv").open() as file:
        return {(line["row"], line["candidates"], line["metric"]): line for line in csv.DictReader(file)}


def mean_of(folder, row, seed, candidates, metric):
    summary = json.loads((folder / "cells" / row / f"seed-{seed}" / "summary.json").read_text())
    return summary["test"][candidates][metric]
