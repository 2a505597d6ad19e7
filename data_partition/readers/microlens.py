"""MicroLens-100K: short videos that users commented on."""

from __future__ import annotations

from pathlib import Path

from data_partition.readers.files import find, require
from data_partition.readers.raw import RawData
from data_partition.readers.text import layout_of_header, read_table
from data_partition.readers.titles import read_titles


def read_microlens(folder: Path) -> RawData:
    """`MicroLens-100k_pairs.csv` (user,item,timestamp) and `MicroLens-100k_titles.csv` (item,title)."""
    path = require(folder, "MicroLens-100k_pairs.csv")
    rows = layout_of_header(
        path, ",", {"user": ("user", "whole"), "item": ("item", "whole"), "time": ("timestamp", "number")}
    )
    titles = find(folder, "MicroLens-100k_titles.csv", "MicroLens-100k_title_en.csv")
    return RawData(read_table(path, rows), titles=read_titles(titles, ","))
