"""The history file of one person: events out of a CSV that grows while it is read.

Nobody looks after such a file: programs append to it, and disks fill up in the middle of a line. So a line that cannot
be read costs that line and no other.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from bouquet.errors import DataError

# A quoted text may hold line breaks, but one that never closes must not swallow the rest of the file.
_MOST_LINES = 20


@dataclass(frozen=True)
class LeftOut:
    """Lines of a history that cannot be read.

    Attributes:
        count: how many.
        line: number of the first, from 1; the header counts.
        reason: what is wrong with it. It does not quote the line: a server may get to see it.
    """

    path: Path
    count: int
    line: int
    reason: str

    def __str__(self) -> str:
        if self.count == 1:
            return f"1 line of {self.path} cannot be read and is left out: line {self.line}: {self.reason}."
        return (
            f"{self.count} lines of {self.path} cannot be read and are left out; the first is line {self.line}: "
            f"{self.reason}."
        )


def read_events(
    path: Path, item_column: str = "item", time_column: str = "", on_left_out: Callable[[LeftOut], None] | None = None
) -> list[tuple[float, str]]:
    """Time and item of every line of a history file that can be read, in the order of the file.

    A last line without its end is being written at this moment, and counts from the next time on.

    Args:
        path: CSV with a header, UTF-8.
        time_column: numbers or ISO 8601 dates; "": a column `time` if there is one, else the number of the line counts
            as the time.
        on_left_out: told of lines that cannot be read, once, if there are any.
    Raises:
        DataError: the file is missing, has no such column, or has lines and none of them can be read.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error}).") from None
    lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")[:-1]
    columns = _columns(lines[0]) if lines else []
    time_column = time_column or ("time" if "time" in columns else "")
    for column in filter(None, (item_column, time_column)):
        if column not in columns:
            raise DataError(f"{path} has no column '{column}', only {', '.join(columns) or 'nothing'}.")
    events: list[tuple[float, str]] = []
    bad: list[tuple[int, str]] = []
    for number, fields in _records(lines):
        try:
            time, item = _event(fields, columns, item_column, time_column)
            events.append((float(number) if time is None else time, item))
        except ValueError as error:
            bad.append((number, str(error)))
    if bad:
        left_out = LeftOut(path, len(bad), *bad[0])
        if not events:
            raise DataError(f"{path} has no line that can be read; line {left_out.line}: {left_out.reason}.")
        if on_left_out:
            on_left_out(left_out)
    return events


def _columns(header: bytes) -> list[str]:
    try:
        return _fields([header])
    except ValueError:
        return []


def _records(lines: list[bytes]) -> Iterator[tuple[int, list[str] | ValueError]]:
    """The fields of every line after the header, or why there are none, with the line's number from 1."""
    place = 1
    while place < len(lines):
        taken = 1
        fields: list[str] | ValueError
        try:
            fields = _fields(lines[place : place + 1])
        except _Open as error:
            fields = error
            for count in range(2, min(_MOST_LINES, len(lines) - place) + 1):
                try:
                    fields, taken = _fields(lines[place : place + count]), count
                    break
                except _Open:
                    continue
                except ValueError:
                    break
        except ValueError as error:
            fields = error
        if fields:
            yield place + 1, fields
        place += taken


class _Open(ValueError):
    """A quoted text goes on after the last line."""


def _fields(lines: list[bytes]) -> list[str]:
    """Raises: ValueError: they are no CSV; _Open: they may be with more lines."""
    try:
        texts = [line.decode() for line in lines]
    except UnicodeDecodeError:
        raise ValueError("its bytes are no UTF-8") from None
    try:
        rows = list(csv.reader([text.removesuffix("\r") + "\n" for text in texts], strict=True))
    except csv.Error as error:
        if "unexpected end of data" in str(error):
            raise _Open("a quotation mark is not closed") from None
        raise ValueError("its quotation marks, or its length, are not those of a CSV") from None
    return rows[0] if len(rows) == 1 else []


def _event(
    fields: list[str] | ValueError, columns: list[str], item_column: str, time_column: str
) -> tuple[float | None, str]:
    """Time and item of a line; no time where there is no such column. Raises: ValueError: it cannot be read."""
    if isinstance(fields, ValueError):
        raise fields
    if len(fields) != len(columns):
        raise ValueError(f"it has {len(fields)} fields, and the header {len(columns)}")
    row = dict(zip(columns, fields, strict=True))
    item = row[item_column].strip()
    if not item:
        raise ValueError("it has no item")
    return (_time(row[time_column]) if time_column else None), item


def _time(text: str) -> float:
    try:
        time = float(text)
    except ValueError:
        try:
            time = datetime.fromisoformat(text.strip()).timestamp()
        except (ValueError, OverflowError, OSError):
            time = math.nan
    if math.isnan(time):
        raise ValueError("its time is neither a number nor an ISO 8601 date")
    return time
