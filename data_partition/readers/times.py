"""Times as files have them: numbers in any unit, ISO 8601 dates, or, where programs were changed over the years, both.

Only the order of times counts, so numbers stay as they are wherever they can be of one unit. They are of several where
most lie, as seconds, milliseconds, microseconds or nanoseconds since 1970, between 1990 and 2100: these four ranges are
far from one another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

_FROM, _TO = 631_152_000.0, 4_102_444_800.0
_UNITS = (1.0, 1e3, 1e6, 1e9)

NUMBER = "a number"
DATE = "a date like 2026-11-21 or 2026-11-21T10:00:00"
MIXED = f"{DATE}, or seconds or milliseconds since 1970"
EPOCH = "seconds or milliseconds since 1970, as others are"


@dataclass(frozen=True, eq=False)
class Times:
    """A column of times.

    Attributes:
        values: [n] what orders them: seconds since 1970, or numbers of the unit that the column has.
        bad: [n] which are no times; missing ones are.
        wanted: what they must be, in words.
        mixed: whether the column has several forms or units.
    """

    values: NDArray[np.float64]
    bad: NDArray[np.bool_]
    wanted: str
    mixed: bool = False


def times_of(raw: pd.Series) -> Times:
    """The times of a column of texts, numbers or dates. Dates without a zone are in UTC."""
    import pandas as pd

    if pd.api.types.is_datetime64_any_dtype(raw):
        values = _seconds(pd.to_datetime(raw, utc=True))
        return Times(values, np.isnan(values), DATE)
    numbers = pd.to_numeric(raw, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    is_number = np.isfinite(numbers)
    values = np.where(is_number, numbers, np.nan)
    if is_number.all():
        return _numbers(values)
    texts = raw[~is_number].astype(str).str.strip()
    dates = _seconds(pd.to_datetime(texts, format="ISO8601", utc=True, errors="coerce"))
    units = _unit_of(values)
    # A few dates among numbers that are no epoch are what is wrong there, and not the numbers.
    if np.isnan(dates).all() or (is_number & (units == 0)).sum() > (~np.isnan(dates)).sum():
        return _numbers(values)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.where(units > 0, values / units, np.nan)
    values[~is_number] = dates
    return Times(values, np.isnan(values), MIXED if is_number.any() else DATE, mixed=bool(is_number.any()))


def _numbers(values: NDArray[np.float64]) -> Times:
    units = _unit_of(values)
    of_epoch = units > 0
    if len(np.unique(units[of_epoch])) < 2 or 2 * of_epoch.sum() <= np.isfinite(values).sum():
        return Times(values, np.isnan(values), NUMBER)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.where(of_epoch, values / units, np.nan)
    return Times(values, np.isnan(values), EPOCH, mixed=True)


def _unit_of(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """[n] how many of the unit are a second; 0 where a number is no time between 1990 and 2100 in any of them."""
    units = np.zeros(len(values))
    for unit in _UNITS:
        units[(values >= _FROM * unit) & (values < _TO * unit)] = unit
    return units


def _seconds(times: pd.Series) -> NDArray[np.float64]:
    """[n] since 1970; NaN where there is none."""
    import pandas as pd

    since = times - pd.Timestamp(0, tz="UTC")
    return np.asarray(since.dt.total_seconds(), dtype=np.float64)
