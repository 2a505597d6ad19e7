"""QB-article of Tenrec: articles shown to a user, of which the clicked ones count."""

from __future__ import annotations

from pathlib import Path

from data_partition.readers.files import require
from data_partition.readers.raw import RawData
from data_partition.readers.text import layout_of_header, read_table


def read_qb_article(folder: Path) -> RawData:
    """`QB-article.csv` with a header; needs the columns user_id, item_id and click, whatever others there are."""
    path = require(folder, "QB-article.csv")
    rows = layout_of_header(
        path, ",", {"user": ("user_id", "whole"), "item": ("item_id", "whole"), "click": ("click", "number")}
    )
    table = read_table(path, rows)
    return RawData(table[table["click"] == 1])
