"""What a device tells of its history, and how it recommends with what the server made of everybody's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Specs
from bouquet.cells import Cells, Total
from bouquet.methods.parts import ModelOfSums, SumsOptions
from bouquet.ragged import Ragged

Published = Mapping[str, NDArray[Any]]
# So many weights of neighbours are gathered at once.
_GATHERED = 2**21


class Recommender(ABC):
    """A method's half on the device, whatever its sums are made of.

    Args:
        num_items: m.
        options: the method's settings.

    Attributes:
        without_order: what to choose where histories have no order, for a method that reads it.
    """

    without_order = ""

    def __init__(self, num_items: int, options: ModelOfSums) -> None:
        self.num_items, self.options = num_items, options

    @staticmethod
    def reads_order(options: ModelOfSums) -> bool:
        """Whether it matters what came after what."""
        return False

    @property
    def traveling(self) -> Specs:
        """All arrays that may travel, there or back; cells are told apart from them."""
        return self.options.published(self.num_items)

    @abstractmethod
    def scores(self, published: Published, histories: Ragged) -> NDArray[np.float32]:
        """[k, m] of every item, for these histories, from the arrays that were published."""


class Counter(Recommender):
    """The device's half of a method whose sums are of cells, exact and given once."""

    options: SumsOptions

    def __init__(self, num_items: int, options: SumsOptions) -> None:
        super().__init__(num_items, options)
        self.specs = options.cells(num_items)

    @abstractmethod
    def counted(self, histories: Ragged) -> Iterator[tuple[str, NDArray[np.int64], NDArray[np.float64] | float]]:
        """Everything that these histories add to the sums: name of the matrix, keys of cells [c], values [c] or one.

        Args:
            histories: [k] rows of distinct items, oldest first.
        """

    @abstractmethod
    def sizes(self, lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """[k] cells, and rows of cells, that users with histories of these lengths send, all matrices together."""

    def ages(self, oldest: int) -> NDArray[np.float64]:
        """[w] what an item weighs that is 0, 1, … back, at most up to the oldest age that occurs; others weigh 0."""
        return np.ones(oldest + 1)

    def contribution(self, histories: Ragged) -> dict[str, Cells]:
        """What these users give together, by matrix."""
        totals = {name: Total(spec) for name, spec in self.specs.items()}
        for name, keys, values in self.counted(histories):
            totals[name].add(keys, values)
        return {name: total.cells() for name, total in totals.items()}

    def upload_bytes(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """[k] bytes that a user sends who sends everything, alone: numbers of cells and rows, and 32-bit values."""
        cells, rows = self.sizes(lengths)
        return 8 * cells + 8 * rows

    def scores(self, published: Published, histories: Ragged) -> NDArray[np.float32]:
        """[k, m] s_j = Σ_i w(age of i) K[i, j] over the items i of a history, 0 where nothing speaks for an item."""
        k, m = len(histories), self.num_items
        left = until_end(histories)
        ages = self.ages(int(left.max(initial=0)))
        read = left < len(ages)
        items, owner, weight = histories.values[read], histories.row_of_value[read], ages[left[read]]
        if "factors" in published:
            factors, scales = (published[name].astype(np.float64) for name in ("factors", "scales"))
            vectors = np.zeros((k, factors.shape[1]))
            starts = np.flatnonzero(np.diff(owner, prepend=-1))
            if len(starts):
                vectors[owner[starts]] = np.add.reduceat(weight[:, None] * factors[items], starts, axis=0)
            return np.asarray(vectors @ factors.T * scales, np.float32)
        if "neighbors" not in published:
            mixed = np.zeros((k, m))
            mixed[owner, items] = weight
            # In float64, so that items which score the same do so whatever users stand beside each other.
            return np.asarray(mixed @ published["weights"].astype(np.float64), np.float32)
        neighbors, weights = published["neighbors"], published["weights"]
        found = np.zeros(k * m)
        step = max(1, _GATHERED // max(neighbors.shape[1], 1))
        for start in range(0, len(items), step):
            part = slice(start, start + step)
            first, last = int(owner[part][0]), int(owner[part][-1]) + 1
            cells = (owner[part] - first)[:, None] * m + neighbors[items[part]]
            values = weight[part, None] * weights[items[part]]
            found[first * m : last * m] += np.bincount(cells.ravel(), values.ravel(), minlength=(last - first) * m)
        return found.reshape(k, m).astype(np.float32)


class PairCounter(Counter):
    """A counter of pairs of items, which has a private sum."""

    @abstractmethod
    def of_distance(self, longest: int) -> NDArray[np.float64]:
        """[w] what two items of a history that are 0, 1, … apart count for each other in a private sum of pairs."""


class PushedCounter(Counter):
    """A counter of which it is known what users do who promote an item: its manifest has the attack "push"."""

    @abstractmethod
    def pushed(
        self, histories: Ragged, target: int, strength: float
    ) -> Iterator[tuple[str, NDArray[np.int64], NDArray[np.float64] | float]]:
        """As `counted`, of users who promote an item.

        Args:
            target: the item.
            strength: in multiples of what a history can hold of one item.
        """

    def with_lies(
        self, cells: Mapping[str, Cells], histories: Ragged, target: int, strength: float
    ) -> dict[str, Cells]:
        """The cells, and those of users with these histories who lie."""
        totals = {name: Total(spec) for name, spec in self.specs.items()}
        for name, found in cells.items():
            totals[name].add(found.keys(self.specs[name]), found.values.astype(np.float64))
        for name, keys, values in self.pushed(histories, target, strength):
            totals[name].add(keys, values)
        return {name: total.cells() for name, total in totals.items()}


def until_end(histories: Ragged) -> NDArray[np.int64]:
    """[nnz] how many items come after each in its history: its age when the next one is recommended."""
    return np.repeat(histories.indptr[1:], histories.lengths) - np.arange(len(histories.values)) - 1


def apart(histories: Ragged, distances: range) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """For each distance d, places p in `histories.values` such that p and p + d are of one history."""
    left = until_end(histories)
    places = np.flatnonzero(left >= distances.start)
    for distance in distances:
        places = places[left[places] >= distance]
        if not len(places):
            return
        yield distance, places


def pairs(lengths: NDArray[np.int64], distances: range) -> NDArray[np.int64]:
    """[k] how many pairs `apart` finds in histories of these lengths."""
    # Σ_d max(n - d, 0) for d from a to b: with c = min(b, n), (c - a + 1) n - (c (c + 1) - a (a - 1)) / 2.
    first = distances.start
    last = np.minimum(distances.stop - 1, lengths)
    found = (last - first + 1) * lengths - (last * (last + 1) - first * (first - 1)) // 2
    return np.where(last >= first, found, 0)
