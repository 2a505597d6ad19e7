"""The form of a delimited text: what separates its fields, and how its columns are called.

The names of the wanted columns say most about a file: what separates a first line into them is its separator. Only
where nothing does, as with a misspelt name, is it guessed from how regular the lines are.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from bouquet.config import did_you_mean
from bouquet.errors import DataError
from data_partition.readers.records import split

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "'|'", " ": "blanks"}
_SAMPLE_BYTES = 65_536
_SHOWN = 200


@dataclass(frozen=True)
class Form:
    """How the lines of a file are built.

    Attributes:
        separator: one of SEPARATORS.
        names: of the columns; where there is no header, their places from 1.
        begin: how many lines stand before the first row.
        header: whether the last of them names the columns.
    """

    separator: str
    names: tuple[str, ...]
    begin: int
    header: bool = True

    @property
    def expected(self) -> str:
        """In words, for messages."""
        shown = self.names if len(self.names) <= 8 else (*self.names[:7], f"… ({len(self.names)} fields)")
        return f"{', '.join(shown)} separated by {SEPARATORS[self.separator]}"


def form_of(file: str, lines: list[bytes], wanted: Mapping[str, str], usual: str) -> Form:
    """The form of a file that has the wanted columns.

    Args:
        file: its name, for messages.
        lines: in UTF-8, without their "\\n".
        wanted: the setting that names a column -> its name.
        usual: the separator that the ending of the file promises.
    Raises:
        DataError: the file is empty, or has no such column.
    """
    begin = next((place for place, line in enumerate(lines) if line.strip()), len(lines))
    if begin == len(lines):
        raise DataError(f"{file} is empty.")
    first = _text(lines[begin])
    # Spreadsheets say so themselves.
    if len(first) == 5 and first.lower().startswith("sep=") and first[4] in SEPARATORS and begin + 1 < len(lines):
        usual, begin = first[4], begin + 1
        first = _text(lines[begin])
    tried = list(dict.fromkeys([usual, *SEPARATORS]))
    for separator in tried:
        names = _names(first, separator)
        if set(wanted.values()) <= set(names):
            _refuse_twice(file, names, wanted)
            return Form(separator, names, begin + 1)
    separator = _guess(lines[begin:], tried, usual)
    names = _names(first, separator)
    if any(map(_is_value, names)):
        places = tuple(str(place) for place in range(1, len(names) + 1))
        if set(wanted.values()) <= set(places):
            return Form(separator, places, begin, header=False)
        raise DataError(
            f"{file}, line {begin + 1}: there is no header, for '{first[:_SHOWN]}' holds values. Name columns by their "
            "places from 1, as in user-column = '1'."
        )
    setting, missing = next((setting, name) for setting, name in wanted.items() if name not in names)
    raise DataError(
        f"{file}, line {begin + 1}: there is no column '{missing}', only {', '.join(names)[:_SHOWN]}."
        f"{did_you_mean(missing, set(names) - set(wanted.values()))} Name yours with {setting}."
    )


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\r")


def _names(line: str, separator: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in split(line, separator) or line.split(separator))


def _guess(lines: list[bytes], separators: list[str], usual: str) -> str:
    sample = b"\n".join(lines)[:_SAMPLE_BYTES].decode(errors="replace")
    try:
        found = csv.Sniffer().sniff(sample, delimiters="".join(separators)).delimiter
    except csv.Error:
        found = usual
    # The sniffer looks at letters alike, and a blank within titles is the most regular of them.
    first = sample.partition("\n")[0]
    return max(separators, key=first.count) if found == " " or found not in first else found


def _is_value(name: str) -> bool:
    """Whether a field is more likely a value than the name of a column."""
    try:
        return math.isfinite(float(name))
    except ValueError:
        pass
    try:
        datetime.fromisoformat(name)
    except ValueError:
        return False
    return True


def _refuse_twice(file: str, names: tuple[str, ...], wanted: Mapping[str, str]) -> None:
    for name in wanted.values():
        if names.count(name) > 1:
            raise DataError(f"{file}: {names.count(name)} columns are called '{name}'; rename all but one.")
