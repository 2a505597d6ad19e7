"""`BaseStrategy`: a method's hooks as Flower's `Strategy`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from bouquet.catalogue import read_catalogue
from bouquet.config import Options, RunConfig
from bouquet.engines.release import is_simulated
from bouquet.records import pack, unpack
from bouquet.reporting.events import event
from bouquet.reporting.run_directory import RunDirectory
from bouquet.wire import EVALUATE, TRAIN
from strategies.federation.exchange import Pace
from strategies.federation.hooks import Extra, Hooks
from strategies.federation.messages import Messages
from strategies.federation.needs import refuse_what_does_not_fit
from strategies.federation.nodes import Nodes
from strategies.federation.observers import Checkpoints, Patience, Reported, Tracking
from strategies.federation.roster import await_roster

__all__ = ["BaseStrategy", "Extra"]

# In multiples of the median of a round, where nodes are other people's.
_BOUND_OF_DEPLOYMENTS = 10.0


class BaseStrategy(Hooks, Strategy):
    """A federated method that Flower can run."""

    def __init__(self, config: RunConfig, options: Options, directory: RunDirectory) -> None:
        super().__init__(config, options, directory)
        self._messages = Messages(self)
        self._patience = Patience(self)
        self._checkpoints = Checkpoints(self, self._patience)
        self._reported = Reported(self)
        self._tracking = Tracking(self)

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
        """
        num_rounds = num_rounds or self.config.num_server_rounds
        # Nodes of a simulation are as slow as the machine is, and none of them is mute.
        simulated = is_simulated(grid)
        paces = {kind: Pace(timeout or self.config.round_timeout, fixed=simulated) for kind in (TRAIN, EVALUATE)}
        arrays = self._begin(grid, simulated, initial_arrays, num_rounds)
        result = Result(arrays=arrays)
        empty = ConfigRecord()
        for server_round in range(self.checkpoint_round + 1, num_rounds + 1):
            if self._patience.is_over(server_round - 1):
                break
            begin = time.perf_counter()
            look = self._messages.nodes.begin(server_round)
            self.configure_train(server_round, arrays, train_config or empty, grid)
            replies = self._ask(paces[TRAIN])
            trained = time.perf_counter()
            new_arrays, train_metrics = self.aggregate_train(server_round, replies)
            arrays = result.arrays = new_arrays or arrays
            result.train_metrics_clientapp[server_round] = train_metrics or MetricRecord()
            aggregated = evaluated = time.perf_counter()
            if server_round % self.config.evaluate_every == 0 or server_round == num_rounds:
                self.configure_evaluate(server_round, arrays, evaluate_config or empty, grid)
                replies = self._ask(paces[EVALUATE])
                result.evaluate_metrics_clientapp[server_round] = (
                    self.aggregate_evaluate(server_round, replies) or MetricRecord()
                )
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

    def _begin(self, grid: Grid, simulated: bool, initial_arrays: ArrayRecord | None, num_rounds: int) -> ArrayRecord:
        """Find the nodes and their users, refuse what cannot be done, and give what the first round starts from."""
        config = self.config
        self.keeps_ids = config.registered_nodes and not simulated
        # A node of a simulation has its part of a data set.
        self.most_users = 0 if simulated else config.users_per_node or int(bool(config.catalogue_file))
        chosen = config.update_bound
        self.update_bound = chosen if chosen >= 0 else 0.0 if simulated else _BOUND_OF_DEPLOYMENTS
        resumed = self._checkpoints.read()
        catalogue = read_catalogue(Path(config.catalogue_file)) if config.catalogue_file else None
        self.roster = await_roster(
            grid,
            self.series,
            config.min_nodes,
            config.node_timeout,
            catalogue,
            self.update,
            owners=resumed.owner_of if resumed and self.keeps_ids else {},
            least=1.0 if simulated else config.min_reply_fraction,
            repeats=config.repeats == "keep",
            cells=self.summed,
            most_users=self.most_users,
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
        self.directory.begin(self.checkpoint_round)
        if resumed:
            self._checkpoints.refuse_end_without_evaluation(num_rounds)
        self._reported.begin(simulated)
        self._tracking.begin()
        return arrays

    def _ask(self, pace: Pace) -> list[Message]:
        config, messages = self.config, self._messages
        return messages.nodes.exchange.ask(messages.sent, pace, config.enough_reply_fraction, config.min_reply_fraction)
