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
from bouquet.experiments.figures import figure, kilobytes
from bouquet.experiments.latex import comment, tabular
from bouquet.experiments.settings import literal, parse_pairs
from bouquet.experiments.table_cells import Cell
from bouquet.experiments.table_csv import csv_of, printed_figure
from bouquet.experiments.table_figure import CSV, PNG, write_figure
from bouquet.experiments.table_file import Row, TableFile
from bouquet.experiments.table_protocol import protocol
from bouquet.experiments.table_results import Column, RowResult, row_results
from bouquet.experiments.table_tests import how_tested, row_tests, test_tables
from bouquet.files import write_atomically
from data_partition import caution_of

Lines = tuple[list[str], list[list[str]]]
"""header and rows"""


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
    parts = [f"# {table.title}", protocol(table, results), main]
    parts += _notes(table, results)
    by_name = {cell.row.name: cell for cell in cells}
    trained = [(result.title, by_name[result.row.name]) for result in results if not result.row.centralized]
    searched = [(title, cell) for title, cell in trained if not cell.row.variant_of]
    parts += sentences((title, cell.chosen, cell.settings) for title, cell in searched)
    if len(searched) < len(trained):
        parts.append(_variants(table, [cell.row for _, cell in trained if cell.row.variant_of]))
    # Of a paper's table what stands around it is the paper's; whoever has the file alone still finds it there.
    in_latex = [comment(f"{table.title}\n{protocol(table, results)}"), tabular(header, lines)]
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
