"""Who is whose neighbour, and how many of them must be left (Bell et al., CCS 2020).

A ring of all nodes in an order that follows from all their keys, in which everybody is joined to the k / 2 next ones on
both sides (Harary). The order is nobody's choice, but a server can choose among sets of nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

LEAST_NODES = 3
"""Of two, each could take off what it gave itself."""


@dataclass(frozen=True)
class Graph:
    """The neighbourhoods of one round.

    Attributes:
        nodes: n.
        neighbors: k; 0: all others.
        threshold: τ, above 0 and below 1.
        seed: T, what the order follows from.
    """

    nodes: int
    neighbors: int
    threshold: float
    seed: bytes

    @property
    def degree(self) -> int:
        """How many neighbours everybody has."""
        others = self.nodes - 1
        wanted = self.neighbors + self.neighbors % 2
        return others if not 0 < wanted < others else wanted

    @property
    def quorum(self) -> int:
        """How many nodes must be left, and agree."""
        return least(self.nodes, self.threshold)

    @property
    def shares_needed(self) -> int:
        """How many of the holders of a secret are needed to find it."""
        return least(self.degree + 1, self.threshold)

    def neighbors_of(self, node: int) -> list[int]:
        """Ascending, without itself."""
        if self.degree == self.nodes - 1:
            return [other for other in range(self.nodes) if other != node]
        place = int(self._places[node])
        steps = range(1, self.degree // 2 + 1)
        return sorted(int(self._order[(place + sign * step) % self.nodes]) for step in steps for sign in (1, -1))

    def holders_of(self, node: int) -> list[int]:
        """Who has shares of its secrets: its neighbours and itself, ascending."""
        return sorted([node, *self.neighbors_of(node)])

    def is_connected(self, members: NDArray[np.bool_]) -> bool:
        """Whether these nodes hang together: where they do not, sums over the parts could be told apart."""
        left = set(np.flatnonzero(members).tolist())
        if self.degree == self.nodes - 1 or not left:
            return True
        reached = [left.pop()]
        while reached:
            near = left.intersection(self.neighbors_of(reached.pop()))
            left -= near
            reached += near
        return not left

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        keys = [sha256(self.seed + node.to_bytes(4, "little")).digest() for node in range(self.nodes)]
        return np.array(sorted(range(self.nodes), key=keys.__getitem__))

    @cached_property
    def _places(self) -> NDArray[np.int64]:
        return np.argsort(self._order)


def least(count: int, threshold: float) -> int:
    """The smallest number that is more than a share of `count`, and at most all."""
    return min(int(threshold * count) + 1, count)
