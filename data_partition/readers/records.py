"""Records of a delimited text, with the numbers of their lines, where some may be broken.

csv's reader goes on to the end of a file in search of a quotation mark that never closes. Here a record ends after a
few lines at most, so that one broken line costs that line.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator

# Quoted texts may hold line breaks.
_MOST_LINES = 20


def records(lines: list[bytes], separator: str, width: int, begin: int = 0) -> Iterator[tuple[int, list[str] | str]]:
    """Every record: the number of its line, from 1, and its fields, or what is wrong with it in words.

    Lines without any text between their separators, as spreadsheets leave them behind, are no records.

    Args:
        lines: of the file, in UTF-8, without their "\\n".
        width: fields that a record should have.
        begin: place of the first line that is read.
    """
    place = begin
    while place < len(lines):
        taken, fields = _record(lines, place, separator, width)
        if isinstance(fields, str) or any(map(str.strip, fields)):
            yield place + 1, fields
        place += taken


def _record(lines: list[bytes], place: int, separator: str, width: int) -> tuple[int, list[str] | str]:
    """How many lines the record has that begins at a place, and its fields."""
    try:
        text = lines[place].decode().removesuffix("\r")
    except UnicodeDecodeError:
        return 1, "its bytes are no text in the encoding of the file"
    if "\0" in text:
        return 1, "it holds zero bytes, as where a disk was full"
    if '"' not in text:
        return 1, text.split(separator)
    fields = split(text, separator)
    if fields is None:
        for count in range(2, min(_MOST_LINES, len(lines) - place) + 1):
            longer = b"\n".join(lines[place : place + count]).decode(errors="replace").removesuffix("\r")
            if (joined := split(longer, separator)) is not None:
                if len(joined) == width:
                    return count, joined
                break
    # Files with tabs often know no quotes.
    if separator == "\t" and (fields is None or len(fields) != width) and len(plain := text.split("\t")) == width:
        return 1, plain
    return 1, "a quotation mark is not closed" if fields is None else fields


def split(text: str, separator: str) -> list[str] | None:
    """The fields of one record; None: a quoted text goes on after it."""
    lines = [f"{line}\n" for line in text.replace("\r\n", "\n").replace("\r", " ").split("\n")]
    try:
        rows = list(csv.reader(lines, delimiter=separator, strict=True))
    except csv.Error as error:
        if "unexpected end of data" in str(error):
            return None
        # Text after a closing mark is no reason to refuse a line of its own; a line that is too long stays whole.
        try:
            rows = list(csv.reader(lines, delimiter=separator)) if len(lines) == 1 else []
        except csv.Error:
            rows = []
    return rows[0] if len(rows) == 1 else [text]
