"""Settings that validation chooses: uphill on a stated grid, so that few fits are made where one takes long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from bouquet.errors import BouquetError

Setting = TypeVar("Setting")


def climb(grid: Sequence[Setting], start: int, value: Callable[[Setting], float]) -> Setting:
    """The best entry that is met on the way up from `grid[start]`; among equals the first of the grid.

    The next entries are asked while each is better than the last. If the first of them is not better than the start,
    the entries before it are asked, while none is worse.

    Raises:
        BouquetError: a value is not a number.
    """
    values: dict[int, float] = {}

    def at(place: int) -> float:
        if place not in values:
            values[place] = value(grid[place])
            refuse_nan(values[place])
        return values[place]

    here = start
    at(here)
    while here + 1 < len(grid) and at(here + 1) > at(here):
        here += 1
    if here == start:
        while here > 0 and at(here - 1) >= at(here):
            here -= 1
    best = max(values.values())
    return grid[min(place for place, found in values.items() if found == best)]


def refuse_nan(value: float) -> None:
    """Raises: BouquetError: a validation score is not a number."""
    if np.isnan(value):
        raise BouquetError("Nothing can be chosen on validation: the validation score is not a number.")
