"""`bouquet compare` and `bouquet report`: what finished runs reached, and whether they differ.

Two runs are compared user by user, so they must have hidden the same items of the same users.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from bouquet.cli.screen import Screen
from bouquet.cli.settings import option_classes, read_config_file
from bouquet.config import Scalar, defaults, lookup
from bouquet.errors import ConfigError, DataError
from bouquet.evaluation import CANDIDATE_SETS, METRICS, PairedDifference, holm, metric_values, paired_test
from bouquet.randomness import Words
from bouquet.reporting.run_directory import RunDirectory

# What decides which item of whom is hidden. Where the files lie and how they are called does not.
PROTOCOL_KEYS = ("dataset", "min-interactions", "split", "hold-out", "split-seed")
SHOWN = (("full", "HR@10"), ("full", "NDCG@10"), ("sampled-99", "HR@10"), ("sampled-99", "NDCG@10"))
WIDTH_WITHOUT_TERMINAL = 200


@dataclass(frozen=True, eq=False)
class Finished:
    """A completed run.

    Attributes:
        name: its folder, as it was given.
        settings: its configuration.
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
    settings = defaults(option_classes()) | read_config_file(directory.config)
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


def compare_command(paths: Sequence[Path], metric: str, candidates: str) -> None:
    """Print finished runs side by side, and paired tests of each against the first.

    Raises:
        ConfigError: an unknown metric or candidate set, or runs on different data.
        DataError: a run is missing, unfinished or damaged.
    """
    lookup(dict.fromkeys(METRICS), "metric", metric)
    lookup(dict.fromkeys(CANDIDATE_SETS), "candidate set", candidates)
    runs = [finished(path) for path in paths]
    for other in runs[1:]:
        require_same_data(runs[0], other)
    console = wide_console()
    data, settings = runs[0].summary, runs[0].settings
    console.print(
        f"{settings['dataset']}: {data['users']:,} users, {data['items']:,} items, {data['interactions']:,} "
        f"interactions; split {settings['split']}, hold-out {settings['hold-out']}. ± is one standard error over users."
    )
    shown = dict.fromkeys([*SHOWN, (candidates, metric)])
    console.print("\nHow good, on the test part of the round that is best on validation\n")
    console.print(_quality(runs, list(shown)))
    console.print("\nAt what cost (per user and round), and how unequally (variance over users, full)\n")
    console.print(_costs(runs))
    if runs[1:]:
        console.print(
            f"\nDifference to run 1 in {metric} ({candidates}), user by user "
            f"(sign-flip test, p adjusted for {len(runs) - 1} tests)\n"
        )
        console.print(_differences(runs, candidates, metric))


def report_command(path: Path) -> None:
    """Print the table of a finished run again.

    Raises:
        DataError: there is no run, it is not finished, or it has no rounds.
    """
    if not completed_summary(path).get("federated", True):
        raise DataError(f"{path} holds a centralised row and no federated run; look at it with bouquet compare {path}.")
    Screen().table(RunDirectory(path))


def wide_console() -> Console:
    """A console that does not fold tables where nobody reads them on a terminal."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL)


def figure(value: float | None, digits: int = 3) -> str:
    """A metric in three digits, or more: '.123', '–' where there is none."""
    if value is None or np.isnan(value):
        return "–"
    text = f"{abs(value):.{digits}f}".removeprefix("0")
    return f"−{text}" if value < 0 and float(text) > 0 else text


def probability(value: float) -> str:
    """A p-value in three digits."""
    return "<.001" if value < 0.001 else figure(value)


def kilobytes(count: float | None) -> str:
    """A number of bytes, in KB."""
    return "–" if count is None else f"{count / 1000:,.1f} KB"


def table_of(*columns: str, left: int) -> Table:
    """An empty table whose first `left` columns are text and the others figures."""
    table = Table(box=None, pad_edge=False, header_style="", padding=(0, 2, 0, 0))
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place < left else "right")
    return table


def _quality(runs: Sequence[Finished], shown: Sequence[tuple[str, str]]) -> Table:
    headings = [metric if kind == "full" else f"{metric} of 100" for kind, metric in shown]
    table = table_of("", "run", "method", "backbone", "seed", "negatives", "best round", *headings, left=4)
    for number, run in enumerate(runs, start=1):
        errors = run.summary["standard_error"]["test"]
        table.add_row(
            str(number),
            run.name,
            _method(run.summary),
            str(run.summary.get("backbone") or "–"),
            str(run.summary["seed"]),
            _negatives(run.summary),
            str(run.summary.get("best_round") or "–"),
            *(
                f"{figure(run.summary['test'][kind][metric])} ± {figure(errors[kind][metric])}"
                for kind, metric in shown
            ),
        )
    return table


def _costs(runs: Sequence[Finished]) -> Table:
    table = table_of("", "run", "down", "up", "seconds per round", "of HR@10", "of NDCG@10", left=2)
    for number, run in enumerate(runs, start=1):
        size = run.summary.get("bytes", {})
        seconds = run.summary.get("seconds", {}).get("per_round")
        variance = run.summary["fairness"]["variance_of"]
        table.add_row(
            str(number),
            run.name,
            kilobytes(size.get("down_per_user_round")),
            kilobytes(size.get("up_per_user_round")),
            "–" if seconds is None else f"{seconds:.2f}",
            figure(variance["HR@10"]),
            figure(variance["NDCG@10"]),
        )
    return table


def _differences(runs: Sequence[Finished], candidates: str, metric: str) -> Table:
    table = table_of("", "run", "difference", "p", "users", left=2)
    first, *others = [run.per_user(candidates, metric) for run in runs]
    for number, (difference, adjusted) in enumerate(paired_tests(first, others), start=2):
        table.add_row(
            str(number),
            runs[number - 1].name,
            f"{figure(difference.mean)} ± {figure(difference.standard_error)}",
            probability(adjusted),
            str(difference.users),
        )
    return table


def _method(summary: Mapping[str, Any]) -> str:
    if not summary.get("federated", True):
        return f"{summary['strategy']}, all data pooled"
    personalization = summary.get("personalization", "none")
    return str(summary["strategy"]) if personalization == "none" else f"{summary['strategy']} + {personalization}"


def _negatives(summary: Mapping[str, Any]) -> str:
    words = str(summary.get("train_negatives") or "–")
    return f"{words}, LEAKY" if summary["leaky"] else words
