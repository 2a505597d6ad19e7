"""Finished runs, and whether they differ: two of them user by user, two methods over users and seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.config import CIRCUMSTANCES, RunConfig, Scalar
from bouquet.errors import ConfigError, DataError
from bouquet.evaluation import PairedDifference, fairness, holm, metric_values, seeded_test
from bouquet.experiments.kept_cells import read_cell
from bouquet.methods import METHODS
from bouquet.randomness import Words
from bouquet.reporting.run_directory import RunDirectory

# What decides which item of whom is hidden, and what may be read. Where the files lie and how they are called does not.
PROTOCOL_KEYS = ("dataset", "min-interactions", "split", "validation-share", "hold-out", "split-seed", "test-history")
# Closed forms and counts of pooled data: another seed gives the same numbers.
WITHOUT_SEED = ("popularity", "most-recent", "itemknn", "ease")


def is_seedless(name: str, federated: bool, settings: Mapping[str, Scalar]) -> bool:
    """Whether another seed gives the same numbers.

    Args:
        name: of the strategy, or of the model of pooled data.
    """
    if not federated:
        return name in WITHOUT_SEED
    # Noise is drawn from it, and who lies, and for what.
    drawn = any(settings.get(key) for key in ("dp-epsilon", "dp-noise-multiplier", "attack-fraction"))
    return name in METHODS and METHODS[name].seedless and not drawn


@dataclass(frozen=True, eq=False)
class Sample:
    """One metric of one method.

    Attributes:
        values: [seeds, n] of all users, NaN for those that were not evaluated.
        seedless: another seed gives the same values.
    """

    values: NDArray[np.float64]
    seedless: bool = False


@dataclass(frozen=True, eq=False)
class Finished:
    """A completed run.

    Attributes:
        name: its folder, as it was given.
        settings: its configuration: those of all runs, and those of its method that are in its folder.
        summary: its `summary.json`.
        users: [n] keys, ascending.
        values: [n, parts, candidate sets, metrics] per-user metrics of the reported round.
    """

    name: str
    settings: Mapping[str, Scalar]
    summary: Mapping[str, Any]
    users: Words
    values: NDArray[np.float64]

    def per_user(self, candidates: str, metric: str, part: str = "test") -> NDArray[np.float64]:
        """[n] one metric on the test or the validation part, NaN for users that were not evaluated."""
        return metric_values(self.values, part, candidates, metric)

    @property
    def seedless(self) -> bool:
        """As `is_seedless`; of another program's scores nobody knows."""
        return not self.summary.get("foreign") and is_seedless(
            str(self.summary["strategy"]), self.summary.get("federated", True), self.settings
        )

    def fairness(self, candidates: str) -> dict[str, Any]:
        """`variance` and `variance_of` over users at test, from their own metrics: older summaries have only full."""
        found = fairness(self.values)
        return found if candidates == "full" else dict(found[candidates])


def completed_summary(path: Path) -> dict[str, Any]:
    """The summary of a completed run.

    Raises:
        DataError: there is no run, or it is not finished.
    """
    summary = RunDirectory(path).read_summary()
    if summary.get("status") != "completed":
        raise DataError(f"{path} is not finished: its status is '{summary.get('status')}'.")
    return summary


def finished(path: Path) -> Finished:
    """Read a completed run, or a kept cell, which is a file.

    Raises:
        DataError: there is no run, it is not finished, or its files are damaged.
    """
    if path.is_file():
        cell = read_cell(path)
        settings = RunConfig().to_flat() | dict(cell.settings)
        return Finished(str(path), settings, cell.summary, cell.users, cell.values.astype(np.float64))
    directory = RunDirectory(path)
    summary = completed_summary(path)
    users, values = directory.read_users()
    order = np.argsort(users)
    # A setting that is younger than the run had its default.
    settings = RunConfig().to_flat() | directory.read_config()
    return Finished(str(path), settings, summary, users[order], values[order].astype(np.float64))


def require_same_data(first: Finished, other: Finished) -> None:
    """Refuse runs whose users cannot be compared one by one.

    Raises:
        ConfigError: data or split differ; the sentence says in what.
    """
    sentence = f"{other.name} cannot be compared with {first.name}"
    for key in PROTOCOL_KEYS:
        mine, theirs = first.settings.get(key), other.settings.get(key)
        if mine != theirs:
            raise ConfigError(f"{sentence}: '{key}' is {theirs!r} in the one and {mine!r} in the other.")
    for count in ("users", "items", "interactions"):
        mine, theirs = first.summary[count], other.summary[count]
        if mine != theirs:
            raise ConfigError(f"{sentence}: the one has {theirs:,} {count} and the other {mine:,}.")
    if not np.array_equal(first.users, other.users):
        raise ConfigError(f"{sentence}: their users are not the same.")


@dataclass(frozen=True, eq=False)
class Compared:
    """A finished run, or several that differ in nothing but the seed.

    Attributes:
        name: the folder, as it was given.
    """

    name: str
    runs: Sequence[Finished]

    @property
    def first(self) -> Finished:
        return self.runs[0]

    def mean(self, candidates: str, metric: str) -> float:
        """At test, over users and seeds."""
        return float(np.mean([run.summary["test"][candidates][metric] for run in self.runs]))

    def error(self, candidates: str, metric: str) -> float:
        """Standard error of that over users, each user's seeds averaged."""
        if len(self.runs) == 1:
            found = self.first.summary["standard_error"]["test"][candidates][metric]
            return float("nan") if found is None else float(found)
        return user_error(self.sample(candidates, metric).values.mean(axis=0))

    def sample(self, candidates: str, metric: str) -> Sample:
        """One metric at test."""
        values = np.stack([run.per_user(candidates, metric) for run in self.runs])
        return Sample(values, all(run.seedless for run in self.runs))


def compared(paths: Sequence[Path], name: str = "") -> Compared:
    """Read a completed run, or several of one method; a folder of folders `seed-…`, as tables have, stands for all.

    Raises:
        ConfigError: they differ in more than the seed.
        DataError: as `finished`.
    """
    folders = [folder for path in paths for folder in (sorted(path.glob("seed-*")) or [path])]
    runs = [finished(folder) for folder in folders]
    for run in runs[1:]:
        _require_same_method(runs[0], run)
        require_same_data(runs[0], run)
    return Compared(name or str(paths[0]), runs)


def _require_same_method(first: Finished, other: Finished) -> None:
    sentence = f"{other.name} and {first.name} are not one method under two seeds"
    for key in sorted((first.settings.keys() | other.settings.keys()) - CIRCUMSTANCES - {"seed"}):
        mine, theirs = first.settings.get(key), other.settings.get(key)
        if mine != theirs:
            raise ConfigError(f"{sentence}: '{key}' is {theirs!r} in the one and {mine!r} in the other.")
    if first.summary["strategy"] != other.summary["strategy"]:
        raise ConfigError(f"{sentence}: {other.summary['strategy']} and {first.summary['strategy']}.")
    if first.summary["seed"] == other.summary["seed"]:
        raise ConfigError(f"{sentence}: both have seed {first.summary['seed']}.")


def user_error(values: NDArray[np.float64]) -> float:
    """Standard error of the mean over the evaluated users of [n]; NaN below 2 users."""
    values = values[~np.isnan(values)]
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


def how_tested(tests: Sequence[tuple[PairedDifference, float]]) -> str:
    """What tests are over, in words."""
    counted = [difference.counts_seeds for difference, _ in tests]
    if all(counted):
        return "a test over users and seeds"
    return "over users and seeds where both have several" if any(counted) else "a sign-flip test over users only"


def differences_of(pairs: Sequence[tuple[Sample, Sample]]) -> list[tuple[PairedDifference, float]]:
    """The first minus the second of each pair, with p-values adjusted for the number of pairs (Holm).

    Args:
        pairs: [seeds, n] each, in the same order of users. A user that one of the runs does not evaluate (its node
            failed in that round) is left out of the pair's test.
    Raises:
        DataError: two methods evaluate no user in common.
    """
    results = []
    for row, reference in pairs:
        both = ~(np.isnan(row.values).any(axis=0) | np.isnan(reference.values).any(axis=0))
        if not both.any():
            raise DataError("Two of these runs have no evaluated user in common.")
        seedless = (row.seedless, reference.seedless)
        results.append(seeded_test(row.values[:, both], reference.values[:, both], seedless=seedless))
    adjusted = holm([result.p_value for result in results])
    return list(zip(results, adjusted.tolist(), strict=True))
