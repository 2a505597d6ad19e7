"""FilmTrust and Douban-Book: `ratings.dat`, user, item and rating separated by blanks or tabs, without times."""

from __future__ import annotations

from pathlib import Path

from data_partition.readers.files import require
from data_partition.readers.raw import RawData
from data_partition.readers.text import BLANKS, layout, read_table


def read_ratings(folder: Path) -> RawData:
    """`ratings.dat`."""
    rows = layout(BLANKS, user="whole", item="whole", rating="number")
    return RawData(read_table(require(folder, "ratings.dat"), rows))
