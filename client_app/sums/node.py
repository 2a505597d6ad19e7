"""What nodes have in common whose users train no model: who lives there, and how an evaluation goes."""

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
from bouquet.cells import Cells, CellSpec
from bouquet.config import RunConfig
from bouquet.evaluation import evaluate_users
from bouquet.evaluation.evaluate import ScoreBlock
from bouquet.packed import by_entry
from bouquet.ragged import Ragged, one_after_another
from bouquet.randomness import Words
from bouquet.wire import EvaluateReply, EvaluateRequest, RosterReply, TrainReply, TrainRequest, Update
from client_app.node.histories import Histories
from client_app.node.lists import Watch, blocks, watched
from client_app.node.place import Place
from client_app.state.folders import StateFolders
from client_app.sums.counter import Recommender
from client_app.sums.own_items import each_once, with_own_items


@dataclass(frozen=True)
class SumsNode(ABC):
    """A `Node` over what recommends from published sums, whatever its users do for them.

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
