"""Which node hosts which users."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bouquet.config import lookup
from bouquet.errors import ConfigError

Sizes = NDArray[np.int64]


def assign(sizes: ArrayLike, num_partitions: int, scheme: str = "contiguous") -> NDArray[np.int64]:
    """The partition of every user.

    Args:
        sizes: [n] interactions of every user.
        num_partitions: number of nodes; with more nodes than users some have none.
        scheme: a name in SCHEMES.
    Returns:
        [n] numbers in [0, num_partitions).
    Raises:
        ConfigError: no such scheme, no partition, or a number of partitions that does not fit the scheme.
    """
    assign_by_scheme = lookup(SCHEMES, "partition", scheme)
    if num_partitions < 1:
        raise ConfigError(f"Users need at least one node, not {num_partitions}.")
    return assign_by_scheme(np.asarray(sizes, dtype=np.int64), num_partitions)


def users_of(assignment: NDArray[np.int64], partition_id: int) -> NDArray[np.int64]:
    """The users of one partition, ascending."""
    return np.flatnonzero(assignment == partition_id)


def _contiguous(sizes: Sizes, num_partitions: int) -> NDArray[np.int64]:
    """Neighbours stay together; numbers of users differ by one at most, the larger ones first."""
    base, larger = divmod(len(sizes), num_partitions)
    counts = base + (np.arange(num_partitions) < larger)
    return np.repeat(np.arange(num_partitions), counts)


def _by_size(sizes: Sizes, num_partitions: int) -> NDArray[np.int64]:
    """Numbers of interactions are balanced: the largest user first, each to the node that has least."""
    assignment = np.zeros(len(sizes), dtype=np.int64)
    # Among nodes with equally many interactions the one with fewer users comes first, so that users without any
    # interaction are spread too.
    loads = [(0, 0, partition) for partition in range(num_partitions)]
    for user in np.argsort(-sizes, kind="stable"):
        load, users, partition = loads[0]
        assignment[user] = partition
        heapq.heapreplace(loads, (load + int(sizes[user]), users + 1, partition))
    return assignment


def _one_per_node(sizes: Sizes, num_partitions: int) -> NDArray[np.int64]:
    if num_partitions != len(sizes):
        raise ConfigError(
            f"partition 'one-per-node' needs as many nodes as users: {len(sizes)} users, {num_partitions} nodes."
        )
    return np.arange(num_partitions)


SCHEMES: dict[str, Callable[[Sizes, int], NDArray[np.int64]]] = {
    "contiguous": _contiguous,
    "by-size": _by_size,
    "one-per-node": _one_per_node,
}
