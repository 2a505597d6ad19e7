"""What the page is made of, read from the folders of runs: methods with their seeds, and what stands beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.config import RunConfig, Scalar
from bouquet.errors import DataError
from bouquet.experiments.comparison import Finished, finished, require_same_data
from bouquet.experiments.table_file import Row
from bouquet.experiments.table_results import RowResult
from bouquet.reporting.run_directory import RunDirectory

# Where things are and how long to wait: no part of what a run is.
CIRCUMSTANCES = ("out", "resume", "state-dir", "data-dir", "node-timeout", "round-timeout", "tracker")
FILES = ("data-file", "catalogue-file")
MOST_GROUPS = 4
_METHOD = ("strategy", "personalization")
_MOST_DIFFERENCES = 3


@dataclass(frozen=True, eq=False)
class Shown:
    """One method under one configuration, with all its seeds.

    Attributes:
        place: its number on the page, from 0; colour and shape follow from it.
        label: what it is called.
        result: its runs, and means over them.
        folders: of the runs.
    """

    place: int
    label: str
    result: RowResult
    folders: Sequence[RunDirectory]

    @property
    def first(self) -> Finished:
        return self.result.runs[0]

    @property
    def leaky(self) -> bool:
        """Whether training or split could see what is hidden."""
        return self.result.leaky

    @property
    def federated(self) -> bool:
        return not self.result.row.centralized

    @property
    def name(self) -> str:
        """The label in plain text, with what nobody may overlook."""
        return f"{self.label} (LEAKY)" if self.leaky else self.label

    def value(self, candidates: str, metric: str) -> float:
        """Mean over users and seeds, at test."""
        return float(self.result.by_seed((candidates, metric)).mean())

    def error(self, candidates: str, metric: str) -> float:
        """Standard error of that over users, each user's seeds averaged."""
        return self.result.user_error((candidates, metric))

    def settings(self) -> dict[str, Scalar]:
        """Its settings as they are shown: without those of other methods, and without paths and seed."""
        mine = self.folders[0].read_config()
        everything = RunConfig().to_flat() | mine if self.federated else mine
        kept = {key: value for key, value in everything.items() if key not in (*CIRCUMSTANCES, "seed")}
        return kept | {key: Path(str(kept[key])).name for key in FILES if kept.get(key)}


@dataclass(frozen=True)
class Beside:
    """A row of `comparison.json`.

    Attributes:
        test, errors: candidate set -> metric -> mean over users, and its standard error.
    """

    label: str
    test: Mapping[str, Mapping[str, float]]
    errors: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Activity:
    """A group of users who have similarly many training interactions.

    Attributes:
        members: places among the sorted users.
        least, most: training interactions.
    """

    members: NDArray[np.intp]
    least: int
    most: int

    @property
    def words(self) -> str:
        """How many interactions its users have."""
        return f"{self.least:,}" if self.least == self.most else f"{self.least:,}–{self.most:,}"


@dataclass(frozen=True, eq=False)
class Content:
    """Everything that the page shows.

    Attributes:
        methods: in the order in which they were given; tests are against the first.
        beside: rows that stand beside the first run that has some.
        activity: groups of users, least active first; empty where no run knows how active users are.
    """

    methods: Sequence[Shown]
    beside: Sequence[Beside]
    activity: Sequence[Activity]

    @property
    def first(self) -> Finished:
        return self.methods[0].first


def content_of(paths: Sequence[Path], labels: Mapping[str, str]) -> Content:
    """Read finished runs; the folder of a table stands for all its finished cells.

    Args:
        labels: how rows beside a run are called.
    Raises:
        ConfigError: the runs are on different data.
        DataError: a run is missing, unfinished or damaged, or is given twice.
    """
    found = [path for given in paths for path in _runs_in(given)]
    places = [path.resolve() for path in found]
    for place, path in enumerate(found):
        if places[place] in places[:place]:
            raise DataError(f"{path} is given twice.")
    runs = [finished(path) for path in found]
    for other in runs[1:]:
        require_same_data(runs[0], other)
    folders = [RunDirectory(path) for path in found]
    methods = _methods(runs, folders)
    return Content(methods, _beside(folders, labels), _activity(runs[0], folders))


def _runs_in(path: Path) -> list[Path]:
    """The run of a folder, or the finished cells of a table."""
    if (path / "summary.json").exists() or not (path / "cells").is_dir():
        return [path]
    cells = sorted(summary.parent for summary in path.glob("cells/*/*/summary.json"))
    done = [cell for cell in cells if RunDirectory(cell).read_summary()["status"] == "completed"]
    if not done:
        raise DataError(f"The table in {path} has no finished cell.")
    return done


def _methods(runs: Sequence[Finished], folders: Sequence[RunDirectory]) -> list[Shown]:
    groups: dict[tuple[Any, ...], list[int]] = {}
    for place, run in enumerate(runs):
        groups.setdefault(_identity(run), []).append(place)
    members = list(groups.values())
    labels = _labels([runs[places[0]] for places in members], [folders[places[0]] for places in members])
    shown = []
    for place, (label, places) in enumerate(zip(labels, members, strict=True)):
        centralized = "" if _is_federated(runs[places[0]]) else str(runs[places[0]].summary["strategy"])
        row = Row(name=f"row-{place}", label=label, centralized=centralized)
        shown.append(Shown(place, label, RowResult(row, [runs[p] for p in places]), [folders[p] for p in places]))
    return shown


def _is_federated(run: Finished) -> bool:
    return bool(run.summary.get("federated", True))


def _identity(run: Finished) -> tuple[Any, ...]:
    """What runs that differ in their seeds alone have in common."""
    apart = (*CIRCUMSTANCES, "seed")
    settings = sorted((key, value) for key, value in run.settings.items() if key not in apart)
    return (_is_federated(run), run.summary["strategy"], *settings)


def _labels(runs: Sequence[Finished], folders: Sequence[RunDirectory]) -> list[str]:
    """A name for each: that of its row in a table, else its method, and what else tells it from its namesakes."""
    rows = [folder.path.parent.name if folder.path.parent.parent.name == "cells" else "" for folder in folders]
    plain = [row or _plain_label(run) for row, run in zip(rows, runs, strict=True)]
    labels = []
    for run, label in zip(runs, plain, strict=True):
        same = [other for other, name in zip(runs, plain, strict=True) if name == label]
        apart = [key for key in run.settings if len({str(other.settings.get(key)) for other in same}) > 1]
        apart = [key for key in apart if key not in (*CIRCUMSTANCES, "seed")]
        words = [f"{key} {run.settings[key]}" for key in apart[:_MOST_DIFFERENCES]]
        labels.append(", ".join([label, *words]))
    return labels


def _plain_label(run: Finished) -> str:
    if not _is_federated(run):
        return f"{run.summary['strategy']}, all data pooled"
    return " + ".join(str(run.settings[key]) for key in _METHOD if run.settings[key] != "none")


def _beside(folders: Sequence[RunDirectory], labels: Mapping[str, str]) -> list[Beside]:
    for folder in folders:
        rows = {name: row for name, row in folder.read_json("comparison.json").items() if "test" in row}
        if rows:
            return [
                Beside(labels.get(name, name), row["test"], row["standard_error"]["test"]) for name, row in rows.items()
            ]
    return []


def _activity(first: Finished, folders: Sequence[RunDirectory]) -> list[Activity]:
    """Quarters of the users by training interactions; users with as many as each other are in the same one."""
    for folder in folders:
        sizes = folder.read_sizes()
        if sizes is None:
            continue
        sizes = sizes[np.argsort(folder.read_users()[0])]
        evaluated = ~np.isnan(first.per_user("full", "NDCG@10"))
        if not evaluated.any():
            return []
        cuts = np.quantile(sizes[evaluated], np.arange(1, MOST_GROUPS) / MOST_GROUPS, method="lower")
        group = np.searchsorted(np.unique(cuts), sizes, side="left")
        members = [np.flatnonzero(evaluated & (group == place)) for place in range(group.max() + 1)]
        return [Activity(m, int(sizes[m].min()), int(sizes[m].max())) for m in members if len(m)]
    return []
