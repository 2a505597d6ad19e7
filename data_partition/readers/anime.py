"""Anime: MyAnimeList as published on Kaggle, without times."""

from __future__ import annotations

from pathlib import Path

from data_partition.readers.files import find, require
from data_partition.readers.raw import RawData
from data_partition.readers.text import layout_of_header, read_table
from data_partition.readers.titles import read_titles


def read_anime(folder: Path) -> RawData:
    """`rating.csv` (user_id,anime_id,rating) and `anime.csv` (anime_id,name,…).

    A rating of -1 says that the user watched without rating: an interaction like any other.
    """
    path = require(folder, "rating.csv")
    rows = layout_of_header(
        path, ",", {"user": ("user_id", "whole"), "item": ("anime_id", "whole"), "rating": ("rating", "number")}
    )
    return RawData(read_table(path, rows), titles=read_titles(find(folder, "anime.csv"), ","))
