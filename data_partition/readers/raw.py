"""What every reader returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Reading:
    """What had to be found out about a file of one's own, and what of it could not be read.

    Attributes:
        form: encoding and separator where they are not the usual ones, and forms of times where there are several, in
            words; "": nothing to say.
        rows: lines with something in them, the header aside.
        skipped: rows that are left out because they are broken.
        examples: some of them, each with its line and what is wrong.
    """

    form: str
    rows: int
    skipped: int = 0
    examples: tuple[str, ...] = ()


@dataclass(frozen=True)
class RawData:
    """The rows of a data set, in the order of its files.

    Attributes:
        table: columns `user` and `item` (whole numbers or text), `time` where the set has times, and `held_out`
            where it was published with a split: truth values, whether the row is one of its test; or 0 for training,
            1 for validation and 2 for test.
        in_order: without times, whether a user's rows are oldest first all the same.
        titles: raw item id to title.
        reading: of a file of one's own; None: of a known set.
    """

    table: pd.DataFrame
    in_order: bool = False
    titles: Mapping[str, str] = field(default_factory=dict)
    reading: Reading | None = None
