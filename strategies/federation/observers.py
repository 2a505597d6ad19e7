"""What looks at a run's rounds without taking part in them: when it has learned enough, and what is written of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from bouquet.arrays import Arrays
from bouquet.catalogue import read_catalogue
from bouquet.errors import ConfigError
from bouquet.published import PublishedModel
from bouquet.records import unpack
from bouquet.reporting.events import event
from bouquet.reporting.trackers import Tracker, metric_values, report_failure, tracker_of
from strategies.federation.checkpoint import (
    Checkpoint,
    load_checkpoint,
    refuse_other_lines,
    refuse_other_model,
    save_checkpoint,
)
from strategies.federation.hooks import Hooks

# What a checkpoint keeps of a budget, among what methods keep.
_PRIVACY = "privacy/"


class Patience:
    """Whether `patience` evaluations have passed without a new best; known from rounds alone, as resuming needs."""

    def __init__(self, method: Hooks) -> None:
        self._method = method

    def is_over(self, server_round: int) -> bool:
        """After this round."""
        config = self._method.config
        waited = (server_round - self._method.best.round) // config.evaluate_every
        return 0 < config.patience <= waited


class Tracking:
    """Tells another program of every round, where `tracker` names one. What goes wrong there costs the run nothing.

    Args:
        method: whose run it is.
    """

    def __init__(self, method: Hooks) -> None:
        self._method = method
        self._tracker: Tracker | None = None

    def begin(self) -> None:
        """Once the list of rounds is open, up to the round that the run goes on after.

        Raises:
            ConfigError: the tracker's package is missing.
        """
        self._tracker = tracker_of(self._method.config.tracker, self._method.directory)
        self._try(lambda tracker: tracker.begin(self._method.directory.rounds()))

    def look(self, server_round: int) -> None:
        """After the round's line was written."""
        line = self._method.line
        self._try(lambda tracker: tracker.round(server_round, line))

    def end(self) -> None:
        """After the last round."""
        best = self._method.best
        parts = ("validation", "test")
        values = {f"reported/{name}": v for part in parts for name, v in metric_values(part, best.means[part]).items()}
        self._try(lambda tracker: tracker.close(best.round, values))
        self._tracker = None

    def abandon(self, stopped: bool) -> None:
        """When the run ends without a result, which may be before it has begun."""
        self._try(lambda tracker: tracker.abandon(stopped))
        self._tracker = None

    def _try(self, act: Callable[[Tracker], None]) -> None:
        if self._tracker is None:
            return
        try:
            act(self._tracker)
        except Exception as error:
            reason = report_failure(self._method.config.tracker, error)
            event("tracker failed", reason=reason)
            self._tracker = None


class Reported:
    """Keeps the model of the best round, and has the lists that a simulation's nodes made of it stay.

    It is written with a checkpoint, and at the end: a run that is resumed finds what is best up to there.

    Args:
        method: whose run it is.
    """

    def __init__(self, method: Hooks) -> None:
        self._method = method
        self._folder = method.directory.reported
        self._arrays: ArrayRecord | None = None
        self._written = 0

    def begin(self, simulated: bool) -> None:
        """Once the run has begun, or gone back to its checkpoint."""
        if simulated and self._method.config.recommendations:
            self._folder.create()
        self._written = self._method.best.round
        self._folder.keep_only({self._written})

    def look(self, server_round: int, arrays: ArrayRecord) -> None:
        """After the evaluation of a round with these shared arrays."""
        best = self._method.best.round
        if best == server_round:
            self._arrays = arrays
        self._folder.keep_only({best, self._written})

    def write(self) -> None:
        """Have the model of the best round on the disk, beside the one before."""
        if self._arrays is None:
            return
        method, best = self._method, self._method.best.round
        settings, catalogue = method.options.to_flat(), method.roster.catalogue
        self._folder.write_model(
            PublishedModel(method.config.strategy, settings, catalogue, unpack(self._arrays), best)
        )
        if method.config.catalogue_file:
            read_catalogue(Path(method.config.catalogue_file)).save(self._folder.catalogue)
        self._arrays = None

    def forget_others(self) -> None:
        """Once a checkpoint does not need another round's any more."""
        self._written = self._method.best.round
        self._folder.keep_only({self._written})

    def end(self) -> None:
        """After the last round."""
        self.write()
        self.forget_others()
        self._folder.join(self._written)


class Checkpoints:
    """Writes what a run must remember to go on, and takes it back.

    Args:
        method: whose run it is; what it gives in `extra_arrays` is kept beside the shared arrays.
        patience: a run that ends leaves a checkpoint.
    """

    def __init__(self, method: Hooks, patience: Patience) -> None:
        self._method, self._patience = method, patience

    def due(self, server_round: int, last: bool, look: dict[str, Any]) -> bool:
        """Whether a round must leave one: every so many, the last, and where a user asked to be forgotten.

        What was kept of such a user is still in the last checkpoint.
        """
        every = self._method.config.checkpoint_every
        regular = last or self._patience.is_over(server_round) or (every > 0 and server_round % every == 0)
        return bool(every and (regular or look["forgotten"]))

    def write(self, server_round: int, shared: Arrays, look: dict[str, Any]) -> None:
        """After the round's line was written."""
        begin, method = time.perf_counter(), self._method
        roster = method.roster
        method.checkpoint_due()
        save_checkpoint(
            method.directory.checkpoints,
            Checkpoint(
                series=method.series,
                round=server_round,
                shared=shared,
                extra=method.extra_arrays() | self._spent(),
                users=roster.users,
                sizes=roster.sizes,
                versions=method.versions,
                best=method.best,
                owners=roster.owners if method.keeps_ids else np.zeros(len(roster.users), np.uint64),
                lines=method.directory.lines_until(server_round),
            ),
            1 if look["forgotten"] else method.config.checkpoints_kept,
        )
        method.checkpoint_round, method.kept_versions = server_round, method.versions.copy()
        method.checkpoint_written()
        event("checkpoint", round=server_round, seconds=time.perf_counter() - begin)

    def read(self) -> Checkpoint | None:
        """The checkpoint that a resumed run goes on from; the run is of its series then.

        Raises:
            StateError: it is damaged, or the lines before it are.
        """
        method = self._method
        resumed = load_checkpoint(method.directory.checkpoints) if method.config.resume else None
        if resumed:
            method.series = resumed.series
            refuse_other_lines(resumed, method.directory)
        return resumed

    def restore(self, checkpoint: Checkpoint) -> Arrays:
        """Take back what a checkpoint has, the roster and the method being prepared; returns the shared arrays."""
        method = self._method
        for rounds in (method.versions, method.kept_versions):
            rounds[: len(checkpoint.users)] = checkpoint.versions
        method.best = checkpoint.best
        method.checkpoint_round = checkpoint.round
        method.restore_extra({name: a for name, a in checkpoint.extra.items() if not name.startswith(_PRIVACY)})
        if joined := len(method.roster.users) - len(checkpoint.users):
            method.best.users_joined(joined)
            method.users_joined(joined)
        return method.grown(checkpoint.shared)

    def _spent(self) -> dict[str, Any]:
        privacy = self._method.privacy
        return {_PRIVACY + name: value for name, value in privacy.arrays().items()} if privacy else {}

    @staticmethod
    def spent(checkpoint: Checkpoint | None) -> dict[str, Any]:
        """What a checkpoint has of a budget; empty where there is none."""
        extra = checkpoint.extra if checkpoint else {}
        return {name.removeprefix(_PRIVACY): value for name, value in extra.items() if name.startswith(_PRIVACY)}

    def refuse_other_model(self, checkpoint: Checkpoint) -> None:
        """As `checkpoint.refuse_other_model`, once the roster is known."""
        if not self._method.grows_from(checkpoint.extra):
            refuse_other_model(checkpoint, self._method.traveling(self._method.roster.specs))

    def refuse_end_without_evaluation(self, num_rounds: int) -> None:
        """A run may end where its checkpoint is only if that round was evaluated, as a last round is.

        Raises:
            ConfigError: the checkpoint is beyond the last round, or not of a round that can be the last.
        """
        done, lines = self._method.checkpoint_round, self._method.directory.rounds()
        if done > num_rounds or (done == num_rounds and not (lines and "test" in lines[-1])):
            raise ConfigError(
                f"The checkpoint is of round {done}, so the run cannot end with round {num_rounds}: raise "
                "num-server-rounds."
            )
