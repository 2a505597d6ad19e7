"""Figures as people read them."""

from __future__ import annotations


def short(value: float | None) -> str:
    """A share in three digits, as tables of papers have it; a dash where there is none."""
    return "–" if value is None else f"{value:.3f}".removeprefix("0")


def size(count: float) -> str:
    """Bytes."""
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
