"""Small data sets written by hand, for the tests of this folder."""

from __future__ import annotations

import gzip
from pathlib import Path

import pandas as pd

from data_partition import Interactions, from_table


def interactions(*rows: tuple, name: str = "tiny", **options) -> Interactions:
    """From (user, item) or (user, item, time) rows."""
    columns = ["user", "item", "time"][: len(rows[0])]
    table = pd.DataFrame(rows, columns=columns)
    return from_table(name, table, time="time" if len(columns) == 3 else None, **options)


def raw_histories(made: Interactions) -> dict[str, list[str]]:
    """Raw user id to raw item ids."""
    return {
        str(user): [str(made.item_ids[item]) for item in made.histories.row(row)]
        for row, user in enumerate(made.user_ids)
    }


def write(path: Path, content: str | bytes) -> Path:
    """A file with this content, packed where the name says so."""
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path
