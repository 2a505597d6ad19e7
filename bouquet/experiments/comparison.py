"""Finished runs, and whether two of them differ, user by user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.config import RunConfig, Scalar
from bouquet.errors import ConfigError, DataError
from bouquet.evaluation import PairedDifference, fairness, holm, metric_values, paired_test
from bouquet.randomness import Words
from bouquet.reporting.run_directory import RunDirectory

# What decides which item of whom is hidden, and what may be read. Where the files lie and how they are called does not.
PROTOCOL_KEYS = ("dataset", "min-interactions", "split", "validation-share", "hold-out", "split-seed", "test-history")


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
    """Read a completed run.

    Raises:
        DataError: there is no run, it is not finished, or its files are damaged.
    """
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


def paired_tests(
    first: NDArray[np.float64], others: Sequence[NDArray[np.float64]]
) -> list[tuple[PairedDifference, float]]:
    """Each of `others` minus `first`, with p-values adjusted for the number of tests (Holm).

    Args:
        first, others: [n] per-user values in the same order of users. A user that one of the two does not evaluate
            (its node failed in that round) is left out of their test.
    Raises:
        DataError: two runs evaluate no user in common.
    """
    results = []
    for values in others:
        both = ~(np.isnan(first) | np.isnan(values))
        if not both.any():
            raise DataError("Two of these runs have no evaluated user in common.")
        results.append(paired_test(values[both], first[both]))
    adjusted = holm([result.p_value for result in results])
    return list(zip(results, adjusted.tolist(), strict=True))
