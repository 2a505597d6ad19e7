"""What users tell the server beside their update or their metrics, where a strategy asks for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from client_app.node.host import Host
from client_app.personalization.round import Given
from client_app.training import LocalTask


class Told:
    """What the users of a node tell, collected block by block.

    Args:
        wanted: the names that the server asks for; others are dropped.
    """

    def __init__(self, wanted: Collection[str]) -> None:
        self._wanted = wanted
        self._parts: dict[str, list[NDArray[np.float32]]] = {}

    def add(self, reports: Mapping[str, NDArray[np.float32]]) -> None:
        """Add what the next users tell: [k, …] by name."""
        for name in reports.keys() & set(self._wanted):
            self._parts.setdefault(name, []).append(reports[name])

    def stacked(self) -> dict[str, NDArray[np.float32]]:
        """All users one after another; where last axes differ in length, padded with zeros."""
        return {name: _stacked(parts) for name, parts in self._parts.items()}


def reports_of(
    host: Host, task: LocalTask, given: Given, kept: NDArray[np.int64], asked: NDArray[np.int64]
) -> dict[str, NDArray[np.float32]]:
    """What some of the trained users tell beside their update, with zeros for the others.

    Args:
        kept: the users of the task that `given` is about.
        asked: those of them who are asked.
    """
    whole = len(asked) == len(kept)
    of = given if whole else given.take(np.searchsorted(kept, asked))
    positives, negatives, users = task.positives.take(asked), task.negatives.take(asked), task.users[asked]
    found = {}
    for method in host.methods:
        for name, values in method.reports(of, users, positives, negatives, task.round, host.draws).items():
            found[name] = values
            if not whole:
                found[name] = np.zeros((len(kept), *values.shape[1:]), values.dtype)
                found[name][np.searchsorted(kept, asked)] = values
    return found


def _stacked(parts: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Blocks of users one after another; where their last axes differ in length, padded with zeros."""
    longest = max(part.shape[-1] for part in parts)
    return np.concatenate([np.pad(p, [(0, 0)] * (p.ndim - 1) + [(0, longest - p.shape[-1])]) for p in parts])
