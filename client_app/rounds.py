"""What a node does when the server asks: say who lives here, train them, evaluate them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from bouquet.arrays import Arrays
from bouquet.errors import WireError
from bouquet.evaluation import evaluate_users
from bouquet.ragged import Ragged
from bouquet.wire import EvaluateReply, EvaluateRequest, RosterReply, TrainReply, TrainRequest
from client_app.host import Host
from client_app.protection import is_protected, protect
from client_app.state import Values
from client_app.training import BACKENDS, Changes, LocalTask
from client_app.updates import RowsCollector, SumCollector
from data_partition import training_negatives

# Private arrays of this many bytes are held in memory at once.
BLOCK_BYTES = 256 * 2**20


def roster(host: Host) -> RosterReply:
    """Who lives here, and which catalogue they know."""
    histories = host.histories
    return RosterReply(
        users=histories.users,
        sizes=histories.train.lengths,
        interactions=len(histories.whole.values),
        dropped_users=histories.dropped_users,
        num_items=histories.num_items,
        catalogue=histories.catalogue,
        num_partitions=histories.num_partitions,
        specs=host.backbone.shared,
    )


def train(host: Host, request: TrainRequest) -> TrainReply:
    """Train the asked users for one round and keep what is private.

    Raises:
        WireError: a user does not live here, or training diverged (the message names the user).
        StateError: private state is missing or damaged.
    """
    start = time.perf_counter()
    histories, options = host.histories, host.config
    backend = BACKENDS["numba" if options.backend == "auto" else options.backend]
    asked = host.positions(request.users)
    state = host.state(request.series, request.shared)
    if request.update == "sum":
        weights = histories.train.lengths[asked].astype(float) if request.weighting == "size" else np.ones(len(asked))
        collector: SumCollector | RowsCollector = SumCollector(host.backbone.shared, request.shared, weights)
    else:
        collector = RowsCollector(host.backbone.shared, request.shared, len(asked))
    for block in _blocks(host, request.shared, len(asked)):
        positions = asked[block]
        private = state.read(positions, request.round, request.trained[block])
        task = LocalTask(
            backbone=host.backbone,
            options=options,
            users=request.users[block],
            round=request.round,
            seed=host.draw_seed,
            positives=histories.train.take(positions),
            negatives=_negatives(host, positions, request.round),
            shared=request.shared,
            private=private,
        )
        for changes in backend(task):
            collector.add(protected(host, task, changes), offset=block.start)
        _refuse_divergence(request.users[block], private)
        state.write(positions, request.round, request.checkpoint_round, private)
    reply = collector.reply(request.users, seconds=time.perf_counter() - start)
    # Only now: a user whose update could not be sent has not trained.
    state.commit()
    return reply


def evaluate(host: Host, request: EvaluateRequest) -> EvaluateReply:
    """Rank the held-out items of the asked users with the model that their devices would use."""
    start = time.perf_counter()
    histories = host.histories
    asked = host.positions(request.users)
    state = host.state(request.series, request.shared)
    shared = {name: torch.from_numpy(values) for name, values in request.shared.items()}
    metrics = []
    for block in _blocks(host, request.shared, len(asked)):
        positions = asked[block]
        private = state.read(positions, request.round + 1, request.trained[block])

        def scores(rows: NDArray[np.int64], private: Values = private) -> NDArray[np.float32]:
            tensors = {name: torch.from_numpy(values[rows]) for name, values in private.items()}
            kept = {name: tensors[name] for name in host.backbone.private}
            personal = {name: tensors[name] for name in tensors if name not in kept}
            with torch.inference_mode():
                return host.backbone.scores(kept, {**shared, **personal}).numpy()

        metrics.append(
            evaluate_users(
                host.watched(scores),
                num_items=histories.num_items,
                train=histories.train.take(positions),
                validation=histories.validation.take(positions),
                test=histories.test.take(positions),
                candidates={part: drawn.take(positions) for part, drawn in histories.candidates.items()},
            )
        )
    values = np.concatenate(metrics).astype(np.float32)
    return EvaluateReply(users=request.users, metrics=values, seconds=time.perf_counter() - start)


def protected(host: Host, task: LocalTask, changes: Changes) -> Changes:
    """What leaves of the changes, after the protections that the run asks for."""
    if not is_protected(host.config):
        return changes
    users, positives = task.users[changes.users], task.positives.take(changes.users)
    return protect(changes, host.config, users, positives, task.num_items, host.draw_seed, task.round)


def _negatives(host: Host, positions: NDArray[np.int64], round_: int) -> Ragged:
    histories, options = host.histories, host.config
    positives = histories.train.take(positions)
    forbidden = positives if options.train_negatives == "honest" else histories.whole.take(positions)
    return training_negatives(
        positives,
        forbidden,
        histories.num_items,
        options.negatives_per_positive,
        histories.users[positions],
        host.draw_seed,
        round_,
    )


def _blocks(host: Host, shared: Arrays, count: int) -> Iterator[slice]:
    """Slices of the asked users whose private arrays fit the memory that we allow ourselves."""
    per_user = 4 * sum(spec.size for spec in host.private_specs(shared).values())
    size = max(1, BLOCK_BYTES // max(per_user, 1))
    for start in range(0, max(count, 1), size):
        yield slice(start, min(start + size, count))


def _refuse_divergence(users: NDArray[np.uint64], private: Values) -> None:
    for name, values in private.items():
        finite = np.isfinite(values).reshape(len(values), -1).all(axis=1)
        if not finite.all():
            user = int(users[np.flatnonzero(~finite)[0]])
            raise WireError(
                f"training of user {user:016x} diverged: '{name}' is not finite; try a smaller learning-rate"
            )
