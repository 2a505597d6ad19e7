"""A file of your own: text with separators, or Parquet, with the names of its columns given.

Such files are messy. Their encoding, their separator and the form of their times are found; what cannot be read is
refused with its line, or left out, counted and told. pandas reads the text fast; where anything looks odd it is read
once more, line by line: that is slower, knows the number of each line, and loses only the lines that are broken.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bouquet.config import did_you_mean
from bouquet.errors import ConfigError, DataError
from bouquet.extras import need
from data_partition.readers.encoding import UTF8, as_utf8
from data_partition.readers.files import opened, plain_name
from data_partition.readers.form import SEPARATORS, Form, form_of
from data_partition.readers.raw import RawData, Reading
from data_partition.readers.records import records
from data_partition.readers.times import times_of

if TYPE_CHECKING:
    import pandas as pd

_USUAL = {".csv": ",", ".tsv": "\t", ".tab": "\t", ".txt": "\t", ".dat": "\t"}
_ENDINGS = f"{', '.join(_USUAL)} (each also with .gz) or .parquet"
# What programs write for nothing. "NA" is not among them: it is a country, too.
_NOTHING = ("", "nan", "NaN", "NaT", "None", "null", "NULL", "<NA>")
_EXAMPLES = 3
_SHOWN = 80
_PARSED, _TOO_MUCH = "_{}", "_too_much"


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows as texts, or as Parquet has them, and those that are broken already.

    Attributes:
        table: columns `user`, `item`, and `time` and `title` where they are asked for.
        places: [n] line or row of each, from 1.
        broken: count of rows that have no fields to speak of.
        reasons: place and reason of the first of them.
    """

    table: pd.DataFrame
    places: NDArray[np.int64]
    broken: int = 0
    reasons: tuple[tuple[int, str], ...] = ()


def read_file(
    path: Path, *, user: str = "user", item: str = "item", time: str = "", title: str = "", skip_broken: bool = False
) -> RawData:
    """Events from one file.

    Args:
        path: .csv, .tsv, .tab, .txt or .dat, each also as .gz, with a header; or .parquet. Where there is no header,
            the columns are called by their places from 1.
        user, item: columns of the ids, taken as they stand but for blanks around them: "007" and "7" are two ids.
        time: column of the times, as numbers, as ISO 8601 dates, or mixed; "" where there is none.
        title: column of the titles of items, of which the first one counts; "" where there is none.
        skip_broken: leave out rows that cannot be read.
    Raises:
        DataError: no such file, an unknown ending, a missing column, a broken row and not `skip_broken`, no sound row.
        ConfigError: two of the columns are the same.
    """
    wanted = {"user-column": user, "item-column": item, "time-column": time, "title-column": title}
    wanted = {setting: column for setting, column in wanted.items() if column}
    if len(set(wanted.values())) < len(wanted):
        *some, last = wanted
        raise ConfigError(f"{', '.join(some)} and {last} must differ, not {', '.join(wanted.values())}.")
    if not path.is_file():
        raise DataError(f"data-file {path} is not a file.")
    ending = Path(plain_name(path)).suffix.lower()
    form: list[str] = []
    if ending == ".parquet":
        rows, word = _parquet(path, wanted), "row"
    elif ending in _USUAL:
        rows, form = _text(path, wanted, _USUAL[ending])
        word = "line"
    else:
        raise DataError(f"{path.name}: a data-file must end in {_ENDINGS}.")
    return _sound(path.name, rows, form, word, skip_broken)


def _text(path: Path, wanted: Mapping[str, str], usual: str) -> tuple[_Rows, list[str]]:
    """The rows of a text, and what is unusual about it in words."""
    with opened(path) as file:
        content, encoding = as_utf8(file.read())
    if b"\n" not in content:
        content = content.replace(b"\r", b"\n")
    form = form_of(path.name, content[:1_000_000].split(b"\n"), wanted, usual)
    places = {setting.removesuffix("-column"): form.names.index(name) for setting, name in wanted.items()}
    rows = _fast(content, form, places)
    if rows is None:
        rows = _line_by_line(content, form, places)
    words = [f"as {encoding}"] if encoding != UTF8 else []
    words += [f"separated by {SEPARATORS[form.separator]}"] if form.separator != usual else []
    return rows, words + ([] if form.header else ["without a header"])


def _fast(content: bytes, form: Form, places: Mapping[str, int]) -> _Rows | None:
    """The rows of a text in which nothing is odd, else None."""
    import pandas as pd

    if b"\0" in content or content.count(b"\r") != content.count(b"\r\n"):
        return None
    width = len(form.names)
    # One column more than there should be: what it holds is what is too much.
    names = [_PARSED.format(place) for place in range(width)] + [_TOO_MUCH]
    try:
        table = pd.read_csv(
            io.BytesIO(content),
            sep=form.separator,
            header=None,
            names=names,
            skiprows=form.begin,
            dtype=str,
            # Without the filter "NA" is an id like any other, and a missing field is an empty text and not a number.
            na_filter=False,
            quoting=csv.QUOTE_MINIMAL,
            encoding="utf-8",
        )
    except ValueError:
        return None
    lines = content.rstrip().count(b"\n") + 1 - form.begin
    # Of as many rows as lines none went on into the next; a last field that is empty may be one that is missing.
    if len(table) != lines or (table[_TOO_MUCH] != "").any() or (table[names[-2]] == "").any():
        return None
    found = table[[names[place] for place in places.values()]].set_axis(list(places), axis=1)
    return _Rows(found, np.arange(len(table)) + form.begin + 1)


def _line_by_line(content: bytes, form: Form, places: Mapping[str, int]) -> _Rows:
    import pandas as pd

    width, broken = len(form.names), 0
    reasons: list[tuple[int, str]] = []
    numbers: list[int] = []
    columns: dict[str, list[str]] = {name: [] for name in places}
    for number, fields in records(content.split(b"\n"), form.separator, width, form.begin):
        # An empty field too many is a separator at the end of the line: harmless.
        if isinstance(fields, str) or len(fields) < width or len(fields) > width + (fields[-1] == ""):
            broken += 1
            if len(reasons) < _EXAMPLES:
                got = fields if isinstance(fields, str) else f"got '{_short(form.separator.join(fields))}'"
                reasons.append((number, got if isinstance(fields, str) else f"expected {form.expected}, {got}"))
            continue
        numbers.append(number)
        for name, place in places.items():
            columns[name].append(fields[place])
    table = pd.DataFrame(columns, dtype=str)
    return _Rows(table, np.array(numbers, dtype=np.int64), broken, tuple(reasons))


def _parquet(path: Path, wanted: Mapping[str, str]) -> _Rows:
    import pandas as pd

    need("pyarrow", f"Reading {path.name}")
    with opened(path) as file:
        try:
            table = pd.read_parquet(file)
        except ValueError as error:
            raise DataError(f"{path.name} is not a Parquet file ({error}).") from None
    _refuse_unknown(path.name, list(map(str, table)), wanted)
    found = pd.DataFrame({setting.removesuffix("-column"): table[column] for setting, column in wanted.items()})
    for name in {"user", "item"} & set(found):
        found[name] = _whole(found[name])
    return _Rows(found, np.arange(len(found)) + 1)


def _refuse_unknown(file: str, columns: list[str], wanted: Mapping[str, str]) -> None:
    for setting, column in wanted.items():
        if column not in columns:
            raise DataError(
                f"{file}: there is no column '{column}', only {', '.join(columns)[:200]}."
                f"{did_you_mean(column, set(columns) - set(wanted.values()))} Name yours with {setting}."
            )


def _whole(ids: pd.Series) -> pd.Series:
    """Ids that are whole numbers and became fractions because one of them is missing, as whole numbers again."""
    import pandas as pd

    if not pd.api.types.is_float_dtype(ids.dtype):
        return ids
    values = ids.to_numpy(dtype=np.float64, na_value=np.nan)
    there = values[~np.isnan(values)]
    fits = np.isfinite(there).all() and (there == np.round(there)).all() and (np.abs(there) < 2**53).all()
    return ids.astype("Int64") if fits else ids


def _sound(file: str, rows: _Rows, form: list[str], word: str, skip_broken: bool) -> RawData:
    """The rows without those that are broken, which are refused or left out.

    Raises:
        DataError: a row is broken and not to be left out, or none is left.
    """
    import pandas as pd

    table = rows.table
    count = len(table) + rows.broken
    if not count:
        raise DataError(f"{file} has no rows.")
    bad: dict[str, NDArray[np.bool_]] = {}
    for name in ("user", "item"):
        table[name], bad[name] = _ids(table[name])
    wanted = ""
    if "time" in table:
        times = times_of(table["time"])
        bad["time"], wanted = times.bad, times.wanted
        form = [*form, *(["with times of several forms or units"] if times.mixed else [])]
    any_bad = np.logical_or.reduce(list(bad.values()))
    skipped = rows.broken + int(any_bad.sum())
    examples: list[str] = []
    if skipped:
        reasons = [*rows.reasons]
        for place in np.flatnonzero(any_bad)[:_EXAMPLES]:
            column = next(name for name in bad if bad[name][place])
            reasons.append((int(rows.places[place]), _reason(column, rows.table[column].iloc[place], wanted)))
        examples = [f"{word} {place}: {reason}" for place, reason in sorted(reasons)[:_EXAMPLES]]
        if not skip_broken or skipped == count:
            raise DataError(_refusal(file, examples[0], skipped, count))
    sound = ~any_bad
    kept = table[sound].reset_index(drop=True)
    if "time" in kept:
        kept["time"] = times.values[sound]
    titles: dict[str, str] = {}
    if "title" in kept:
        named = kept[~_is_nothing(kept["title"])].drop_duplicates("item")
        titles = dict(zip(named["item"].astype(str), named["title"].astype(str).str.strip(), strict=True))
        kept = kept.drop(columns="title")
    reading = Reading(", ".join(form), count, skipped, tuple(examples))
    return RawData(pd.DataFrame(kept), titles=titles, reading=reading)


def _ids(raw: pd.Series) -> tuple[pd.Series, NDArray[np.bool_]]:
    """Ids without blanks around them, and which of them are missing."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(raw.dtype):
        missing = raw.isna().to_numpy(dtype=bool)
        # What is missing is left out later; a column of whole numbers must not become one of fractions for it.
        return (raw.fillna(0).astype("int64") if raw.dtype == "Int64" else raw), missing
    texts = raw.astype(str).str.strip()
    return texts, raw.isna().to_numpy(dtype=bool) | _is_nothing(texts)


def _is_nothing(texts: pd.Series) -> NDArray[np.bool_]:
    return texts.isna().to_numpy(dtype=bool) | texts.astype(str).str.strip().isin(_NOTHING).to_numpy(dtype=bool)


def _reason(column: str, value: object, wanted: str) -> str:
    if str(value).strip() in _NOTHING or column != "time":
        return f"{column} is missing"
    return f"time must be {wanted}, got '{_short(str(value))}'"


def _refusal(file: str, example: str, broken: int, count: int) -> str:
    if broken == count:
        return f"{file}, {example}" if count == 1 else f"{file}, {example}. None of the {count:,} rows can be read."
    how_many = f"{broken:,} of {count:,} rows {'is' if broken == 1 else 'are'} broken"
    return f"{file}, {example}. {how_many}; skip-broken-rows = true leaves such rows out."


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
