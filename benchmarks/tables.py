"""Results as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as a table with all columns that any of them has; what a row lacks stays empty."""
    head = list(dict.fromkeys(key for row in rows for key in row))
    lines = [head, ["---"] * len(head), *([str(row.get(key, "")) for key in head] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
