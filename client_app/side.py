"""The two kinds of nodes: those whose users train a model, and those whose users add to sums."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import lru_cache
from pathlib import Path
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Specs
from bouquet.cells import Cells, CellSpec
from bouquet.config import RunConfig, Scalar, Settings, lookup, parsed
from bouquet.methods import METHODS
from bouquet.randomness import Words
from bouquet.wire import EvaluateReply, EvaluateRequest, RosterReply, TrainReply, TrainRequest, Update
from client_app.node.histories import Histories
from client_app.node.lists import Watch
from client_app.node.place import Place, place_of


class Node(Protocol):
    """The users of one node, and what answers for them."""

    @property
    def config(self) -> RunConfig:
        """The run's settings."""
        ...

    @property
    def histories(self) -> Histories:
        """The hosted users' data."""
        ...

    @property
    def place(self) -> Place:
        """Who lives here."""
        ...

    @property
    def shared_specs(self) -> Specs:
        """The arrays that may travel."""
        ...

    @property
    def cells(self) -> Mapping[str, CellSpec]:
        """The matrices that users add to; none where they train a model."""
        ...

    def positions(self, users: Words) -> NDArray[np.int64]:
        """As `Place.positions`."""
        ...

    def watched_by(self, watch: Watch) -> Self:
        """The same node, of whose evaluations somebody sees the scores that its users would recommend with."""
        ...

    def alone(self, series: str) -> AbstractContextManager[None]:
        """As `StateFolders.alone`."""
        ...

    def roster(self) -> RosterReply:
        """Who lives here, and which catalogue they know."""
        ...

    def refuse_unable(self) -> None:
        """Called when a node is asked who lives there: what it cannot do it says before the first round.

        Raises:
            ConfigError: the run wants what this node does not have.
        """
        ...

    def refuse_full_disk(self, request: TrainRequest) -> None:
        """Refuse to train users whose state does not fit on this node's disk, before any of it is written.

        Raises:
            RunFailed: there is too little room.
            StateError: the folder cannot be written.
        """
        ...

    def train(self, request: TrainRequest) -> TrainReply:
        """What the asked users give in a round."""
        ...

    def evaluate(self, request: EvaluateRequest) -> EvaluateReply:
        """How well what is held out of the asked users' histories is ranked."""
        ...

    def withdrawn(self, path: Path) -> dict[int, dict[str, Cells]]:
        """What somebody had given who asked to be forgotten, by round and matrix.

        Args:
            path: the file that says so.
        """
        ...

    def state_bytes(self, shared: Specs) -> float:
        """Bytes of private state on the disk, when these arrays travel to all users alike."""
        ...

    def fewer_rows(self, shared: Specs) -> str:
        """Settings that would make this less, as a part of a sentence that ends with a comma; "" where none would."""
        ...

    def round_bytes(self, returning: Specs, update: Update, nodes: int) -> float:
        """Bytes of memory that a round takes, beside the messages, where the users are spread over so many nodes."""
        ...


def node_at(settings: Settings, place: Place) -> Node:
    """The users of one place, as a method has them.

    Raises:
        ConfigError: there is no such method, a setting cannot be used, or something reads an order that the histories
            do not have.
    """
    if lookup(METHODS, "strategy", settings.run.strategy).kind == "sums":
        # Each where it is needed: who adds to sums needs nothing of what those do who train.
        from client_app.sums.nodes import node_of_sums

        return node_of_sums(settings, place)
    from client_app.node.training import TrainingNode

    return TrainingNode.at(settings, place)


def node_of(run_config: Mapping[str, Scalar], node_config: Mapping[str, Scalar]) -> Node:
    """The node for a message, built once per process and configuration.

    Raises:
        ConfigError, DataError: the configuration or the data cannot be used.
    """
    return _node(tuple(sorted(run_config.items())), tuple(sorted(node_config.items())))


Items = tuple[tuple[str, Scalar], ...]
_built: list[tuple[Items, Items]] = []


def last_built() -> tuple[Items, Items] | None:
    """Of which settings the last node of this process was built, so that another process can build it beforehand."""
    return _built[-1] if _built else None


def build(run_items: Items, node_items: Items) -> None:
    """Have this node ready, and none that was ready before.

    Raises:
        ConfigError, DataError: as `node_of`.
    """
    if last_built() != (run_items, node_items):
        _node.cache_clear()
        _node(run_items, node_items)


@lru_cache(maxsize=64)
def _node(run_items: Items, node_items: Items) -> Node:
    _built[:] = [(run_items, node_items)]
    settings = parsed(dict(run_items))
    return node_at(settings, place_of(settings.run, dict(node_items)))
