"""What every method shares: rosters, rounds, messages, dropouts, checkpoints.

A method's module says how users are chosen, what travels, and how replies become the next shared arrays; this
one turns that into Flower's `Strategy`. Methods think in users; only this module and the roster know nodes.
"""

from __future__ import annotations

import time
import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from bouquet.arrays import Arrays, Specs, exchanged, initial_shared
from bouquet.catalogue import read_catalogue
from bouquet.config import Options, RunConfig
from bouquet.evaluation import flattened, summarise
from bouquet.randomness import Purpose, generator
from bouquet.records import message_bytes, pack, payload_bytes, unpack
from bouquet.reporting.events import event
from bouquet.reporting.run_directory import RunDirectory
from bouquet.wire import (
    EVALUATE,
    METRIC_SHAPE,
    TRAIN,
    EvaluateReply,
    EvaluateRequest,
    TrainReply,
    TrainRequest,
    Update,
    Weighting,
    most_evaluate_bytes,
    most_train_bytes,
)
from strategies.checkpoint import Checkpoint, load_checkpoint, refuse_other_model, save_checkpoint
from strategies.replies import Received, Sent, receive, require_enough
from strategies.roster import Roster, await_roster
from strategies.rounds import Rounds
from strategies.selection import BestRound

Extra = dict[str, NDArray[Any]]
"""What a method keeps beside shared arrays, by name."""
T = TypeVar("T")


class BaseStrategy(Strategy):
    """A federated method over users.

    Args:
        config: settings that every run has.
        options: the method's own settings, an instance of its `options_class`.
        directory: where results and checkpoints go.

    A method overrides `traveling`, `returning`, `reports`, `prepare`, `select_users`, `personal`, `aggregate` and,
    where it keeps more than shared arrays, `extra_arrays` and `restore_extra`.
    """

    options_class: type[Options] = Options
    update: Update = "sum"
    weighting: Weighting = "size"

    def __init__(self, config: RunConfig, options: Options, directory: RunDirectory) -> None:
        self.config, self.options, self.directory = config, options, directory
        self.series = uuid.uuid4().hex
        self.roster: Roster
        self.rounds: Rounds
        self.trained: NDArray[np.bool_]
        self.checkpoint_round = 0
        self.best = BestRound()
        self._sent: list[Sent] = []
        self._record: dict[str, Any] = {}

    # -- what a method decides -----------------------------------------------------------------------------------

    def traveling(self, specs: Specs) -> Specs:
        """The shared arrays that the server keeps and sends to all alike; by default those that `exchange` says."""
        return exchanged(specs, self.config.only_embeddings)

    def returning(self, specs: Specs) -> Specs:
        """The arrays whose changes come back; by default those that travel."""
        return self.traveling(specs)

    def initial(self, specs: Specs) -> Arrays:
        """What a new run starts from."""
        return initial_shared(specs, self.config.seed)

    def meant_for(self, named: Mapping[str, T], users: NDArray[np.int64]) -> Mapping[str, T]:
        """Those of the arrays that are sent to the nodes of these users; by default all."""
        return named

    def expected(self, content: RecordDict, specs: Specs) -> Specs:
        """The arrays that a reply must change, out of those that come back; by default all."""
        return specs

    def reports(self, specs: Specs) -> dict[str, tuple[int, ...]]:
        """What users tell beside their update: names and shapes for one user; -1 stands for any size."""
        return {}

    def evaluation_reports(self, specs: Specs) -> dict[str, tuple[int, ...]]:
        """What users tell beside their metrics; as `reports`."""
        return {}

    def take_evaluation(self, reply: EvaluateReply, users: NDArray[np.int64]) -> None:
        """Called for every valid reply to an evaluation, with its users' positions in the roster."""

    def prepare(self) -> None:
        """Called once, when the roster is known and before anything is restored or sent."""

    def select_users(self, server_round: int) -> NDArray[np.int64]:
        """Positions in the roster of this round's users: a fraction r of those present, without replacement."""
        present, size = self.roster.present(), self.users_per_round()
        if size == len(present):
            return present
        source = generator(self.config.seed, server_round, Purpose.USER_SAMPLING)
        return present[np.sort(source.choice(len(present), size, replace=False))]

    def users_per_round(self) -> int:
        """How many users train in a round."""
        return max(1, round(self.config.fraction_train * len(self.roster.present())))

    def personal(self, users: NDArray[np.int64]) -> Arrays:
        """Per-user arrays [k, …] for these users, for methods that treat every user differently."""
        return {}

    def personal_to_evaluate(self, users: NDArray[np.int64]) -> Arrays:
        """The same for an evaluation; by default what training would get."""
        return self.personal(users)

    @abstractmethod
    def aggregate(
        self, server_round: int, shared: Arrays, replies: list[TrainReply], users: list[NDArray[np.int64]]
    ) -> Arrays:
        """The next shared arrays.

        Args:
            shared: those of this round.
            replies: valid replies, in roster order.
            users: for each reply its users' positions in the roster.
        """

    def extra_arrays(self) -> Extra:
        """What else must be in a checkpoint."""
        return {}

    def restore_extra(self, arrays: Extra) -> None:
        """Take back what `extra_arrays` gave."""

    def finish(self) -> None:
        """Called once, after the last round."""

    def results(self) -> dict[str, Any]:
        """What `summary.json` says beside what it says of every method; called after `finish`."""
        return {}

    def users_joined(self, count: int) -> None:
        """So many new users stand at the end of the roster; for methods that keep something of every user."""

    def users_forgotten(self, positions: NDArray[np.int64]) -> None:
        """The users at these positions are about to leave the roster for good; drop what is kept of them."""

    # -- Flower's interface --------------------------------------------------------------------------------------

    def summary(self) -> None:
        """Nothing to add: the results folder has the configuration."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """One message to every node that hosts users of this round."""
        shared = unpack(arrays)
        self._sent = []
        personal_bytes = 0
        for node, users in self.roster.by_node(self.select_users(server_round)):
            personal = self.personal(users)
            personal_bytes += payload_bytes(personal)
            request = TrainRequest(
                series=self.series,
                round=server_round,
                checkpoint_round=self.checkpoint_round,
                users=self.roster.users[users],
                trained=self.trained[users],
                shared=dict(self.meant_for(shared, users)),
                personal=personal,
                update=self.update,
                weighting=self.weighting,
            )
            self._sent.append(Sent(_message(request.encode(), node, TRAIN, server_round), users))
        asked = sum(len(item.users) for item in self._sent)
        self._record = {"bytes": {"down_per_user": payload_bytes(shared) + personal_bytes / asked}, "asked": asked}
        self._shared = shared
        return [item.message for item in self._sent]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Decode the replies, leave out invalid ones, and let the method aggregate.

        Raises:
            RunFailed: too few users gave a valid reply.
        """
        specs, reports = self.returning(self.roster.specs), self.reports(self.roster.specs)
        received = receive(
            self._sent,
            replies,
            self.roster.users,
            lambda content: TrainReply.decode(content, self.expected(content, specs), self.update, reports),
            lambda users: most_train_bytes(specs, self.update, users, reports),
        )
        self.rounds.after(received)
        asked = sum(len(item.users) for item in self._sent)
        require_enough(received, asked, self.config.min_reply_fraction, f"Round {server_round}")
        shared = self.aggregate(server_round, self._shared, received.replies, received.users)
        users = np.concatenate(received.users)
        self.trained[users] = True
        loss = np.concatenate([reply.loss for reply in received.replies]).astype(float)
        upload = np.concatenate([reply.upload_bytes for reply in received.replies])
        metrics: dict[str, Any] = {
            "loss": float(np.nanmean(loss)) if np.isfinite(loss).any() else float("nan"),
            "users": len(users),
            "up_per_user": float(upload.mean()),
        }
        self._note(received, metrics)
        return pack(shared), MetricRecord(metrics)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """One message to every node: all users are evaluated, those that did not train too."""
        shared = unpack(arrays)
        self._sent = []
        for node, users in self.roster.by_node(np.arange(len(self.roster.users))):
            request = EvaluateRequest(
                series=self.series,
                round=server_round,
                users=self.roster.users[users],
                trained=self.trained[users],
                shared=dict(self.meant_for(shared, users)),
                personal=self.personal_to_evaluate(users),
            )
            self._sent.append(Sent(_message(request.encode(), node, EVALUATE, server_round), users))
        return [item.message for item in self._sent]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Means over users, and the best round so far.

        Raises:
            RunFailed: too few users gave a valid reply.
        """
        reports = self.evaluation_reports(self.roster.specs)
        received = receive(
            self._sent,
            replies,
            self.roster.users,
            lambda content: EvaluateReply.decode(content, reports),
            lambda users: most_evaluate_bytes(users, reports),
        )
        self.rounds.after(received)
        asked = sum(len(item.users) for item in self._sent)
        require_enough(received, asked, self.config.min_reply_fraction, f"Evaluation of round {server_round}")
        values = np.full((len(self.roster.users), *METRIC_SHAPE), np.nan)
        for reply, users in zip(received.replies, received.users, strict=True):
            values[users] = reply.metrics
            self.take_evaluation(reply, users)
        means = summarise(values)
        self.best.offer(server_round, means, values)
        self._record |= means
        self._record["node_seconds"]["evaluate"] = sum(reply.seconds for reply in received.replies)
        self._record["evaluation_failures"] = [vars(failure) for failure in received.failures]
        return MetricRecord(dict(flattened(means)))

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run all rounds; the arguments default to the configuration.

        Raises:
            RunFailed: nodes or valid replies are missing.
        """
        num_rounds = num_rounds or self.config.num_server_rounds
        timeout = timeout or self.config.round_timeout
        resumed = load_checkpoint(self.directory.checkpoints) if self.config.resume else None
        if resumed:
            self.series = resumed.series
        catalogue = read_catalogue(Path(self.config.catalogue_file)) if self.config.catalogue_file else None
        roster = await_roster(grid, self.series, self.config.min_nodes, self.config.node_timeout, catalogue)
        if resumed:
            refuse_other_model(resumed, self.traveling(roster.specs))
        self.roster = roster.in_order_of(resumed.users, resumed.sizes) if resumed else roster
        self.trained = np.zeros(len(self.roster.users), dtype=bool)
        self.prepare()
        self.rounds = Rounds(self, grid, catalogue)
        specs = self.traveling(self.roster.specs)
        arrays = initial_arrays or pack(self.initial(specs))
        if resumed:
            arrays = pack(self._restore(resumed))
        self.directory.begin(self.checkpoint_round)
        result = Result(arrays=arrays)
        empty = ConfigRecord()
        for server_round in range(self.checkpoint_round + 1, num_rounds + 1):
            if self._has_converged(server_round - 1):
                break
            begin = time.perf_counter()
            look = self.rounds.begin()
            self.configure_train(server_round, arrays, train_config or empty, grid)
            replies = self.rounds.exchange.ask(self._sent, timeout, self.config.enough_reply_fraction)
            trained = time.perf_counter()
            new_arrays, train_metrics = self.aggregate_train(server_round, replies)
            arrays = result.arrays = new_arrays or arrays
            result.train_metrics_clientapp[server_round] = train_metrics or MetricRecord()
            aggregated = evaluated = time.perf_counter()
            if server_round % self.config.evaluate_every == 0 or server_round == num_rounds:
                self.configure_evaluate(server_round, arrays, evaluate_config or empty, grid)
                replies = self.rounds.exchange.ask(self._sent, timeout, self.config.enough_reply_fraction)
                result.evaluate_metrics_clientapp[server_round] = (
                    self.aggregate_evaluate(server_round, replies) or MetricRecord()
                )
                evaluated = time.perf_counter()
            every = self.config.checkpoint_every
            due = every and (
                server_round % every == 0 or server_round == num_rounds or self._has_converged(server_round)
            )
            # What was kept of a user that asked to be forgotten is still in the last checkpoint.
            if due or (every and look["forgotten"]):
                self._checkpoint(server_round, unpack(arrays), 1 if look["forgotten"] else self.config.checkpoints_kept)
            if evaluate_fn and (metrics := evaluate_fn(server_round, arrays)) is not None:
                result.evaluate_metrics_serverapp[server_round] = metrics
            self._record["seconds"] = {
                "train": trained - begin,
                "aggregate": aggregated - trained,
                "evaluate": evaluated - aggregated,
                "total": time.perf_counter() - begin,
            }
            self._record["nodes"] = look
            self.directory.append_round(server_round, self._record)
            event("round", round=server_round, users=self._record["users"], asked=self._record["asked"])
        self.finish()
        return result

    # -- inner works ---------------------------------------------------------------------------------------------

    def _has_converged(self, server_round: int) -> bool:
        """Whether `patience` evaluations have passed without a new best; known from rounds alone, as resuming needs."""
        waited = (server_round - self.best.round) // self.config.evaluate_every
        return 0 < self.config.patience <= waited

    def _note(self, received: Received, metrics: dict[str, Any]) -> None:
        sizes = self._record["bytes"]
        sizes["up_per_user"] = metrics["up_per_user"]
        sizes["wire_down"] = sum(message_bytes(item.message.content) for item in self._sent)
        sizes["wire_up"] = received.bytes
        self._record["users"] = metrics["users"]
        self._record["node_seconds"] = {"train": sum(reply.seconds for reply in received.replies)}
        self._record["loss"] = metrics["loss"]
        self._record["failures"] = [vars(failure) for failure in received.failures]

    def _checkpoint(self, server_round: int, shared: Arrays, keep: int) -> None:
        save_checkpoint(
            self.directory.checkpoints,
            Checkpoint(
                series=self.series,
                round=server_round,
                shared=shared,
                extra=self.extra_arrays(),
                users=self.roster.users,
                sizes=self.roster.sizes,
                trained=self.trained,
                best=self.best,
            ),
            keep,
        )
        self.checkpoint_round = server_round

    def _restore(self, checkpoint: Checkpoint) -> Arrays:
        self.trained[: len(checkpoint.users)] = checkpoint.trained
        self.best = checkpoint.best
        self.checkpoint_round = checkpoint.round
        self.restore_extra(checkpoint.extra)
        if joined := len(self.roster.users) - len(checkpoint.users):
            self.best.users_joined(joined)
            self.users_joined(joined)
        return checkpoint.shared


def _message(content: RecordDict, node: int, kind: str, server_round: int) -> Message:
    return Message(content, dst_node_id=node, message_type=kind, group_id=str(server_round))
