"""The history file of one person: items, oldest first, out of a CSV that grows while it is read."""

from __future__ import annotations

import csv
from datetime import datetime
from pathlib import Path

from bouquet.errors import DataError


def read_history(path: Path, item_column: str = "item", time_column: str = "") -> list[str]:
    """The distinct items of a history file, oldest first.

    A last line without its end is being written at this moment, and counts from the next time on.

    Args:
        path: CSV with a header.
        time_column: numbers or ISO 8601 dates; "": a column `time` if there is one, else the order of the file.
    Raises:
        DataError: the file is missing or a line is broken; names the line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error}).") from None
    rows = csv.DictReader(text[: text.rfind("\n") + 1].splitlines())
    columns = list(rows.fieldnames or [])
    time_column = time_column or ("time" if "time" in columns else "")
    for column in filter(None, (item_column, time_column)):
        if column not in columns:
            raise DataError(f"{path} has no column '{column}', only {', '.join(columns) or 'nothing'}.")
    events: list[tuple[float, str]] = []
    for row in rows:
        item = (row[item_column] or "").strip()
        if not item:
            raise DataError(f"{path}, line {rows.line_num}: no item.")
        events.append((_time(path, rows.line_num, row[time_column]) if time_column else 0.0, item))
    return list(dict.fromkeys(item for _, item in sorted(events, key=lambda event: event[0])))


def _time(path: Path, line: int, text: str | None) -> float:
    try:
        return float(text or "")
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text or "").timestamp()
    except ValueError:
        raise DataError(f"{path}, line {line}: '{text}' is no time.") from None
