"""`bouquet compare` and `bouquet report`: what finished runs reached, and whether they differ.

Two runs are compared user by user, so they must have hidden the same items of the same users.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bouquet.cli.screen import LABELS, Screen
from bouquet.config import lookup
from bouquet.errors import ConfigError, DataError
from bouquet.evaluation import CANDIDATE_SETS, METRICS, PairedDifference
from bouquet.experiments.comparison import (
    Compared,
    compared,
    completed_summary,
    differences_of,
    how_tested,
    require_same_data,
)
from bouquet.experiments.figures import figure, kilobytes, probability
from bouquet.reporting.run_directory import RunDirectory

SHOWN = (("full", "HR@10"), ("full", "NDCG@10"), ("sampled-99", "HR@10"), ("sampled-99", "NDCG@10"))
WIDTH_WITHOUT_TERMINAL = 200


def compare_command(paths: Sequence[Path], metric: str, candidates: str) -> None:
    """Print finished runs side by side, and paired tests of each against the first.

    Raises:
        ConfigError: an unknown metric or candidate set, or runs on different data.
        DataError: a run is missing, unfinished or damaged.
    """
    lookup(dict.fromkeys(METRICS), "metric", metric)
    lookup(dict.fromkeys(CANDIDATE_SETS), "candidate set", candidates)
    runs = [compared([path]) for path in paths]
    for other in runs[1:]:
        require_same_data(runs[0].first, other.first)
    console = wide_console()
    data, settings = runs[0].first.summary, runs[0].first.settings
    console.print(
        f"{settings['dataset']}: {data['users']:,} users, {data['items']:,} items, {data['interactions']:,} "
        f"interactions; split {settings['split']}, hold-out {settings['hold-out']}, "
        f"test-history {settings['test-history']}. ± is one standard error over users."
    )
    Screen(console).caution(str(settings["dataset"]))
    shown = dict.fromkeys([*SHOWN, (candidates, metric)])
    console.print("\nHow good, on the test part of the round that is best on validation\n")
    console.print(_quality(runs, list(shown)))
    console.print("\nAt what cost (per user and round), and how unequally (variance over users)\n")
    console.print(_costs(runs))
    if runs[1:]:
        tests = tests_against_first(runs, candidates, metric)
        console.print(
            f"\nDifference to run 1 in {metric} ({candidates}), user by user "
            f"({how_tested(tests)}, p adjusted for {len(runs) - 1} tests)\n"
        )
        console.print(differences(runs, tests))


def report_command(path: Path) -> None:
    """Print the table of a finished run again.

    Raises:
        DataError: there is no run, it is not finished, or it has no rounds.
    """
    summary = completed_summary(path)
    if not summary.get("federated", True) and not summary.get("foreign"):
        raise DataError(f"{path} holds a centralized row and no federated run; look at it with bouquet compare {path}.")
    Screen().table(RunDirectory(path))


def page_command(paths: Sequence[Path], out: Path, examples: int) -> None:
    """Write finished runs as one HTML page.

    Raises:
        ConfigError: the runs are on different data, or the page would replace a file of a run.
        DataError: a run is missing, unfinished or damaged.
    """
    from bouquet.experiments.page.page import write_page

    if out.is_dir():
        raise ConfigError(f"{out} is a folder; --html takes the name of a file, such as {out / 'report.html'}.")
    write_page(paths, out, LABELS, examples)
    print(f"Written: {out}")


def wide_console() -> Console:
    """A console that does not fold tables where nobody reads them on a terminal."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL)


def table_of(*columns: str, left: int) -> Table:
    """An empty table whose first `left` columns are text and the others figures."""
    table = Table(box=None, pad_edge=False, header_style="", padding=(0, 2, 0, 0))
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place < left else "right")
    return table


def _quality(runs: Sequence[Compared], shown: Sequence[tuple[str, str]]) -> Table:
    headings = [metric if kind == "full" else f"{metric} of 100" for kind, metric in shown]
    table = table_of("", "run", "method", "backbone", "seed", "negatives", "best round", *headings, left=4)
    for number, run in enumerate(runs, start=1):
        summary = run.first.summary
        table.add_row(
            str(number),
            run.name,
            _method(summary),
            _or_dash(summary.get("backbone")),
            ", ".join(_or_dash(one.summary.get("seed")) for one in run.runs),
            _negatives(summary),
            ", ".join(_or_dash(one.summary.get("best_round")) for one in run.runs),
            *(f"{figure(run.mean(*column))} ± {figure(run.error(*column))}" for column in shown),
        )
    return table


def _costs(runs: Sequence[Compared]) -> Table:
    headings = [f"{metric} of 100" if kind != "full" else metric for kind, metric in SHOWN]
    table = table_of("", "run", "down", "up", "seconds per round", *(f"of {name}" for name in headings), left=2)
    for number, run in enumerate(runs, start=1):
        size = run.first.summary.get("bytes", {})
        seconds = run.first.summary.get("seconds", {}).get("per_round")
        table.add_row(
            str(number),
            run.name,
            kilobytes(size.get("down_per_user_round")),
            kilobytes(size.get("up_per_user_round")),
            "–" if seconds is None else f"{seconds:.2f}",
            *(figure(run.first.fairness(kind)["variance_of"][metric]) for kind, metric in SHOWN),
        )
    return table


def tests_against_first(runs: Sequence[Compared], candidates: str, metric: str) -> list[tuple[PairedDifference, float]]:
    """Each run but the first minus the first, user by user.

    Raises:
        DataError: two runs evaluate no user in common.
    """
    first, *others = [run.sample(candidates, metric) for run in runs]
    return differences_of([(other, first) for other in others])


def differences(runs: Sequence[Compared], tests: Sequence[tuple[PairedDifference, float]]) -> Table:
    """What came of `tests_against_first`."""
    table = table_of("", "run", "difference", "95 % interval", "p", "users", left=2)
    for number, (difference, adjusted) in enumerate(tests, start=2):
        low, high = difference.interval
        table.add_row(
            str(number),
            runs[number - 1].name,
            f"{figure(difference.mean)} ± {figure(difference.standard_error)}",
            f"{figure(low)} to {figure(high)}",
            probability(adjusted),
            str(difference.users),
        )
    return table


def _or_dash(value: object) -> str:
    return "–" if value is None else str(value)


def _method(summary: Mapping[str, Any]) -> str:
    if summary.get("foreign"):
        return f"{summary['strategy']}, scores of another program"
    if not summary.get("federated", True):
        return f"{summary['strategy']}, all data pooled"
    personalization = summary.get("personalization", "none")
    return str(summary["strategy"]) if personalization == "none" else f"{summary['strategy']} + {personalization}"


def _negatives(summary: Mapping[str, Any]) -> str:
    words = str(summary.get("train_negatives") or "–")
    return f"{words}, LEAKY" if summary["leaky"] else words
