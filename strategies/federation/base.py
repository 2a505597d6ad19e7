"""`BaseStrategy`: a method's hooks as Flower's `Strategy`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from bouquet.attacks import refuse_in_deployment
from bouquet.catalogue import read_catalogue
from bouquet.config import Options, RunConfig
from bouquet.engines.release import is_simulated
from bouquet.errors import Diverged
from bouquet.records import pack, unpack
from bouquet.reporting.events import event
from bouquet.reporting.run_directory import RunDirectory
from bouquet.wire import EVALUATE, TRAIN
from strategies.federation.exchange import Pace
from strategies.federation.hooks import Extra, Hooks
from strategies.federation.masking import SecureSums
from strategies.federation.messages import Messages
from strategies.federation.needs import refuse_what_does_not_fit
from strategies.federation.nodes import Nodes
from strategies.federation.observers import Checkpoints, Patience, Reported, Tracking
from strategies.federation.replies import NodesGone
from strategies.federation.roll_call import await_roster

__all__ = ["BaseStrategy", "Extra"]

# In multiples of the median of a round, where nodes are other people's.
_BOUND_OF_DEPLOYMENTS = 10.0
# Of a round in which so many nodes went away that it came to nothing.
_TRIES = 5

T = TypeVar("T")


class BaseStrategy(Hooks, Strategy):
    """A federated method that Flower can run."""

    def __init__(self, config: RunConfig, options: Options, directory: RunDirectory) -> None:
        super().__init__(config, options, directory)
        self._messages = Messages(self)
        self._patience = Patience(self)
        self._checkpoints = Checkpoints(self, self._patience)
        self._reported = Reported(self)
        self._tracking = Tracking(self)
        self._masks: SecureSums | None = None
        # The round in which training ran away, and why; such a run ends before it.
        self.diverged: tuple[int, str] | None = None

    def summary(self) -> None:
        """Nothing to add: the results folder has the configuration."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """As `Messages.to_train`."""
        return self._messages.to_train(server_round, arrays)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """As `Messages.trained`."""
        return self._messages.trained(server_round, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """As `Messages.to_evaluate`."""
        return self._messages.to_evaluate(server_round, arrays)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """As `Messages.evaluated`."""
        return self._messages.evaluated(server_round, replies)

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
            ConfigError: users shall lie, and the nodes are not simulated.
        """
        num_rounds = num_rounds or self.config.num_server_rounds
        # Nodes of a simulation are as slow as the machine is, and none of them is mute.
        simulated = is_simulated(grid)
        paces = {kind: Pace(timeout or self.config.round_timeout, fixed=simulated) for kind in (TRAIN, EVALUATE)}
        arrays, num_rounds = self._begin(grid, simulated, initial_arrays, num_rounds)
        result = Result(arrays=arrays)
        empty = ConfigRecord()
        for server_round in range(self.checkpoint_round + 1, num_rounds + 1):
            if self._patience.is_over(server_round - 1):
                break
            begin = time.perf_counter()
            look = self._messages.nodes.begin(server_round)

            def train(server_round: int = server_round, arrays: ArrayRecord = arrays) -> Any:
                self.configure_train(server_round, arrays, train_config or empty, grid)
                replies = self._ask_to_train(server_round, arrays, paces[TRAIN])
                return time.perf_counter(), *self.aggregate_train(server_round, replies)

            try:
                trained, new_arrays, train_metrics = self._with_enough(train, server_round, look)
            except Diverged as error:
                # Who waits for a better round has the best one already.
                if not (self.config.patience and self.best.round):
                    raise
                self.diverged = server_round, str(error)
                event("diverged", round=server_round, reason=str(error))
                break
            arrays = result.arrays = new_arrays or arrays
            result.train_metrics_clientapp[server_round] = train_metrics or MetricRecord()
            aggregated = evaluated = time.perf_counter()
            # Where metrics are paid for, once: for the round that is reported.
            paid = self.privacy is not None and not simulated
            if server_round == num_rounds or (server_round % self.config.evaluate_every == 0 and not paid):

                def evaluate(server_round: int = server_round, arrays: ArrayRecord = arrays) -> MetricRecord:
                    found = None
                    while found is None:
                        self.configure_evaluate(server_round, arrays, evaluate_config or empty, grid)
                        found = self.aggregate_evaluate(server_round, self._ask(paces[EVALUATE]))
                    return found

                result.evaluate_metrics_clientapp[server_round] = self._with_enough(evaluate, server_round, look)
                self._reported.look(server_round, arrays)
                evaluated = time.perf_counter()
            if evaluate_fn and (metrics := evaluate_fn(server_round, arrays)) is not None:
                result.evaluate_metrics_serverapp[server_round] = metrics
            seconds = {"train": trained - begin, "aggregate": aggregated - trained, "evaluate": evaluated - aggregated}
            self.note(seconds=seconds | {"total": time.perf_counter() - begin}, nodes=look)
            due = self._checkpoints.due(server_round, server_round == num_rounds, look)
            # The line first, and on the disk: a run that is killed between the two takes the line back and computes the
            # round again. The other way round it would go on after a round that has no line.
            self.directory.append_round(server_round, self.line, durable=due)
            if due:
                self._reported.write()
                self._checkpoints.write(server_round, unpack(arrays), look)
                self._reported.forget_others()
            self._tracking.look(server_round)
            self._messages.nodes.confirm()
            event("round", round=server_round, users=self.line["users"], asked=self.line["asked"])
        self.finish()
        self._tracking.end()
        self._reported.end()
        self._messages.nodes.close()
        return result

    def abandon(self, stopped: bool) -> None:
        """Tell who follows the run from outside that it ended without a result: stopped, or else failed."""
        self._tracking.abandon(stopped)

    def _begin(
        self, grid: Grid, simulated: bool, initial_arrays: ArrayRecord | None, num_rounds: int
    ) -> tuple[ArrayRecord, int]:
        """Find the nodes and their users, refuse what cannot be done, and give what the first round starts from.

        Returns:
            the arrays, and the last round; an earlier one than wanted where a budget is for no more.
        """
        config = self.config
        if not simulated:
            refuse_in_deployment(config)
        self.keeps_ids = config.registered_nodes and not simulated
        # A node of a simulation has its part of a data set.
        self.most_users = 0 if simulated else config.users_per_node or int(bool(config.catalogue_file))
        chosen = config.update_bound
        usual = config.robust_bound if config.robust_aggregation == "norm-bound" else 0.0
        # In a private run a limit that follows from others' changes would have each user change more than its own.
        none = simulated or self.privacy is not None
        self.update_bound = chosen if chosen >= 0 else usual or (0.0 if none else _BOUND_OF_DEPLOYMENTS)
        resumed = self._checkpoints.read()
        self._masks = SecureSums(self, simulated) if config.secure_sums else None
        if self._masks:
            self.update_bound = 0.0  # nobody sees what could be compared
        catalogue = read_catalogue(Path(config.catalogue_file)) if config.catalogue_file else None
        self.roster = await_roster(
            grid,
            self.series,
            config.min_nodes,
            config.node_timeout,
            catalogue,
            self.update,
            self.everything_told(),
            owners=resumed.owner_of if resumed and self.keeps_ids else {},
            least=1.0 if simulated else config.min_reply_fraction,
            repeats=config.repeats == "keep",
            cells=self.summed,
            most_users=self.most_users,
            model=config.model_digest,
        )
        if resumed:
            self._checkpoints.refuse_other_model(resumed)
            owners = resumed.owners if self.keeps_ids else np.zeros_like(resumed.owners)
            self.roster = self.roster.in_order_of(resumed.users, resumed.sizes, owners)
        self.versions, self.kept_versions = np.zeros((2, len(self.roster.users)), dtype=np.int64)
        refuse_what_does_not_fit(self)
        self.prepare()
        self._messages.nodes = Nodes(self, grid, catalogue)
        arrays = initial_arrays or pack(self.initial(self.traveling(self.roster.specs)))
        if resumed:
            arrays = pack(self._checkpoints.restore(resumed))
        if self.privacy:
            users, spent = len(self.roster.users), self._checkpoints.spent(resumed)
            num_rounds = self.privacy.begin(simulated, users, spent, self.checkpoint_round, num_rounds)
        self.directory.begin(self.checkpoint_round)
        if resumed:
            self._checkpoints.refuse_end_without_evaluation(num_rounds)
        self._reported.begin(simulated)
        self._tracking.begin()
        return arrays, num_rounds

    def _ask_to_train(self, server_round: int, arrays: ArrayRecord, pace: Pace) -> list[Message]:
        """The replies to a round's messages; under masks there are none but their sum."""
        messages = self._messages
        if not self._masks or not messages.sent:  # a private run's sample can be of nobody
            return self._ask(pace)
        shared = self.needed(unpack(arrays))
        messages.summed = self._masks.ask(messages.nodes.exchange, messages.sent, server_round, shared, pace)
        return []

    def _with_enough(self, part: Callable[[], T], server_round: int, look: dict[str, Any]) -> T:
        """A part of a round, and once more when nodes went away in it: then enough have to come back first.

        Raises:
            RunFailed: too few replies are valid, or too few nodes came back.
        """
        for left in reversed(range(_TRIES)):
            try:
                return part()
            except NodesGone as error:
                # One that is there and silent was waited for long enough.
                if not left or self._messages.nodes.exchange.timed_out:
                    raise
                event("round repeated", round=server_round, reason=str(error))
                self._messages.nodes.repeat(server_round, look)
        raise AssertionError

    def _ask(self, pace: Pace) -> list[Message]:
        config, messages = self.config, self._messages
        return messages.nodes.exchange.ask(messages.sent, pace, config.enough_reply_fraction, config.min_reply_fraction)
