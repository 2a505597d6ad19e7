"""How large a reply can be that makes sense: the server drops a larger one before it is read."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from bouquet.arrays import Specs
from bouquet.cells import CellSpec
from bouquet.records import LONGEST_REASON
from bouquet.wire.declared import METRIC_SHAPE, Reports, Update

# What a message takes beside its arrays' values: names, shapes, item numbers, text.
_OVERHEAD = 64 * 1024
# Its key, loss and size, or the reason why it is left out.
_PER_USER = 64 + LONGEST_REASON
# Of a cell its column and its value, and its row and that row's length where it is the only one in it.
_PER_CELL = 20

# Keys and sizes of some millions of users.
MOST_ROSTER_BYTES = 64 * 2**20


def most_train_bytes(
    specs: Specs,
    update: Update,
    users: int,
    reports: Reports | None = None,
    cells: Mapping[str, CellSpec] | None = None,
) -> int:
    """The largest training reply that makes sense: every row touched, with item numbers, in float64.

    A report of any size has at most one entry per item.
    """
    whole = sum(12 * spec.size for spec in specs.values())
    whole += sum(_PER_CELL * spec.size for spec in (cells or {}).values())
    items = max((spec.shape[0] for spec in specs.values() if spec.by_item), default=0)
    told = sum(
        4 * math.prod(items if size < 0 else size for size in report.shape) for report in (reports or {}).values()
    )
    return _OVERHEAD + (_PER_USER + told) * users + whole * (users if update == "rows" else 1)


def most_evaluate_bytes(users: int, reports: Reports | None = None) -> int:
    """The largest evaluation reply that makes sense."""
    told = sum(4 * math.prod(report.shape) for report in (reports or {}).values())
    return _OVERHEAD + users * (_PER_USER + told + 4 * int(np.prod(METRIC_SHAPE)))
