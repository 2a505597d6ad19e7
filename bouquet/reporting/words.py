"""Figures and other people's words as people read them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# What a terminal takes for a command; line breaks and tabs are apart.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def short(value: float | None) -> str:
    """A share in three digits, as tables of papers have it; a dash where there is none."""
    return "–" if value is None else f"{value:.3f}".removeprefix("0")


def spent(privacy: Mapping[str, Any]) -> str:
    """What a private run has spent until here."""
    return f"ε {privacy['epsilon']:.3g}"


def size(count: float) -> str:
    """Bytes."""
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def harmless(text: str) -> str:
    """What somebody else has written, with a question mark for every character that a terminal takes for a command."""
    return _CONTROL.sub("?", text)


def harmless_line(text: str) -> str:
    """The same, without line breaks and tabs."""
    return harmless(text.replace("\n", "?").replace("\t", "?"))
