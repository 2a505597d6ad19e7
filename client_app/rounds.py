"""What a node does when the server asks: say who lives here, train them, evaluate them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Arrays
from bouquet.errors import WireError
from bouquet.evaluation.metrics import PARTS
from bouquet.wire import EvaluateReply, EvaluateRequest, RosterReply, TrainReply, TrainRequest
from client_app.groups import Prefixes, join_evaluation, join_training, split, split_by_origin
from client_app.host import Host
from client_app.own_rows import OwnRows
from client_app.personalization.base import Changes, Given
from client_app.protection import is_protected, protect
from client_app.state import PrivateState, Values
from client_app.training import LocalTask
from client_app.updates import RowsCollector, SumCollector
from client_app.using import after, backend_of, local_task, rank, tune

# Private arrays of this many bytes are held in memory at once.
BLOCK_BYTES = 16 * 2**20


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
        specs=host.shared_specs,
    )


def train(host: Host, request: TrainRequest) -> TrainReply:
    """Train the asked users for one round and keep what is private.

    Raises:
        WireError: a user does not live here, or training diverged (the message names the user).
        StateError: private state is missing or damaged.
    """
    if host.groups:
        state = _state_of_all(host, request)
        parts = [
            (group, places, _train(member, part, Prefixes(state, member.private_specs(part.shared))))
            for group, places, part in split(request, [model.shared for model in host.groups])
            for member in [host.by_group[group]]
        ]
        reply = join_training(request, parts)
    else:
        state = host.state(request.series, request.shared)
        reply = _train(host, request, state)
    # Only now: a user whose update could not be sent has not trained.
    state.commit()
    return reply


def _train(host: Host, request: TrainRequest, state: PrivateState | Prefixes) -> TrainReply:
    """Train users who all have the same model; what is private counts after the state's `commit`."""
    start = time.perf_counter()
    backend = backend_of(host.config)
    asked = host.positions(request.users)
    collector: SumCollector | RowsCollector | None = None
    reports: list[dict[str, NDArray[np.float32]]] = []
    for block in blocks_of(host, request.shared, len(asked)):
        positions, users = asked[block], request.users[block]
        given = given_to(host, request, state, block, positions, "start")
        collector = collector or _collector(host, request, given, asked)
        task = local_task(host, given, positions, request.round)
        judged = [method for method in host.methods if method.needs_validation]
        made: list[Changes] = []
        for changes in backend(task):
            if judged or host.tuned:
                made.append(changes)
            for method in host.methods:
                changes = method.disguise(changes, given, users, request.round, host.draw_seed)
            collector.add(protected(host, task, changes), offset=block.start)
        _refuse_divergence(users, given.own)
        reports.append({})
        for method in host.methods:
            reports[-1] |= method.reports(given, users, task.positives, task.negatives, request.round, host.draw_seed)
        if judged:
            trained, own_rows = after(given, made, len(positions))
            metrics = rank(host, trained, positions, request.round, own_rows)[:, PARTS.index("validation")]
            for method in judged:
                reports[-1] |= method.validation_reports(metrics)
        started = {name: given.shared[name] for name in host.tuned}
        tuned = OwnRows.after(started, made) if started else None
        state.write(positions, request.round, request.checkpoint_round, given.own, started, tuned)
    if collector is None:
        raise WireError("no user is asked to train")
    told = {name: _stacked([part[name] for part in reports]) for name in reports[0]}
    return collector.reply(request.users, time.perf_counter() - start, told)


def _state_of_all(host: Host, request: TrainRequest | EvaluateRequest) -> PrivateState:
    """The private state of all groups: either all shared arrays travel, or none."""
    return host.state(request.series, host.model_specs if request.shared else {})


def given_to(
    host: Host, request: TrainRequest | EvaluateRequest, state: PrivateState | Prefixes, block: slice,
    positions: NDArray[np.int64], purpose: Literal["start", "deploy"],
) -> Given:  # fmt: skip
    """What some users start training from, or recommend with."""
    before = request.round if purpose == "start" else request.round + 1
    unread = unread_at_start(host) if purpose == "start" else frozenset[str]()
    given = Given(request.shared, state.read(positions, before, request.trained[block], unread))
    personal = {name: values[block] for name, values in request.personal.items()}
    if personal and not host.methods:
        raise WireError(f"the device has no use for arrays of single users such as '{next(iter(personal))}'")
    for method in host.methods:
        given = getattr(method, purpose)(given, personal, ~request.trained[block])
    return given


def deployed(
    host: Host, request: TrainRequest | EvaluateRequest, state: PrivateState | Prefixes, block: slice,
    positions: NDArray[np.int64],
) -> Given:  # fmt: skip
    """What some users recommend with, all that they have of their own as whole arrays."""
    given = given_to(host, request, state, block, positions, "deploy")
    if not (host.tuned and isinstance(state, PrivateState)):
        return given
    before, trained = request.round + 1, request.trained[block]
    origins = state.origins(positions, before, trained)
    own_rows = state.own_rows(positions, before, trained)
    for name in host.tuned:
        tables = np.repeat(given.shared[name][None], len(positions), axis=0)
        for origin in np.unique(origins[origins > 0]):
            tables[origins == origin] = state.origin(origin)[name]
        own_rows.put(name, tables)
        given = given.with_own(name, tables)
    return given


def unread_at_start(host: Host) -> frozenset[str]:
    """The users' own versions that nobody starts training from; a plug-in may want what the base method does not."""
    wanted = frozenset[str]().union(*(method.kept - method.replaced for method in host.methods))
    return frozenset[str]().union(*(method.replaced for method in host.methods)) - wanted


def _collector(
    host: Host, request: TrainRequest, given: Given, asked: NDArray[np.int64]
) -> SumCollector | RowsCollector:
    specs = {name: host.model_specs[name] for name in (*given.shared, *sorted(given.reported))}
    if request.update == "rows":
        return RowsCollector(specs, len(asked))
    sizes = host.histories.train.lengths[asked].astype(float)
    return SumCollector(specs, sizes if request.weighting == "size" else np.ones(len(asked)))


def evaluate(host: Host, request: EvaluateRequest) -> EvaluateReply:
    """Rank the held-out items of the asked users with the model that their devices would use."""
    if not host.groups:
        state = host.state(request.series, request.shared)
        if not used_by_rows(host) or not len(request.users):
            return _evaluate(host, request, state)
        by_origin = split_by_origin(request, host.positions(request.users), state)
        return join_evaluation(
            request, [(number, places, _evaluate(host, part, state)) for number, places, part in by_origin]
        )
    state = _state_of_all(host, request)
    parts = [
        (group, places, _evaluate(member, part, Prefixes(state, member.private_specs(part.shared))))
        for group, places, part in split(request, [model.shared for model in host.groups])
        for member in [host.by_group[group]]
    ]
    return join_evaluation(request, parts)


def _evaluate(host: Host, request: EvaluateRequest, state: PrivateState | Prefixes) -> EvaluateReply:
    start = time.perf_counter()
    asked = host.positions(request.users)
    metrics = []
    reports: list[dict[str, NDArray[np.float32]]] = []
    for block in blocks_of(host, request.shared, len(asked)):
        positions = asked[block]
        if used_by_rows(host) and isinstance(state, PrivateState):
            given = given_to(host, request, state, block, positions, "deploy")
            own_rows = state.own_rows(positions, request.round + 1, request.trained[block])
        else:
            given, own_rows = deployed(host, request, state, block, positions), None
        reports.append({})
        for method in host.methods:
            reports[-1] |= method.evaluation_reports(given, host.histories.train.take(positions))
        for tuning in (method.tuning for method in host.methods if method.tuning is not None):
            given, own_rows = tune(host, given, positions, request.round, tuning)
        metrics.append(rank(host, given, positions, request.round, own_rows))
    return EvaluateReply(
        users=request.users,
        metrics=np.concatenate(metrics).astype(np.float32),
        seconds=time.perf_counter() - start,
        reports={name: _stacked([part[name] for part in reports]) for name in reports[0]},
    )


def protected(host: Host, task: LocalTask, changes: Changes) -> Changes:
    """What leaves of the changes, after the protections that the run asks for."""
    if not is_protected(host.config):
        return changes
    users, positives = task.users[changes.users], task.positives.take(changes.users)
    return protect(changes, host.config, users, positives, task.num_items, host.draw_seed, task.round)


def used_by_rows(host: Host) -> bool:
    """Whether users' own versions of common tables are used as the rows in which they differ."""
    return bool(host.tuned) and not any(method.in_loss for method in host.methods)


def blocks_of(host: Host, shared: Arrays, count: int) -> Iterator[slice]:
    """Slices of the asked users whose private arrays fit the memory that we allow ourselves."""
    own = [spec.size for spec in host.private_specs(shared).values()]
    for spec in host.tuned.values():
        samples = (1 + host.config.negatives_per_positive) * len(host.histories.train.values)
        rows = min(spec.shape[0], samples // max(len(host.histories.users), 1) + 1)
        own.append(rows * spec.size // spec.shape[0] if used_by_rows(host) else spec.size)
    if any(method.tuning is not None for method in host.methods):  # then every user has its own network for a while
        own += [spec.size for name, spec in host.model_specs.items() if name in shared and not spec.by_item]
    per_user = 4 * sum(own)
    size = max(1, BLOCK_BYTES // max(per_user, 1))
    for start in range(0, max(count, 1), size):
        yield slice(start, min(start + size, count))


def _stacked(parts: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Blocks of users one after another; where their last axes differ in length, padded with zeros."""
    longest = max(part.shape[-1] for part in parts)
    return np.concatenate([np.pad(p, [(0, 0)] * (p.ndim - 1) + [(0, longest - p.shape[-1])]) for p in parts])


def _refuse_divergence(users: NDArray[np.uint64], private: Values) -> None:
    for name, values in private.items():
        flat = values.reshape(len(values), -1)
        if np.isfinite(flat.sum(axis=1)).all():  # quicker, and true for all but numbers that are nearly too large
            continue
        finite = np.isfinite(flat).all(axis=1)
        if not finite.all():
            user = int(users[np.flatnonzero(~finite)[0]])
            raise WireError(
                f"training of user {user:016x} diverged: '{name}' is not finite; try a smaller learning-rate"
            )
