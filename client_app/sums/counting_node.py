"""Nodes whose users count: each says once what it did, and later what has changed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Specs
from bouquet.attacks import liars, target_of
from bouquet.cells import Cells, CellSpec
from bouquet.device import GIVEN
from bouquet.needs import refuse_disk
from bouquet.ragged import Ragged
from bouquet.randomness import Words
from bouquet.wire import TrainReply, TrainRequest, Update
from client_app.sums.counter import Counter, PushedCounter
from client_app.sums.given import Given
from client_app.sums.node import SumsNode

# Of a history that was given: user, round and length of each, and so many versions.
_ENTRY_BYTES, _VERSIONS = 24, 3
# Key and value of one cell that is being counted, and of half as many where two runs of them become one.
_CELL_BYTES = 24


@dataclass(frozen=True)
class CountingNode(SumsNode):
    """A `Node` over a `Counter`: what users give is kept, so that it is given once and can be taken back."""

    device: Counter

    @property
    def cells(self) -> Mapping[str, CellSpec]:
        return self.device.specs

    def refuse_full_disk(self, request: TrainRequest) -> None:
        folder = self._folders.of_series(request.series)
        users = len(self.histories.users)
        if not folder.exists():
            who = f"What {users:,} users have given"
            refuse_disk(
                self.state_bytes({}), folder, who, "take another disk (state-dir), or fewer users on this node."
            )

    def state_bytes(self, shared: Specs) -> float:
        train = self.counted(self.histories.train)
        return float(_VERSIONS * (train.values.nbytes + _ENTRY_BYTES * len(train)))

    def round_bytes(self, returning: Specs, update: Update, nodes: int) -> float:
        # Where users are spread over nodes, the largest can still be all of one.
        cells = int(self.device.sizes(self.counted(self.histories.train).lengths)[0].sum()) // nodes
        most = sum(spec.size for spec in self.device.specs.values())
        return float(_CELL_BYTES * min(cells, most))

    def train(self, request: TrainRequest) -> TrainReply:
        """What the asked users add to the server's sums, each since the round whose reply the server has.

        A user with version 0 gives everything. One of whom this node no longer has what it gave in the server's round
        is left out: whatever it gave now would be counted beside that.
        """
        start = time.perf_counter()
        positions = self.place.positions(request.users)
        train = self.counted(self.histories.train.take(positions))
        given = Given(self._folders.of_node(request.series) / GIVEN, self.place.seal, durable=self.place.durable)
        kept, changed = np.zeros((2, len(positions)), dtype=bool)
        left_out: dict[int, str] = {}
        before: list[NDArray[np.int32]] = []
        for place, (user, version, last) in enumerate(
            zip(request.users.tolist(), request.versions.tolist(), request.kept.tolist(), strict=True)
        ):
            history = train.row(place)
            was = given.versions(user).get(version) if version else None
            if version and was is None:
                left_out[user] = f"what it gave in round {version} is not known here any more"
                continue
            kept[place] = True
            given.put(user, request.round, history, (version, last))
            if was is None or not np.array_equal(was, history):
                changed[place] = True
                before += [] if was is None else [was]
        lying = changed & self._lying(request.users)
        cells = self.device.contribution(train.take(np.flatnonzero(changed & ~lying)))
        if lying.any():
            target = target_of(self.config, self.histories.num_items)
            assert isinstance(self.device, PushedCounter)
            cells = self.device.with_lies(cells, train.take(np.flatnonzero(lying)), target, self.config.attack_strength)
        if before:
            earlier = self.device.contribution(
                Ragged.from_lengths([len(items) for items in before], np.concatenate(before))
            )
            cells = {name: found.minus(earlier[name], self.device.specs[name]) for name, found in cells.items()}
        given.save()
        self._folders.drop_old(request.series)
        sizes = train.lengths[kept]
        upload = np.where(changed[kept], self.device.upload_bytes(sizes), 0)
        if len(positions) == 1:
            upload[:] = sum(found.nbytes for found in cells.values())
        return TrainReply(
            users=request.users[kept],
            loss=np.full(len(sizes), np.nan, np.float32),
            upload_bytes=upload,
            cells=cells,
            sizes=sizes,
            left_out=left_out,
            seconds=time.perf_counter() - start,
        )

    def _lying(self, users: Words) -> NDArray[np.bool_]:
        """[k] who lies; nobody where there is no attack."""
        return liars(self.config, users) if self.config.attack != "none" else np.zeros(len(users), dtype=bool)

    def withdrawn(self, path: Path) -> dict[int, dict[str, Cells]]:
        given = Given(path, self.place.seal)
        return {
            version: self.device.contribution(Ragged.from_lengths([len(items)], items))
            for user in given.users
            for version, items in given.versions(user).items()
        }
