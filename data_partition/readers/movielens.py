"""MovieLens: the three generations of its file formats."""

from __future__ import annotations

from pathlib import Path

from data_partition.readers.files import find, require
from data_partition.readers.raw import RawData
from data_partition.readers.text import layout, layout_of_header, read_table
from data_partition.readers.titles import read_titles

_LATIN = "iso-8859-1"


def read_100k(folder: Path) -> RawData:
    """`u.data` (user, item, rating, unix time; tabs) and `u.item` (id|title|…)."""
    rows = layout("\t", user="whole", item="whole", rating="number", time="number")
    table = read_table(require(folder, "u.data"), rows)
    return RawData(table, titles=read_titles(find(folder, "u.item"), "|", _LATIN))


def read_1m(folder: Path) -> RawData:
    """`ratings.dat` (user::item::rating::time) and `movies.dat` (id::title::genres)."""
    rows = layout("::", user="whole", item="whole", rating="number", time="number")
    table = read_table(require(folder, "ratings.dat"), rows)
    return RawData(table, titles=read_titles(find(folder, "movies.dat"), "::", _LATIN))


def read_csv(folder: Path) -> RawData:
    """`ratings.csv` (userId,movieId,rating,timestamp) and `movies.csv` (movieId,title,genres)."""
    path = require(folder, "ratings.csv")
    rows = layout_of_header(
        path,
        ",",
        {
            "user": ("userId", "whole"),
            "item": ("movieId", "whole"),
            "rating": ("rating", "number"),
            "time": ("timestamp", "number"),
        },
    )
    return RawData(read_table(path, rows), titles=read_titles(find(folder, "movies.csv"), ","))
