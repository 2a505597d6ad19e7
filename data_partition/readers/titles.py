"""Titles of items: a decoration, so a wrong byte costs one letter and not the data set."""

from __future__ import annotations

import csv
import html
from pathlib import Path

from bouquet.errors import DataError
from data_partition.readers.files import opened


def read_titles(path: Path | None, separator: str, encoding: str = "utf-8") -> dict[str, str]:
    """Raw item id to title, from the first two fields of every line; a header is an entry like any other.

    Args:
        path: None where the publisher's title file is absent.
        separator: of fields; files separated by commas may have quotes.
        encoding: the publisher's. UTF-8 is tried first, because many copies were converted; a byte that fits neither
            is replaced by U+FFFD.
    Raises:
        DataError: the file is damaged, or a line has no second field.
    """
    if path is None:
        return {}
    with opened(path) as file:
        raw = file.read()
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = raw.decode(encoding, errors="replace")
    titles: dict[str, str] = {}
    # Only these end a line: `splitlines` would also cut titles at rarer characters.
    lines = text.replace("\r\n", "\n").split("\n")
    rows = csv.reader(lines) if separator == "," else (line.split(separator) for line in lines)
    for number, fields in enumerate(rows, start=1):
        if not fields or fields == [""]:
            continue
        if len(fields) < 2:
            raise DataError(f"{path.name}, line {number}: expected id and title separated by '{separator}'.")
        titles[fields[0].strip()] = html.unescape(fields[1]).strip()
    return titles
