"""Nodes whose users train no model: they count, or they solve for a vector of their own."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Arrays, Specs
from bouquet.attacks import liars, target_of
from bouquet.cells import Cells, CellSpec
from bouquet.config import RunConfig, Settings
from bouquet.device import GIVEN
from bouquet.errors import ConfigError
from bouquet.evaluation import evaluate_users
from bouquet.evaluation.evaluate import ScoreBlock
from bouquet.methods import METHODS, PLUG_INS, check_private
from bouquet.methods.manifest import class_at
from bouquet.methods.parts import ModelOfSums
from bouquet.needs import refuse_disk
from bouquet.packed import by_entry
from bouquet.ragged import Ragged, one_after_another
from bouquet.randomness import Words
from bouquet.wire import EvaluateReply, EvaluateRequest, RosterReply, TrainReply, TrainRequest, Update
from client_app.node.histories import Histories, no_order
from client_app.node.lists import Watch, blocks, watched
from client_app.node.place import Place
from client_app.state.folders import StateFolders
from client_app.sums.counter import Counter, PushedCounter, Recommender
from client_app.sums.given import Given
from client_app.sums.own_items import each_once, with_own_items
from client_app.sums.private import PrivateCounter
from client_app.sums.solver import Solver

# Of a history that was given: user, round and length of each, and so many versions.
_ENTRY_BYTES, _VERSIONS = 24, 3
# Key and value of one cell that is being counted, and of half as many where two runs of them become one.
_CELL_BYTES = 24


def node_of_sums(settings: Settings, place: Place) -> SumsNode:
    """As `node_at`."""
    config, method = settings.run, METHODS[settings.run.strategy]
    options, device = settings.of(method.options), class_at(str(method.device))
    assert isinstance(options, ModelOfSums)
    options.check_run(config)
    check_private(method, config)
    if config.personalization != "none":
        plug_in = PLUG_INS[config.personalization]
        raise ConfigError(method.no_plug_in.format(name=method.name, plug_in=plug_in and plug_in.name))
    if device.reads_order(options) and not place.histories.in_time:
        raise ConfigError(no_order(method.name, config, device.without_order))
    made = device(place.histories.num_items, options)
    if config.private:
        made = PrivateCounter(made, config.dp_clip, config.dp_rank)
    return SolvingNode(config, place, made) if isinstance(made, Solver) else CountingNode(config, place, made)


@dataclass(frozen=True)
class SumsNode(ABC):
    """What both kinds of nodes have in common: who lives there, and how an evaluation goes.

    Attributes:
        config: the run's settings.
        place: who lives here, and where what is private is kept.
        device: the method's half on the device.
        on_scores: told what users would recommend with, whenever they are evaluated.
    """

    config: RunConfig
    place: Place
    device: Recommender
    on_scores: Watch | None = None

    @property
    def histories(self) -> Histories:
        return self.place.histories

    @property
    def shared_specs(self) -> Specs:
        return self.device.traveling

    @property
    def cells(self) -> Mapping[str, CellSpec]:
        return {}

    @property
    def _folders(self) -> StateFolders:
        return self.place.folders()

    def positions(self, users: Words) -> NDArray[np.int64]:
        return self.place.positions(users)

    def watched_by(self, watch: Watch) -> Self:
        return replace(self, on_scores=watch)

    def alone(self, series: str) -> AbstractContextManager[None]:
        return self._folders.alone(series)

    def roster(self) -> RosterReply:
        return replace(self.place.roster(self.shared_specs), sizes=self.counted(self.histories.train).lengths)

    def counted(self, histories: Ragged) -> Ragged:
        """What the method sees of histories: distinct items, oldest first."""
        return each_once(histories) if self.config.repeats == "keep" else histories

    def scores(self, published: Arrays, read: Ragged) -> NDArray[np.float32]:
        """[k, m] of every item, for users who did this."""
        histories = self.counted(read)
        found = self.device.scores(published, histories)
        if self.config.repeats == "drop":
            return found  # own items are left out of every list
        return with_own_items(found, histories, self.device.options)

    def refuse_unable(self) -> None:
        """Everybody can do this: nothing is refused."""
        return

    @abstractmethod
    def refuse_full_disk(self, request: TrainRequest) -> None:
        """As `Node`, and so are those that follow."""

    @abstractmethod
    def state_bytes(self, shared: Specs) -> float: ...

    def fewer_rows(self, shared: Specs) -> str:
        return ""

    @abstractmethod
    def round_bytes(self, returning: Specs, update: Update, nodes: int) -> float: ...

    @abstractmethod
    def train(self, request: TrainRequest) -> TrainReply: ...

    @abstractmethod
    def withdrawn(self, path: Path) -> dict[int, dict[str, Cells]]: ...

    def evaluate(self, request: EvaluateRequest) -> EvaluateReply:
        """How the published model ranks what is held out, read from each history as `test-history` says."""
        start = time.perf_counter()
        positions = self.place.positions(request.users)
        histories = self.histories
        train, validation = histories.train.take(positions), histories.validation.take(positions)
        fit = np.ones(len(positions), dtype=bool)

        def after(read: Ragged, *, shown: bool = False) -> ScoreBlock:
            def computed(rows: NDArray[np.int64]) -> NDArray[np.float32]:
                return self.scores(request.shared, read.take(rows))

            score = watched(computed, positions, self.on_scores if shown else None)

            def scores(rows: NDArray[np.int64]) -> NDArray[np.float32]:
                values = score(rows)
                good = by_entry(np.isfinite(values))
                fit[rows[~good]] = False
                return values if good.all() else np.where(good[:, None], values, np.float32(0))

            return scores

        known = after(one_after_another(train, validation), shown=True)
        parts: Mapping[str, ScoreBlock] = {
            "validation": after(train),
            "test": known if self.config.test_history == "known" else after(train),
        }
        values = evaluate_users(
            parts,
            num_items=histories.num_items,
            train=histories.had.take(positions),
            validation=validation,
            test=histories.test.take(positions),
            candidates={part: drawn.take(positions) for part, drawn in histories.candidates.items()},
            exclude_known=self.config.repeats == "drop",
        )
        whole = EvaluateReply(request.users, values.astype(np.float32))
        unfit = request.users[~fit].tolist()
        reply = whole.without(dict.fromkeys(unfit, "its scores are not finite")) if unfit else whole
        if self.on_scores and self.config.test_history != "known":
            for rows in blocks(len(positions), histories.num_items):
                known(rows)
        return replace(reply, seconds=time.perf_counter() - start)


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
