"""Wikipedia edits of JODIE: an editor edits the same page many times."""

from __future__ import annotations

from pathlib import Path

from data_partition.readers.files import require
from data_partition.readers.raw import RawData
from data_partition.readers.text import layout, read_table


def read_wikipedia(folder: Path) -> RawData:
    """`wikipedia.csv`: a header, then user, item, time, label and any number of features (none in some copies)."""
    rows = layout(",", header=True, more=True, user="whole", item="whole", time="number", label=None)
    return RawData(read_table(require(folder, "wikipedia.csv"), rows))
