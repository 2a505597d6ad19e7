"""LastFM-2K of HetRec 2011: how often a user played an artist, without times."""

from __future__ import annotations

from pathlib import Path

from data_partition.readers.files import find, require
from data_partition.readers.raw import RawData
from data_partition.readers.text import layout_of_header, read_table
from data_partition.readers.titles import read_titles


def read_lastfm(folder: Path) -> RawData:
    """`user_artists.dat` (userID, artistID, weight) and `artists.dat` (id, name, …); tabs, with headers."""
    path = require(folder, "user_artists.dat")
    rows = layout_of_header(
        path, "\t", {"user": ("userID", "whole"), "item": ("artistID", "whole"), "weight": ("weight", "number")}
    )
    return RawData(read_table(path, rows), titles=read_titles(find(folder, "artists.dat"), "\t"))
