"""`table.csv`: every figure of a table in full digits, a line for each row, candidate set and metric."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

import numpy as np

from bouquet.experiments.table_file import Row, TableFile
from bouquet.experiments.table_results import Column, RowResult
from bouquet.experiments.table_tests import Tested, Tests


def csv_of(table: TableFile, results: Sequence[RowResult], columns: Sequence[Column], tests: Tests) -> str:
    """The file's text."""
    lines = [_csv_line(table, result, column, tests) for result in results for column in columns]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _csv_line(table: TableFile, result: RowResult, column: Column, tests: Tests) -> dict[str, str | int]:
    mine = {test.reference: test for test in tests.get(column, []) if test.row == result.row.name}
    candidates, metric = column
    return {
        "row": result.row.name,
        "label": result.row.title,
        "federated": str(not result.row.centralized).lower(),
        "leaky": str(result.leaky).lower(),
        "seeds": len(result.runs),
        "candidates": candidates,
        "metric": metric,
        "mean": _number(float(result.by_seed(column).mean())),
        "standard_error_seeds": _number(result.seed_error(column)),
        "standard_error_users": _number(result.user_error(column)),
        "printed": _number(printed_figure(result.row, column)),
        "printed_source": result.row.printed_source,
        **_csv_test("", mine.get(table.against)),
        "base": result.row.own_base,
        **_csv_test("base_", mine.get(result.row.own_base)),
        "best_rounds": result.best_rounds(),
        "bytes_down_per_user_round": _number(result.bytes("down")),
        "bytes_up_per_user_round": _number(result.bytes("up")),
        "bytes_training_to_best_round": _number(result.traffic("training")),
        "bytes_evaluation_to_best_round": _number(result.traffic("evaluation")),
    }


def _csv_test(prefix: str, test: Tested | None) -> dict[str, str]:
    low, high = test.difference.interval if test else (None, None)
    over = ("users and seeds" if test.difference.counts_seeds else "users") if test else ""
    return {
        f"{prefix}difference": _number(test.difference.mean if test else None),
        f"{prefix}difference_standard_error": _number(test.difference.standard_error if test else None),
        f"{prefix}difference_low": _number(low),
        f"{prefix}difference_high": _number(high),
        f"{prefix}p": _number(test.difference.p_value if test else None),
        f"{prefix}p_adjusted": _number(test.p_adjusted if test else None),
        f"{prefix}tested_over": over,
    }


def printed_figure(row: Row, column: Column) -> float | None:
    """What the paper prints of a column; None where it prints nothing."""
    candidates, metric = column
    return row.printed.get(candidates, {}).get(metric)


def _number(value: float | None) -> str:
    return "" if value is None or np.isnan(value) else f"{value:.6g}"
