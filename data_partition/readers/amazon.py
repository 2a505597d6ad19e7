"""Amazon reviews, in the three forms in which papers pass them on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from bouquet.errors import DataError
from data_partition.readers.files import find, opened, require
from data_partition.readers.raw import RawData
from data_partition.readers.text import BLANKS, layout, read_table


def read_sequences(folder: Path) -> RawData:
    """`Video.txt`: user and item, a user's rows oldest first."""
    table = read_table(require(folder, "Video.txt"), layout(BLANKS, user="whole", item="whole"))
    return RawData(table, in_order=True)


def read_five_core(folder: Path) -> RawData:
    """`train.txt`, `valid.txt` and `test.txt` (user, item, unix time; tabs) as one history, and as the split they are.

    Times are whole days. Within a day the files ascend by item number, so that the published test item is the larger
    number of two of one day: which of them is last is drawn anew, and for such users differs from the published split,
    which `split = "published"` takes as it is.
    Items are named by their ASIN from `imap.json` (ASIN to number), the only name that there is.
    """
    import pandas as pd

    rows = layout("\t", user="whole", item="whole", time="number")
    names = ("train.txt", "valid.txt", "test.txt")
    parts = [read_table(require(folder, name), rows).assign(held_out=np.int8(i)) for i, name in enumerate(names)]
    return RawData(pd.concat(parts, ignore_index=True), titles=_asins(find(folder, "imap.json")))


def read_ratings_csv(folder: Path) -> RawData:
    """`ratings_Beauty.csv` of the original collection: user,item,rating,unix time without a header."""
    rows = layout(",", user="id", item="id", rating="number", time="number")
    return RawData(read_table(require(folder, "ratings_Beauty.csv"), rows))


def _asins(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    with opened(path) as file:
        try:
            numbers = json.load(file)
            return {str(int(number)): str(asin) for asin, number in numbers.items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise DataError(f"{path.name} is not a table of item to number in JSON ({error}).") from None
