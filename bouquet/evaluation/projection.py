"""An embedding table on a plane: its first two principal components.

Papers draw such maps with t-SNE, whose places depend on a draw and on settings that they do not print, and whose
distances mean nothing beyond a few neighbours. Here they are a projection: nothing is drawn by lot, and a share says
how much of the table's spread the plane shows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def on_a_plane(table: NDArray[np.floating[Any]]) -> tuple[NDArray[np.float64], float]:
    """The rows of a table [m, d] as points, by one singular value decomposition of the centred table.

    A component has no sign of its own: each is turned so that its point of largest size is on the positive side.

    Returns:
        [m, 2], the largest coordinate scaled to 1 (zeros where all rows are alike, or the table has one column alone);
        and the share of the variance that the two components have, 1 where there is none.
    """
    centred = np.asarray(table, dtype=np.float64)
    centred = centred - centred.mean(axis=0)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    points = np.zeros((len(centred), 2))
    count = min(2, len(values))
    points[:, :count] = left[:, :count] * values[:count]
    farthest = points[np.abs(points).argmax(axis=0), np.arange(2)]
    points *= np.where(farthest < 0, -1.0, 1.0)
    largest, variance = np.abs(points).max(), (values**2).sum()
    # What is left of equal rows after centring is rounding, and no place on a map.
    if largest <= 1e-12 * max(np.abs(table).max(), 1e-300):
        return np.zeros_like(points), 1.0
    return points / largest, float((values[:2] ** 2).sum() / variance)
