"""What every reader returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class RawData:
    """The rows of a data set, in the order of its files.

    Attributes:
        table: columns `user` and `item` (whole numbers or text), `time` where the set has times, and `held_out` (truth
            values) where it was published with a split: whether the row is one of its test.
        in_order: without times, whether a user's rows are oldest first all the same.
        titles: raw item id to title.
    """

    table: pd.DataFrame
    in_order: bool = False
    titles: Mapping[str, str] = field(default_factory=dict)
