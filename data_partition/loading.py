"""A data set by name, read from its files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bouquet.config import lookup
from bouquet.errors import ConfigError
from bouquet.extras import need
from data_partition.catalogue import DATASETS, FILE
from data_partition.fetch import locate
from data_partition.interactions import Interactions, Repeats, checked, from_table, sample_users, with_at_least
from data_partition.readers.generic import read_file
from data_partition.readers.raw import RawData
from data_partition.synthetic_set import synthetic


def load(
    name: str,
    data_dir: str = "",
    *,
    min_interactions: int = 0,
    repeats: Repeats = "drop",
    max_users: int = 0,
    sample_seed: int = 0,
    data_file: str = "",
    user_column: str = "user",
    item_column: str = "item",
    time_column: str = "",
    title_column: str = "",
    skip_broken_rows: bool = False,
) -> Interactions:
    """A data set by name, read anew at every call.

    Args:
        name: a name in DATASETS, or "file" for a file of your own.
        data_dir: folder of the set, or a folder of many; "": the per-user cache, where it is downloaded if possible.
        min_interactions: users with fewer distinct items are dropped.
        repeats: repeated (user, item) pairs: "drop" all but the oldest, or "keep" them as events of their own.
        max_users: a random sample of so many users, and the items that they know; 0: all.
        sample_seed: of that sample.
        data_file, user_column, item_column, time_column, title_column: with name "file"; a column "" means none.
        skip_broken_rows: of that file, leave out what cannot be read; `Interactions.reading` says how much it was.
    Raises:
        ConfigError: there is no such data set, or data_file and name do not fit together.
        DataError: its files are missing or broken.
    """
    if name == FILE:
        if not data_file:
            raise ConfigError("dataset 'file' needs data-file, the path of a CSV, TSV or Parquet file.")
        need("pandas", "Reading a data-file")
        path = Path(data_file).expanduser()
        raw = read_file(
            path,
            user=user_column,
            item=item_column,
            time=time_column,
            title=title_column,
            skip_broken=skip_broken_rows,
        )
        made = _interactions(path.name, raw, min_interactions, repeats)
        return sample_users(made, max_users, sample_seed)
    dataset = lookup(DATASETS, "dataset", name)
    if data_file:
        raise ConfigError(f"data-file is read with dataset 'file', not '{name}'.")
    if dataset.read is None:
        made = replace(with_at_least(synthetic(), min_interactions), repeats=checked(repeats))
        return sample_users(made, max_users, sample_seed)
    need("pandas", f"Reading {name}")
    raw = dataset.read(locate(dataset, data_dir))
    return sample_users(_interactions(name, raw, min_interactions, repeats), max_users, sample_seed)


def _interactions(name: str, raw: RawData, min_interactions: int, repeats: Repeats) -> Interactions:
    made = from_table(
        name,
        raw.table,
        time="time" if "time" in raw.table else None,
        in_order=raw.in_order,
        held_out="held_out" if "held_out" in raw.table else None,
        titles=raw.titles,
        min_interactions=min_interactions,
        repeats=repeats,
    )
    return replace(made, reading=raw.reading, rows=raw.reading.rows) if raw.reading else made
