"""A node whose users train a model."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Specs
from bouquet.cells import Cells, CellSpec
from bouquet.config import RunConfig, Settings
from bouquet.extras import is_there
from bouquet.randomness import Words
from bouquet.wire import EvaluateReply, EvaluateRequest, RosterReply, TrainReply, TrainRequest, Update
from client_app.node import handlers, needs
from client_app.node.histories import Histories
from client_app.node.host import Host, host_at
from client_app.node.lists import Watch
from client_app.node.place import Place


@dataclass(frozen=True)
class TrainingNode:
    """A `Node` over a `Host`."""

    host: Host

    @classmethod
    def at(cls, settings: Settings, place: Place) -> Self:
        """As `node_at`."""
        host = host_at(settings, place)
        if needs.uses_torch(host) and is_there("torch"):
            import torch

            # Processes, not threads, are what nodes are spread over; more threads would fight for the same cores.
            torch.set_num_threads(1)
        return cls(host)

    @property
    def config(self) -> RunConfig:
        return self.host.config

    @property
    def histories(self) -> Histories:
        return self.host.histories

    @property
    def place(self) -> Place:
        return self.host.place

    @property
    def shared_specs(self) -> Specs:
        return self.host.shared_specs

    @property
    def cells(self) -> Mapping[str, CellSpec]:
        return {}

    def positions(self, users: Words) -> NDArray[np.int64]:
        return self.host.positions(users)

    def watched_by(self, watch: Watch) -> Self:
        return replace(self, host=replace(self.host, on_scores=watch))

    def alone(self, series: str) -> AbstractContextManager[None]:
        return self.host.folders.alone(series)

    def roster(self) -> RosterReply:
        return self.host.place.roster(self.host.shared_specs)

    def refuse_unable(self) -> None:
        needs.refuse_unable(self.host)

    def refuse_full_disk(self, request: TrainRequest) -> None:
        needs.refuse_full_disk(self.host, request.series, request.shared)

    def train(self, request: TrainRequest) -> TrainReply:
        return handlers.train(self.host, request)

    def evaluate(self, request: EvaluateRequest) -> EvaluateReply:
        return handlers.evaluate(self.host, request)

    def withdrawn(self, path: Path) -> dict[int, dict[str, Cells]]:
        return {}

    def state_bytes(self, shared: Specs) -> float:
        return needs.state_bytes(self.host, shared)

    def fewer_rows(self, shared: Specs) -> str:
        return needs.fewer_rows(self.host, shared)

    def round_bytes(self, returning: Specs, update: Update, nodes: int) -> float:
        return needs.round_bytes(self.host, returning, update == "rows", nodes)
