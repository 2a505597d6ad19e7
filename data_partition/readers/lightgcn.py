"""Gowalla as LightGCN and those after it pass it on: a published split, one line per user, without times."""

from __future__ import annotations

from pathlib import Path

from bouquet.errors import DataError
from data_partition.readers.files import plain_name, require
from data_partition.readers.raw import RawData
from data_partition.readers.text import read_lists


def read_lightgcn(folder: Path) -> RawData:
    """`train.txt` and `test.txt`: user and all of its items in a line, separated by blanks, in no order."""
    import pandas as pd

    paths = [require(folder, name) for name in ("train.txt", "test.txt")]
    train, test = (read_lists(path) for path in paths)
    unknown = test["user"][~test["user"].isin(train["user"])]
    if len(unknown):
        raise DataError(
            f"{plain_name(paths[1])}: user {unknown.iloc[0]} has nothing to learn from in {plain_name(paths[0])}."
        )
    # Of a pair that is in both files the first row counts: it is for training.
    parts = [train.assign(held_out=False), test.assign(held_out=True)]
    return RawData(pd.concat(parts, ignore_index=True))
