"""A file of your own: CSV, TSV or Parquet, with the names of its columns given."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bouquet.errors import ConfigError, DataError
from bouquet.extras import need
from data_partition.readers.files import opened, plain_name
from data_partition.readers.raw import RawData
from data_partition.readers.text import Kind, first_lines, layout_of_header, read_table

if TYPE_CHECKING:
    import pandas as pd

_SEPARATORS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}


def read_file(path: Path, *, user: str = "user", item: str = "item", time: str = "") -> RawData:
    """Events from one file.

    Args:
        path: .csv, .tsv or .tab, each also as .gz, with a header; or .parquet.
        user, item: columns of the ids, taken as they stand: "007" and "7" are two ids.
        time: column of the times, as numbers or as ISO 8601 dates; "" where there is none.
    Raises:
        DataError: no such file, an unknown ending, a missing column, a broken line.
        ConfigError: two of the columns are the same.
    """
    columns = [column for column in (user, item, time) if column]
    if len(set(columns)) < len(columns):
        raise ConfigError(f"user-column, item-column and time-column must differ, not {', '.join(columns)}.")
    if not path.is_file():
        raise DataError(f"data-file {path} is not a file.")
    ending = Path(plain_name(path)).suffix.lower()
    if ending == ".parquet":
        return RawData(_parquet(path, user, item, time))
    if ending not in _SEPARATORS:
        raise DataError(f"{path.name}: a data-file must end in .csv, .tsv, .tab (each also with .gz) or .parquet.")
    separator = _SEPARATORS[ending]
    wanted: dict[str, tuple[str, Kind]] = {"user": (user, "id"), "item": (item, "id")}
    if time:
        wanted["time"] = (time, _kind_of_time(path, separator, time))
    return RawData(read_table(path, layout_of_header(path, separator, wanted)))


def _kind_of_time(path: Path, separator: str, time: str) -> Kind:
    """Whether the first time is a number or, else, a date; all others must be the same."""
    head = first_lines(path, separator, 2)
    if len(head) < 2 or time not in head[0] or len(head[1]) != len(head[0]):
        return "number"
    try:
        float(head[1][head[0].index(time)])
    except ValueError:
        return "date"
    return "number"


def _parquet(path: Path, user: str, item: str, time: str) -> pd.DataFrame:
    import pandas as pd

    wanted = {"user": user, "item": item} | ({"time": time} if time else {})
    need("pyarrow", f"Reading {path.name}")
    with opened(path) as file:
        try:
            table = pd.read_parquet(file)
        except ValueError as error:
            raise DataError(f"{path.name} is not a Parquet file ({error}).") from None
    for column in wanted.values():
        if column not in table:
            raise DataError(f"{path.name}: there is no column '{column}', only {', '.join(map(str, table))[:200]}.")
    for column in wanted.values():
        missing = table[column].isna().to_numpy()
        if missing.any():
            raise DataError(f"{path.name}, row {int(missing.argmax()) + 1}: no value in column '{column}'.")
    result = pd.DataFrame({name: table[column] for name, column in wanted.items()})
    if time:
        result["time"] = _as_times(path, table[time])
    return result


def _as_times(path: Path, times: pd.Series) -> pd.Series:
    import pandas as pd

    if pd.api.types.is_datetime64_any_dtype(times):
        return pd.to_datetime(times, utc=True).dt.tz_localize(None)
    try:
        if pd.api.types.is_numeric_dtype(times):
            if not np.isfinite(times.to_numpy(dtype=np.float64)).all():
                raise ValueError("a time is infinite")
            return times
        return pd.to_datetime(times, format="ISO8601", utc=True).dt.tz_localize(None)
    except (ValueError, TypeError) as error:
        reason = str(error).split(". ")[0]
        raise DataError(f"{path.name}: column '{times.name}' holds no times ({reason}).") from None
