"""Nodes whose users solve for a vector of their own, and add what it says of the items."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from bouquet.arrays import Specs
from bouquet.cells import Cells
from bouquet.wire import TrainReply, TrainRequest, Update
from client_app.sums.node import SumsNode
from client_app.sums.solver import Solver


@dataclass(frozen=True)
class SolvingNode(SumsNode):
    """A `Node` over a `Solver`: everything is computed anew from the arrays of a round, and nothing is kept."""

    device: Solver

    def refuse_full_disk(self, request: TrainRequest) -> None:
        """Nothing is written."""

    def state_bytes(self, shared: Specs) -> float:
        return 0.0

    def round_bytes(self, returning: Specs, update: Update, nodes: int) -> float:
        users = -(-len(self.histories.users) // nodes)
        return self.device.round_bytes(returning, users)

    def train(self, request: TrainRequest) -> TrainReply:
        """What the asked users add to the sums of this round; one whose numbers are not finite is left out."""
        start = time.perf_counter()
        histories = self.counted(self.histories.train.take(self.place.positions(request.users)))
        given = self.device.given(request.shared, histories)
        reply = TrainReply(
            users=request.users[given.fit],
            loss=given.loss[given.fit],
            upload_bytes=given.upload_bytes[given.fit],
            sums=given.sums,
            left_out=dict.fromkeys(request.users[~given.fit].tolist(), "its solution is not finite"),
        )
        return replace(reply, seconds=time.perf_counter() - start)

    def withdrawn(self, path: Path) -> dict[int, dict[str, Cells]]:
        return {}
