"""The rows of a results table: the runs of each, averaged over seeds and over users."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bouquet.experiments.comparison import Finished, Sample, finished, require_same_data, user_error
from bouquet.experiments.table_cells import Cell
from bouquet.experiments.table_file import Row, TableFile
from bouquet.reporting.run_directory import RunDirectory

Column = tuple[str, str]
"""candidate set and metric"""


def error_over_seeds(values: NDArray[np.float64]) -> float:
    """The standard error of the mean of values [seeds]; NaN with one seed."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


@dataclass(frozen=True)
class RowResult:
    """A row with all its seeds.

    Attributes:
        runs: one per seed.
        part: of what is hidden, "test" or "validation".
    """

    row: Row
    runs: list[Finished]
    part: str = "test"

    @property
    def leaky(self) -> bool:
        """Whether training or split could see what is hidden."""
        return any(run.summary["leaky"] for run in self.runs)

    @property
    def title(self) -> str:
        """The label, with what a reader must not overlook."""
        words = self.row.title + (" (not federated)" if self.row.centralized else "")
        return f"{words} **LEAKY**" if self.leaky else words

    def by_seed(self, column: Column) -> NDArray[np.float64]:
        """[seeds] means over users."""
        candidates, metric = column
        return np.array([run.summary[self.part][candidates][metric] for run in self.runs], dtype=np.float64)

    def seed_error(self, column: Column) -> float:
        """Standard error of the mean over seeds; NaN with one seed."""
        return error_over_seeds(self.by_seed(column))

    def by_user(self, column: Column) -> NDArray[np.float64]:
        """[n] means over seeds."""
        return np.mean([run.per_user(*column, self.part) for run in self.runs], axis=0)

    def user_error(self, column: Column) -> float:
        """Standard error of the mean over users, each user's seeds averaged; NaN below 2 users."""
        return user_error(self.by_user(column))

    def sample(self, column: Column) -> Sample:
        """One metric by seed and user."""
        values = np.stack([run.per_user(*column, self.part) for run in self.runs])
        return Sample(values, all(run.seedless for run in self.runs))

    def bytes(self, direction: str) -> float | None:
        """Bytes per user and round, averaged over seeds; None for a centralized row."""
        if self.row.centralized:
            return None
        return float(np.mean([run.summary["bytes"][f"{direction}_per_user_round"] for run in self.runs]))

    def fairness(self, candidates: str) -> float:
        """Variance over users of test HR@10 + NDCG@10 among these candidates, averaged over seeds."""
        return float(np.mean([run.fairness(candidates)["variance"] for run in self.runs]))

    def traffic(self, part: str) -> float | None:
        """Bytes of all users up to the best round, averaged over seeds; None where nobody counted.

        Args:
            part: "training" or "evaluation".
        """
        found = [run.summary.get("bytes", {}).get(f"{part}_to_best_round") for run in self.runs]
        return None if None in found else float(np.mean(found))

    def by_group(self, metric: str) -> list[float]:
        """A test metric over the full catalogue in each group of users, averaged over seeds; empty without groups."""
        return [float(values.mean()) for values in self.by_group_and_seed(metric)]

    def by_group_and_seed(self, metric: str) -> list[NDArray[np.float64]]:
        """The same, [seeds] for each group."""
        runs = [[group["test"][metric] for group in run.summary.get("groups", [])] for run in self.runs]
        return [np.array(values, dtype=np.float64) for values in zip(*runs, strict=True)]

    def training(self, column: Column) -> NDArray[np.float64] | None:
        """[seeds] means over users, their training items in the place of the hidden one; None where nobody looked."""
        candidates, metric = column
        found = [run.summary.get("training") for run in self.runs]
        return None if None in found else np.array([part[candidates][metric] for part in found])  # type: ignore[index]

    def singular_variance(self) -> float | None:
        """Of the covariance of the largest item table, averaged over seeds; None where there is none."""
        found = [run.summary.get("singular_variance") for run in self.runs]
        return None if None in found else float(np.mean(found))  # type: ignore[arg-type]

    def exposure(self, name: str) -> float | None:
        """ER@5 or ER@10 of the target in the reported round, averaged over seeds; None where nobody was drawn."""
        found = [run.summary.get("attack", {}).get("exposure", {}).get(name) for run in self.runs]
        return None if None in found else float(np.mean(found))

    def movement(self) -> dict[str, float]:
        """How far each private item table has moved, averaged over seeds; empty where users have none of their own.

        Where training diverged, what is left of the tables is not what was recommended with.
        """
        sound = [run for run in self.runs if "diverged" not in run.summary]
        found = [run.summary.get("moved", {}).get("tables", {}) for run in sound] or [{}]
        common = [name for name in found[0] if all(name in tables for tables in found)]
        return {name: float(np.mean([tables[name] for tables in found])) for name in common}

    def chosen(self) -> str:
        """The settings that validation chose, by seed where it chose differently; empty where it chose none."""
        by_seed = [run.summary.get("chosen", {}) for run in self.runs]
        values = {name: [f"{chosen[name]:g}" for chosen in by_seed] for name in by_seed[0]}
        shown = {name: found[:1] if len(set(found)) == 1 else found for name, found in values.items()}
        return ", ".join(f"{name} {' / '.join(found)}" for name, found in shown.items())

    def diverged(self) -> str:
        """Which seeds diverged, and when; empty where none did."""
        found = [(run.settings["seed"], run.summary["diverged"]) for run in self.runs if "diverged" in run.summary]
        return ", ".join(f"seed {seed} in round {told['round']}" for seed, told in found)

    def spent(self) -> tuple[float, float] | None:
        """ε and δ of the runs, the largest of them; None where sums have no noise that is accounted for."""
        found = [run.summary.get("privacy") for run in self.runs]
        if not all(found):
            return None
        return max((privacy["epsilon"], privacy["delta"]) for privacy in found if privacy)

    def best_rounds(self) -> str:
        """The round that was best on validation, by seed."""
        return "" if self.row.centralized else ", ".join(str(run.summary["best_round"]) for run in self.runs)


def row_results(table: TableFile, cells: Sequence[Cell]) -> list[RowResult]:
    """The rows all of whose cells are complete.

    Raises:
        ConfigError: cells hold different data.
        DataError: a cell's files are damaged.
    """
    results = []
    for row in table.rows:
        own = [cell for cell in cells if cell.row.name == row.name]
        if all(_is_complete(RunDirectory(cell.path)) for cell in own):
            results.append(RowResult(own[0].row, [finished(cell.path) for cell in own], table.part))
    runs = [run for result in results for run in result.runs]
    for run in runs[1:]:
        require_same_data(runs[0], run)
    return results


def _is_complete(directory: RunDirectory) -> bool:
    return directory.summary.exists() and directory.read_summary().get("status") == "completed"
