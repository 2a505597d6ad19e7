"""From finished cells to `table.md`, `table.csv` and `table.tex`.

All are functions of the cells alone: no times of day, no seconds, so that a table that was run again can be
compared with the old one line by line.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bouquet.errors import DataError
from bouquet.evaluation import CANDIDATE_SETS
from bouquet.experiments.baselines import VALIDATION_USERS
from bouquet.experiments.chosen import sentences
from bouquet.experiments.comparison import Finished
from bouquet.experiments.figures import figure, kilobytes
from bouquet.experiments.latex import comment, tabular
from bouquet.experiments.settings import literal, parse_pairs
from bouquet.experiments.table_cells import Cell
from bouquet.experiments.table_csv import csv_of, printed_figure
from bouquet.experiments.table_figure import CSV, PNG, write_figure
from bouquet.experiments.table_file import Row, TableFile
from bouquet.experiments.table_results import Column, RowResult, row_results
from bouquet.experiments.table_tests import how_tested, row_tests, test_tables
from bouquet.files import write_atomically
from data_partition import DATASETS, caution_of, has_time

Lines = tuple[list[str], list[list[str]]]
"""header and rows"""

HOLD_OUTS = {
    "last": "the last interaction of each user in time is for test, the one before for validation",
    "random": "one random interaction of each user is for test and one for validation",
    "last-row": "the last row of each user in the file is for test, the one before for validation, which LEAKS where "
    "the order of rows tells the future",
}
READ_AT_TEST = {
    "known": "all that is known by then, the validation item too",
    "training": "the training items alone",
}
SHARES = {
    "ratio": "a random fifth of each user's interactions is for test, {share} of the rest for validation",
    "published": "what those who published the set hold out is for test, {share} of each user's others for validation",
}


def write_table(table: TableFile, cells: Sequence[Cell], out: Path, command: str) -> str:
    """Write `table.md`, `table.csv` and `table.tex` from the rows all of whose cells are complete.

    Args:
        command: what makes this table again.
    Returns:
        The main part of `table.md`: the figures, and what must stand beside them.
    Raises:
        ConfigError: cells hold different data.
        DataError: no row is complete, or a cell's files are damaged.
    """
    results = row_results(table, cells)
    if not results:
        raise DataError(f"No row of the table in {out} is complete.")
    columns = [(candidates, metric) for candidates in table.candidates for metric in table.metrics]
    tests = row_tests(table, results, columns)
    header, lines = _main_table(results, columns, table.extra, table.digits)
    main = markdown(header, lines)
    if caution := caution_of(str(results[0].runs[0].settings["dataset"])):
        main += f"\n\n**Caution.** {caution}"
    parts = [f"# {table.title}", _protocol(table, results), main]
    parts += _notes(table, results)
    by_name = {cell.row.name: cell for cell in cells}
    trained = [(result.title, by_name[result.row.name]) for result in results if not result.row.centralized]
    searched = [(title, cell) for title, cell in trained if not cell.row.variant_of]
    parts += sentences((title, cell.chosen, cell.settings) for title, cell in searched)
    if len(searched) < len(trained):
        parts.append(_variants(table, [cell.row for _, cell in trained if cell.row.variant_of]))
    # Of a paper's table what stands around it is the paper's; whoever has the file alone still finds it there.
    in_latex = [comment(f"{table.title}\n{_protocol(table, results)}"), tabular(header, lines)]
    if table.figure is not None and (drawn := write_figure(table, results, columns, out)):
        axis = table.figure.axis
        picture = f"![Metrics by {axis}]({PNG})\n\n" if out / PNG in drawn else ""
        parts.append(f"{picture}The points of the figure, metrics by {axis}, are in {CSV}.")
    if tests:
        for sentence, header, lines in test_tables(table, results, tests):
            parts.append(f"{sentence}\n\n{markdown(header, lines)}")
            in_latex += [comment(sentence), tabular(header, lines)]
        parts.append(how_tested(tests))
        in_latex.append(comment(how_tested(tests)))
    parts.append(f"Made with:\n\n```\n{command}\n```")
    write_atomically(out / "table.csv", csv_of(table, results, columns, tests))
    write_atomically(out / "table.tex", "\n\n".join([*in_latex, comment(f"Made with: {command}")]) + "\n")
    write_atomically(out / "table.md", "\n\n".join(parts) + "\n")
    return main


def command_line(file: Path, out: Path, overrides: Sequence[str], command: str = "table") -> str:
    """What makes the table again, on any machine: without the place of the data."""
    here = Path.cwd()
    shown = file.absolute().relative_to(here) if file.absolute().is_relative_to(here) else file
    words = ["bouquet", command, str(shown), "--out", str(out)]
    for text in overrides:
        pairs = {key: value for key, value in parse_pairs(text).items() if key != "data-dir"}
        if pairs:
            words += ["-c", " ".join(f"{key}={literal(value)}" for key, value in pairs.items())]
    return shlex.join(words)


def _protocol(table: TableFile, results: Sequence[RowResult]) -> str:
    first = results[0].runs[0]
    data, settings = first.summary, first.settings
    rule = rule_of(first)
    negatives = {
        run.summary["train_negatives"] for result in results for run in result.runs if not result.row.centralized
    }
    least = settings["min-interactions"]
    dropped = f" ({data['dropped_users']:,} users with fewer than {least} items are left out)" if least else ""
    sample = " (a random sample of users)" if settings["max-users"] else ""
    words = [
        f"{_title_of(str(settings['dataset']))}: {data['users']:,} users, {data['items']:,} items, "
        f"{data['interactions']:,} interactions{sample}{dropped}.",
        f"Split {settings['split']}: {rule} (split seed {settings['split-seed']}).",
        *_share_kept(results),
        f"At test, models that read a history have read {READ_AT_TEST[str(settings['test-history'])]}.",
        "Candidates: " + "; ".join(_candidates(name, settings["repeats"] == "keep") for name in table.candidates) + ".",
    ]
    if "honest" in negatives:
        words.append("Training negatives: honest, any item but the user's own training items.")
    if "paper" in negatives:
        words.append(
            "Rows marked LEAKY draw training negatives from the items that a user never touches, hidden items "
            "excluded, as published codes do: the hidden item is then the one that is never trained as a negative."
        )
    own = "".join(
        f"; {result.row.title}: {', '.join(map(str, result.row.seeds))} alone"
        for result in results
        if result.row.seeds and result.row.seeds != table.seeds
    )
    words.append(
        f"Seeds {', '.join(map(str, table.seeds))}{own}; the reported round is the best on validation (NDCG@10, full)."
    )
    if table.part == "validation":
        words.append(
            "All figures are those of the validation items, which settings are chosen by, not of the test items."
        )
    words.append(
        "Figures are means over users and seeds, ± one standard error over seeds; rows that do not depend on a seed "
        "have none."
    )
    return "\n".join(words)


def _share_kept(results: Sequence[RowResult]) -> list[str]:
    """A sentence about rows that learn from less than there is, if there are any."""
    shares = {result.title: float(result.runs[0].settings.get("training-share", 1.0)) for result in results}
    fewer = {share for share in shares.values() if share < 1}
    if not fewer:
        return []
    whose = "in all rows" if len(set(shares.values())) == 1 else "in rows whose name says so"
    percent = " or ".join(f"{100 * share:g} %" for share in sorted(fewer))
    return [
        f"Of each user's training items a share of {percent} is kept {whose}, drawn at random, at least "
        "one; the others are neither learned from nor candidates."
    ]


def _candidates(name: str, repeats: bool) -> str:
    if name == "full" and repeats:
        return "full = all items, also those that the user is known to have, because users come back to items"
    if name == "full":
        return "full = all items but those that the user is known to have"
    return f"{name} = the hidden item and {name.removeprefix('sampled-')} random items that the user never touched"


def rule_of(run: Finished) -> str:
    """What is held out, in words."""
    if shares := SHARES.get(str(run.settings["split"])):
        share = float(run.settings["validation-share"])
        return shares.format(share="a tenth" if share == 0.1 else f"{100 * share:g} %" if share else "nothing")
    return HOLD_OUTS[_hold_out(run)]


def _hold_out(run: Finished) -> str:
    settings = run.settings
    if settings["hold-out"] != "auto":
        return str(settings["hold-out"])
    name = str(settings["dataset"])
    return "last" if has_time(name, str(settings["time-column"])) else "random"


def _title_of(dataset: str) -> str:
    return DATASETS[dataset].title if dataset in DATASETS else dataset


EXTRA = {
    "fairness": [f"variance over users, {candidates}" for candidates in CANDIDATE_SETS],
    "traffic": ["bytes to the best round, training + evaluation"],
    "groups": ["by group, smallest data first"],
    "collapse": ["variance of singular values"],
    "movement": ["private tables moved by"],
    "exposure": ["ER@5 of the target", "ER@10"],
}


def _main_table(results: Sequence[RowResult], columns: Sequence[Column], extra: Sequence[str], digits: int) -> Lines:
    printed = {column for column in columns for result in results if printed_figure(result.row, column) is not None}
    private = any(result.spent() for result in results)
    header = [""]
    for candidates, metric in columns:
        header.append(f"{metric}, {candidates}")
        header += ["printed"] * ((candidates, metric) in printed)
    header += [
        "best round",
        *["ε"] * private,
        "down per user and round",
        "up",
        *(heading for name in EXTRA if name in extra for heading in EXTRA[name]),
    ]
    lines = []
    for result in results:
        line = [result.title]
        for column in columns:
            line.append(_with_error(float(result.by_seed(column).mean()), result.seed_error(column), digits))
            if column in printed:
                line.append(figure(printed_figure(result.row, column), digits))
        line.append(result.best_rounds() or "–")
        if private:
            spent = result.spent()
            line.append(f"{spent[0]:.3g}" if spent else "–" if result.row.centralized else "∞")
        line += [kilobytes(result.bytes("down")), kilobytes(result.bytes("up"))]
        if "fairness" in extra:
            line += [figure(result.fairness(candidates)) for candidates in CANDIDATE_SETS]
        if "traffic" in extra:
            line.append(" + ".join(_megabytes(result.traffic(part)) for part in ("training", "evaluation")))
        if "groups" in extra:
            line.append(" / ".join(figure(value, digits) for value in result.by_group(columns[-1][1])) or "–")
        if "collapse" in extra:
            variance = result.singular_variance()
            line.append("–" if variance is None else f"{variance:.3g}")
        if "movement" in extra:
            line.append(" / ".join(_percent(value) for value in result.movement().values()) or "–")
        if "exposure" in extra:
            found = [result.exposure(name) for name in ("ER@5", "ER@10")]
            line += ["–" if value is None else figure(value, digits) for value in found]
        lines.append(line)
    return header, lines


def _variants(table: TableFile, rows: Sequence[Row]) -> str:
    """Which rows have the settings of another one, and what of them is theirs."""
    titles = {row.name: row.title for row in table.rows}
    words = [
        f"{row.title} ({titles[row.variant_of]} with "
        f"{', '.join(f'{key} = {literal(value)}' for key, value in row.settings.items())})"
        for row in rows
    ]
    return f"One thing changed, and nothing searched anew: {'; '.join(words)}."


def _notes(table: TableFile, results: Sequence[RowResult]) -> list[str]:
    by_source: dict[str, list[str]] = {}
    for result in results:
        if result.row.printed:
            by_source.setdefault(result.row.printed_source or "source not given", []).append(result.row.title)
    complete = {result.row.name for result in results}
    notes = [f"Printed figures of {', '.join(titles)}: {source}." for source, titles in by_source.items()]
    shown = {result.row.name for result in results if result.row.printed}
    if any(row.printed for row in table.rows if row.name in complete - shown):
        notes.append("The printed figures in this table's file are of another data set, and left out.")
    chosen = [f"{result.title}: {words}" for result in results if (words := result.chosen())]
    if chosen:
        notes.append(
            f"Chosen by NDCG@10 (full) on the validation items, of at most {VALIDATION_USERS:,} users drawn at random: "
            f"{'; '.join(chosen)}."
        )
    if diverged := [f"{result.title} ({words})" for result in results if (words := result.diverged())]:
        notes.append(f"Training diverged, and the best round before it is reported: {', '.join(diverged)}.")
    if deltas := sorted({f"{spent[1]:.3g}" for result in results if (spent := result.spent())}):
        notes.append(
            f"ε: of all that the server publishes, to add or remove one user, at δ = {' or '.join(deltas)}; such "
            "rows report their last round, and their metrics were measured outside the budget. ∞: no noise."
        )
    if any(result.movement() for result in results) and "movement" in table.extra:
        notes.append(
            "Private tables moved by: distance of a user's own item table after its last training from where it began, "
            "over the norm of that; mean over users and over seeds that did not diverge."
        )
    # By the names that --only takes: a row with leaky negatives often has the label of an honest one.
    missing = [row.name for row in table.rows if row.name not in complete]
    if missing:
        notes.append(f"Not there yet: {', '.join(missing)}.")
    return notes


def _with_error(value: float, error: float, digits: int) -> str:
    return figure(value, digits) if np.isnan(error) else f"{figure(value, digits)} ± {figure(error, digits)}"


def _percent(value: float) -> str:
    return f"{100 * value:.3g} %"


def _megabytes(value: float | None) -> str:
    return "–" if value is None else f"{value / 1e6:,.1f} MB"


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table whose source is aligned too, so that it reads well in a terminal."""
    widths = [max(3, *(len(line[place]) for line in [header, *lines])) for place in range(len(header))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]

    def text(line: Sequence[str]) -> str:
        first, *others = line
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))]
        return f"| {' | '.join(cells)} |"

    return "\n".join(text(line) for line in [header, rule, *lines])
