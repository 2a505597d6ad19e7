"""Where in a file there is room: between what is taken, and after it."""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np
from numpy.typing import NDArray


class Space:
    """The bytes of a file that nothing takes.

    Args:
        offsets, sizes: [p] what is taken, in any order and nowhere twice.
    """

    def __init__(self, offsets: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        order = np.argsort(offsets)
        begins, ends = offsets[order], (offsets + sizes)[order]
        before = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
        gap = begins > before
        # Ascending by size: (bytes, where they begin).
        self._gaps = sorted(zip((begins - before)[gap].tolist(), before[gap].tolist(), strict=True))
        self.end = int(ends[-1]) if len(ends) else 0

    def take(self, sizes: NDArray[np.integer]) -> NDArray[np.int64]:
        """[k] where things of these sizes go: each into the smallest gap that holds it, or behind everything."""
        found = np.empty(len(sizes), np.int64)
        for number, size in enumerate(sizes.tolist()):
            place = bisect_left(self._gaps, (size, 0))
            if place == len(self._gaps):
                found[number] = self.end
                self.end += size
                continue
            gap, begin = self._gaps.pop(place)
            found[number] = begin
            if gap > size:
                insort(self._gaps, (gap - size, begin + size))
        return found
