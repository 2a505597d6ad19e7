"""The curves of a table: a metric against a setting that its rows vary, or against what is no setting.

round       every federated row round by round
group       every row whose users are in groups by how much data they have, in each group
variance    every row as one point: how unequally users are served, and how well

`figure.csv` has every point, `figure.png` shows them: a panel for each candidate set and metric, a curve for each
`line` that rows name. A row that names none and does not depend on the axis, such as popularity, is a level line.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bouquet.experiments.table_file import AXES, GROUP, ROUND, VARIANCE, TableFile
from bouquet.experiments.table_results import Column, RowResult, error_over_seeds
from bouquet.extras import missing
from bouquet.files import write_atomically
from bouquet.reporting.run_directory import RunDirectory

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CSV, PNG = "figure.csv", "figure.png"
_COLUMNS = ("line", "x", "candidates", "metric", "mean", "standard error", "over")
_MARKS = "osD^vPX*<>hp"
_TRAINING = ", training items"


@dataclass(frozen=True)
class PointOf:
    """One point of a curve.

    Attributes:
        line: the curve's name, with LEAKY where its rows are.
        x: value on the axis; None: a level line.
        error: standard error of the mean; NaN where there is none. Of x none is told.
        over: what the error is over: "seeds", or "users" with one seed.
    """

    line: str
    x: Any
    column: Column
    mean: float
    error: float
    over: str


def write_figure(table: TableFile, results: Sequence[RowResult], columns: Sequence[Column], out: Path) -> list[Path]:
    """Write the figure of a table that asks for one.

    The picture is left out, with a line that says so, where matplotlib is not installed.

    Returns:
        The files that were written; none if the table has no figure, or no row of it is complete.
    Raises:
        DataError: the rounds of a cell are damaged.
    """
    if table.figure is None:
        return []
    points = [point for result in results for point in _points(table, result, columns)]
    if not any(point.x is not None for point in points):
        return []
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(_COLUMNS)
    for point in points:
        x = "" if point.x is None else point.x
        lines.writerow([point.line, x, *point.column, repr(point.mean), repr(point.error), point.over])
    write_atomically(out / CSV, text.getvalue())
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print(f"{missing('matplotlib')} {out} has {CSV}, but no picture.", file=sys.stderr)
        return [out / CSV]
    picture = Figure(figsize=(4.6 * len(columns), 3.8), layout="constrained")
    panels = np.atleast_1d(picture.subplots(1, len(columns)))
    for axes, column in zip(panels, columns, strict=True):
        _draw(axes, [point for point in points if point.column == column], table, column)
    handles, names = panels[0].get_legend_handles_labels()
    picture.legend(handles, names, loc="outside lower center", ncols=min(4, len(columns), len(names)), frameon=False)
    image = io.BytesIO()
    # The same points give the same file: no time of day, no version of the library in it.
    picture.savefig(image, format="png", dpi=120, metadata={"Software": None})
    write_atomically(out / PNG, image.getvalue())
    return [out / CSV, out / PNG]


def _points(table: TableFile, result: RowResult, columns: Sequence[Column]) -> list[PointOf]:
    assert table.figure is not None
    key = table.figure.x
    alone = result.row.title + (" (not federated)" if result.row.centralized else "")
    name = (result.row.line or alone) + (" (LEAKY)" if result.leaky else "")
    if key == ROUND and not result.row.centralized:
        return _by_round(result, name, columns, table.part)
    if key == GROUP:
        return _by_group(result, name, columns)
    x = result.runs[0].settings[key] if result.row.line and key not in AXES else None
    found, learned = [], []
    for column in columns:
        over = "seeds" if len(result.runs) > 1 else "users"
        error = result.seed_error(column) if over == "seeds" else result.user_error(column)
        at = result.fairness(column[0]) if key == VARIANCE else x
        found.append(PointOf(name, at, column, float(result.by_seed(column).mean()), error, over))
        if table.figure.training and (values := result.training(column)) is not None:
            learned.append(_over_seeds(name + _TRAINING, x, column, values))
    return found + learned


def _by_group(result: RowResult, name: str, columns: Sequence[Column]) -> list[PointOf]:
    """The groups as words, since their numbers are no quantity; of which user is in which nothing is known here."""
    return [
        _over_seeds(name, str(number), column, values)
        for column in columns
        for number, values in enumerate(result.by_group_and_seed(column[1]), start=1)
    ]


def _over_seeds(name: str, x: Any, column: Column, values: NDArray[np.float64]) -> PointOf:
    return PointOf(name, x, column, float(values.mean()), error_over_seeds(values), "seeds")


def _by_round(result: RowResult, name: str, columns: Sequence[Column], part: str) -> list[PointOf]:
    """Means over seeds of each round in which all of them were evaluated."""
    seeds: list[Mapping[int, Any]] = []
    for run in result.runs:
        rounds = RunDirectory(run.name).rounds()
        seeds.append({record["round"]: record[part] for record in rounds if record.get(part)})
    common = sorted(set.intersection(*(set(records) for records in seeds)))
    found = []
    for number in common:
        for candidates, metric in columns:
            values = np.array([records[number][candidates][metric] for records in seeds], dtype=np.float64)
            found.append(_over_seeds(name, number, (candidates, metric), values))
    return found


def _draw(axes: Axes, points: Sequence[PointOf], table: TableFile, column: Column) -> None:
    assert table.figure is not None
    names = list(dict.fromkeys(point.line for point in points))
    values = list(dict.fromkeys(point.x for point in points if point.x is not None))
    in_words = any(isinstance(value, str | bool) for value in values)
    place = {value: number for number, value in enumerate(values)} if in_words else {}
    for number, name in enumerate(names):
        mine, colour = [point for point in points if point.line == name], f"C{number % 10}"
        if mine[0].x is None:
            axes.axhline(mine[0].mean, label=name, color=colour, linestyle=":")
            continue
        drawn = sorted((place.get(point.x, point.x), point.mean, point.error) for point in mine)
        x, y, error = (np.array(part, dtype=np.float64) for part in zip(*drawn, strict=True))
        axes.errorbar(
            x,
            y,
            yerr=None if np.isnan(error).all() else np.nan_to_num(error),
            label=name,
            color=colour,
            marker="" if table.figure.x == ROUND else _MARKS[number % len(_MARKS)],
            linestyle=":" if name.endswith(_TRAINING) else "--" if name.endswith("(LEAKY)") else "-",
            capsize=2,
        )
    if in_words:
        axes.set_xticks(list(place.values()), [str(value) for value in place])
    if table.figure.scale == "log":
        axes.set_xscale("log")
    axes.set_xlabel(table.figure.axis)
    axes.set_ylabel(f"{column[1]}, {column[0]}{'' if table.part == 'test' else ', validation'}")
    axes.set_ylim(bottom=0)
