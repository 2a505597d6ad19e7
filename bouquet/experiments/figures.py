"""How numbers are written in tables."""

from __future__ import annotations

import numpy as np


def figure(value: float | None, digits: int = 3) -> str:
    """A metric in three digits, or more: '.123', '–' where there is none."""
    if value is None or np.isnan(value):
        return "–"
    text = f"{abs(value):.{digits}f}".removeprefix("0")
    return f"−{text}" if value < 0 and float(text) > 0 else text


def probability(value: float) -> str:
    """A p-value in three digits."""
    return "<.001" if value < 0.001 else figure(value)


def kilobytes(count: float | None) -> str:
    """A number of bytes, in KB."""
    return "–" if count is None else f"{count / 1000:,.1f} KB"
