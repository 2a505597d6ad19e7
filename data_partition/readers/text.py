"""Text files of rows: read fast, and where a line is broken, refused with its number.

pandas' C parser reads the file; it neither counts lines nor says in plain words what was wrong. So when it fails, or
its result looks suspicious, the file is read once more line by line, only to find the first broken line.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import numpy as np

from bouquet.errors import DataError
from data_partition.readers.files import opened

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["id", "whole", "number"]
BLANKS = r"\s+"

_WORDS = {"\t": "tabs", ",": "commas", "::": "'::'", BLANKS: "blanks"}
# A separator of two characters would need pandas' slow parser; this control character stands in for it.
_STAND_IN = "\x1f"


@dataclass(frozen=True)
class Column:
    """A column that is read.

    Attributes:
        name: name in the table that is returned, and in messages.
        kind: "id": any text but nothing; "whole": a whole number; "number": any finite number.
        index: its place in the file.
    """

    name: str
    kind: Kind
    index: int


@dataclass(frozen=True)
class Layout:
    """How the lines of a file are built.

    Attributes:
        columns: what is read.
        separator: of fields; BLANKS for any number of blanks or tabs.
        names: what a line holds, in order; its length is the number of fields.
        header: whether the first line is a header.
        more: whether lines may go on with further fields.
    """

    columns: tuple[Column, ...]
    separator: str
    names: tuple[str, ...]
    header: bool = False
    more: bool = False

    @property
    def quoted(self) -> bool:
        """Only comma-separated files know quotes."""
        return self.separator == ","

    @property
    def expected(self) -> str:
        """The layout in words, for messages."""
        shown = self.names if len(self.names) <= 8 else (*self.names[:7], f"… ({len(self.names)} fields)")
        return f"{', '.join(shown)}{' and more' if self.more else ''} separated by {_WORDS[self.separator]}"


def layout(separator: str, *, header: bool = False, more: bool = False, **kinds: Kind | None) -> Layout:
    """A layout from its fields in order; fields of kind None are there but not read."""
    columns = tuple(Column(name, kind, i) for i, (name, kind) in enumerate(kinds.items()) if kind is not None)
    return Layout(columns, separator, tuple(kinds), header, more)


def layout_of_header(path: Path, separator: str, wanted: dict[str, tuple[str, Kind]]) -> Layout:
    """The layout of a file whose first line names its columns.

    Args:
        wanted: name in the result to (name in the file, kind).
    Raises:
        DataError: the file is empty or has no column of a wanted name.
    """
    names = tuple(name.strip() for name in header_of(path, separator))
    for name, _ in wanted.values():
        if name not in names:
            raise DataError(f"{path.name}, line 1: there is no column '{name}', only {', '.join(names)[:200]}.")
    columns = tuple(Column(result, kind, names.index(name)) for result, (name, kind) in wanted.items())
    return Layout(columns, separator, names, header=True)


def header_of(path: Path, separator: str) -> list[str]:
    """The fields of the first line.

    Raises:
        DataError: the file is empty.
    """
    lines = first_lines(path, separator, 1)
    if not lines:
        raise DataError(f"{path.name} is empty.")
    return lines[0]


def first_lines(path: Path, separator: str, count: int) -> list[list[str]]:
    """The fields of the first `count` lines that are not blank, or of all there are."""
    with opened(path) as file:
        return [fields for _, fields in itertools.islice(_lines(file, path, separator), count)]


def read_table(path: Path, layout: Layout) -> pd.DataFrame:
    """The columns of a layout: text for ids, int64 for whole numbers, float64 for numbers.

    Raises:
        DataError: the file is empty or damaged, or a line is broken (with its number).
    """
    try:
        with opened(path) as file:
            table = _parse(file, layout)
    except (ValueError, OverflowError) as error:
        _refuse_broken_line(path, layout)
        raise DataError(f"{path.name} cannot be read ({str(error).strip()}).") from None
    if _is_suspicious(table, layout):
        _refuse_broken_line(path, layout)
    return table[[column.name for column in layout.columns]]


def read_lists(path: Path) -> pd.DataFrame:
    """One row, `user` and `item`, for each item of lines `user item item …`; a user may have none.

    Raises:
        DataError: the file is empty or damaged, or a line is broken (with its number).
    """
    import pandas as pd

    users: list[int] = []
    items: list[int] = []
    lines = 0
    with opened(path) as file:
        for number, fields in _lines(file, path, BLANKS):
            lines += 1
            for name, field in zip(("user", *["item"] * (len(fields) - 1)), fields, strict=True):
                if not (field.isascii() and field.isdigit()):
                    digits = f"must be a whole number of digits alone, got '{_shorten(field)}'"
                    raise DataError(f"{path.name}, line {number}: {name} {_problem(field, 'whole') or digits}")
            user, *of_user = map(int, fields)
            users += [user] * len(of_user)
            items += of_user
    if not lines:
        raise DataError(f"{path.name} is empty.")
    return pd.DataFrame({"user": np.array(users, np.int64), "item": np.array(items, np.int64)})


def _parse(file: BinaryIO, layout: Layout) -> pd.DataFrame:
    import pandas as pd

    # One column more than there should be: what it holds is what is too much.
    names = [f"_{i}" for i in range(len(layout.names) + 1)]
    for column in layout.columns:
        names[column.index] = column.name
    types: dict[str, Any] = dict.fromkeys(names, str)
    types |= {column.name: {"whole": "int64", "number": "float64"}.get(column.kind, str) for column in layout.columns}
    separator: str = layout.separator
    source: Any = file
    if separator == "::":
        separator, source = _STAND_IN, io.BytesIO(file.read().replace(b"::", _STAND_IN.encode()))
    return pd.read_csv(
        source,
        sep=separator,
        header=None,
        names=names[:-1] if layout.more else names,
        # Only a choice of columns keeps the parser from refusing further fields.
        usecols=range(len(layout.names)) if layout.more else None,
        skiprows=int(layout.header),
        dtype=types,
        # Without the filter "NA" is an id like any other, and a missing field is an empty text and not a number.
        na_filter=False,
        quoting=csv.QUOTE_MINIMAL if layout.quoted else csv.QUOTE_NONE,
        encoding="utf-8",
    )


def _is_suspicious(table: pd.DataFrame, layout: Layout) -> bool:
    width = len(layout.names)
    if table.empty:
        return True
    if not layout.more and (table[f"_{width}"] != "").any():
        return True
    for column in layout.columns:
        values = table[column.name]
        if column.kind == "number" and not np.isfinite(values.to_numpy()).all():
            return True
        if column.kind == "id" and (values.str.strip() == "").any():
            return True
    # A last field that is read was checked by its type; one that is not read tells a short line only by being empty.
    last = f"_{width - 1}"
    return last in table and not layout.more and bool((table[last] == "").any())


def _refuse_broken_line(path: Path, layout: Layout) -> None:
    """Raises: DataError: for the first broken line, or a file without lines; returns if every line is sound."""
    width, rows = len(layout.names), 0
    with opened(path) as file:
        lines = _lines(file, path, layout.separator)
        if layout.header:
            next(lines, None)
        for number, fields in lines:
            rows += 1
            # An empty field too many is a separator at the end of the line: harmless, and not suspicious above.
            too_many = len(fields) > width + (fields[-1] == "") and not layout.more
            if len(fields) < width or too_many:
                got = (" " if layout.separator == BLANKS else layout.separator).join(fields)
                raise DataError(f"{path.name}, line {number}: expected {layout.expected}, got '{_shorten(got)}'")
            for column in layout.columns:
                problem = _problem(fields[column.index], column.kind)
                if problem:
                    raise DataError(f"{path.name}, line {number}: {column.name} {problem}")
    if not rows:
        raise DataError(f"{path.name} {'has no rows' if layout.header else 'is empty'}.")


def _lines(file: BinaryIO, path: Path, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Number and fields of every line that is not blank."""
    texts = _decoded(file, path)
    if separator == ",":
        reader = csv.reader(texts)
        try:
            for fields in reader:
                if fields:
                    yield reader.line_num, fields
        except csv.Error as error:
            raise DataError(f"{path.name}, line {reader.line_num}: {error}.") from None
        return
    for number, text in enumerate(texts, start=1):
        line = text.rstrip("\r\n")
        if line:
            yield number, re.split(BLANKS, line.strip()) if separator == BLANKS else line.split(separator)


def _decoded(file: BinaryIO, path: Path) -> Iterator[str]:
    for number, raw in enumerate(file, start=1):
        try:
            yield raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise DataError(f"{path.name}, line {number}: the text is not UTF-8.") from None


def _problem(field: str, kind: Kind) -> str:
    """What is wrong with a field, or nothing."""
    if not field.strip():
        return "is missing"
    if kind in ("whole", "number"):
        try:
            value = float(field)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or (kind == "whole" and (value != int(value) or abs(value) >= 2**63)):
            return f"must be a {'whole ' if kind == 'whole' else ''}number, got '{_shorten(field)}'"
    return ""


def _shorten(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:79]}…"
