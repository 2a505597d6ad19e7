"""Results as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as a table, columns as in the first row; what another one lacks stays empty."""
    head = list(rows[0])
    lines = [head, ["---"] * len(head), *([str(row.get(key, "")) for key in head] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
