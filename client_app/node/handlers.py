"""What a node does when the server asks: train its users, evaluate them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from bouquet.errors import WireError
from bouquet.evaluation.metrics import PARTS
from bouquet.packed import by_entry, surely_finite
from bouquet.ragged import follow_one_another, one_after_another
from bouquet.wire import DIVERGED, WITHIN, EvaluateReply, EvaluateRequest, TrainReply, TrainRequest
from client_app.node.attacks import lies, lying_among
from client_app.node.given import blocks_of, deployed, given_to, used_by_rows
from client_app.node.groups import Prefixes, join_evaluation, join_training, split, split_by_origin
from client_app.node.host import Host
from client_app.node.protection import limited, protect
from client_app.node.tasks import after, local_task, negatives_of, rank, training_of, tune
from client_app.node.told import Told, reports_of
from client_app.node.updates import RowsCollector, SumCollector
from client_app.personalization.round import Changes, Given
from client_app.state.private import PrivateState, Values
from client_app.state.row_overrides import OwnRows, touched_rows
from client_app.training import LocalTask


def train(host: Host, request: TrainRequest) -> TrainReply:
    """Train the asked users for one round and keep what is private.

    Raises:
        WireError: a user does not live here, or training diverged (the message names the user).
        StateError: private state is missing or damaged.
    """
    state, reply = _train_groups(host, request, {})
    states = [state]
    if host.shown is not host:
        # What was trained until here is the users' own and stays. What leaves is trained from the histories with
        # decoys in them, by the same rules, as if there were nothing else.
        seconds = reply.seconds
        state, reply = _train_groups(host.shown, request, reply.left_out)
        states.append(state)
        reply = replace(reply, seconds=seconds + reply.seconds)
    # Only now: a user whose update could not be sent has not trained.
    for state in states:
        state.commit()
    host.folders.drop_old(request.series)
    return reply


def _train_groups(host: Host, request: TrainRequest, left_out: Mapping[int, str]) -> tuple[PrivateState, TrainReply]:
    """Train users whose models may have different sizes; what is private counts after the state's `commit`."""
    if not host.groups:
        state = host.state(request.series, request.shared)
        return state, _train(host, request, state, left_out)
    state = _state_of_all(host, request)
    parts = [
        (group, places, _train(member, part, Prefixes(state, member.private_specs(part.shared)), left_out))
        for group, places, part in split(request, [model.shared for model in host.groups])
        for member in [host.by_group[group]]
    ]
    return state, join_training(request, parts)


def _train(host: Host, request: TrainRequest, state: PrivateState | Prefixes, unfit: Mapping[int, str]) -> TrainReply:
    """Train users who all have the same model; what is private counts after the state's `commit`.

    A user whose training diverged is left out of the update, and its private state stays as it was.

    Args:
        unfit: users who are left out whatever comes of their training, and why.
    """
    start = time.perf_counter()
    backend = training_of(host)
    asked = host.positions(request.users)
    judged = [method for method in host.methods if method.needs_validation and request.reports]
    collector: SumCollector | RowsCollector | None = None
    fit = np.ones(len(asked), dtype=bool)
    told = Told(request.reports)
    left_out: dict[int, str] = {}
    limit = limit_of(host, request)
    by_rows = isinstance(state, PrivateState) and bool(state.by_rows)
    for block in blocks_of(host, request.shared, len(asked)):
        positions, known_as = asked[block], request.users[block]
        users = host.histories.users[positions]
        negatives = negatives_of(host, positions, request.round)
        # A table that is kept by rows is only read, and only changed, where the user has samples.
        samples = one_after_another(host.histories.train.take(positions), negatives) if by_rows else None
        given = given_to(host, request, state, block, positions, "start", samples)
        collector = collector or _collector(host, request, given)
        task = local_task(host, given, positions, request.round, negatives=negatives)
        made: list[Changes] = []
        within = np.zeros(len(users), dtype=bool)
        for changes in backend(task):
            diverged = _diverged(changes, given.own)
            if unfit:
                keys = known_as[changes.users].tolist()
                diverged |= {place: unfit[key] for place, key in enumerate(keys) if key in unfit}
            if diverged:
                left_out |= {int(known_as[changes.users[place]]): reason for place, reason in diverged.items()}
                fit[block.start + changes.users[list(diverged)]] = False
                changes = changes.take(np.flatnonzero(fit[block.start + changes.users]))
            if judged or host.tuned or by_rows:
                made.append(changes)
            for method in host.methods:
                changes = method.disguise(changes, given, users, request.round, host.draws)
            if (lying := lying_among(host, task, changes)).any():
                collector.add(lies(host, task, changes.take(np.flatnonzero(lying))), offset=block.start)
                changes = changes.take(np.flatnonzero(~lying))
            if host.config.private:
                place = changes.users
                changes, within[place] = limited(changes, limit)
            collector.add(protected(host, task, changes), offset=block.start)
        kept = np.flatnonzero(fit[block])
        if len(kept) < len(users):
            made = _renumbered(made, kept)
            given, positions, users = given.take(kept), positions[kept], users[kept]
        if not len(kept):
            continue
        if WITHIN in request.reports:
            told.add({WITHIN: within[kept].astype(np.float32)})
        if request.reports:
            asked_to = kept if request.telling is None else kept[np.isin(block.start + kept, request.telling)]
            told.add(reports_of(host, task, given, kept, asked_to))
        if judged:
            trained, own_rows = after(given, made, len(positions))
            metrics, _ = rank(host, trained, positions, request.round, own_rows)
            for method in judged:
                told.add(method.validation_reports(metrics[:, PARTS.index("validation")]))
        started = {name: given.shared[name] for name in host.tuned}
        tuned = OwnRows.after(started, made) if started else None
        versions, kept_versions = request.versions[block][kept], request.kept[block][kept]
        touched = touched_rows(made, len(positions)) if by_rows else None
        state.write(positions, request.round, versions, kept_versions, given.own, started, tuned, touched)
    if collector is None:
        raise WireError("no user is asked to train")
    reply, reports = collector.reply(request.users, np.flatnonzero(fit)), told.stacked()
    sizes = reply.upload_bytes + sum(values[0].nbytes for values in reports.values())
    seconds = time.perf_counter() - start
    return replace(reply, upload_bytes=sizes, reports=reports, left_out=left_out, seconds=seconds)


def _state_of_all(host: Host, request: TrainRequest | EvaluateRequest) -> PrivateState:
    """The private state of all groups: either all shared arrays travel, or none."""
    return host.state(request.series, host.model_specs if request.shared else {})


def _collector(host: Host, request: TrainRequest, given: Given) -> SumCollector | RowsCollector:
    specs = {name: host.model_specs[name] for name in (*given.shared, *sorted(given.reported))}
    if request.update == "rows":
        return RowsCollector(specs, len(request.users))
    return SumCollector(specs, request.weights)


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
    metrics, fit = [], []
    told = Told(request.reports)
    for block in blocks_of(host, request.shared, len(asked)):
        positions = asked[block]
        if used_by_rows(host) and isinstance(state, PrivateState):
            given = given_to(host, request, state, block, positions, "deploy")
            own_rows = state.own_rows(positions, request.versions[block])
        else:
            given, own_rows = deployed(host, request, state, block, positions), None
        for method in host.methods if request.reports else ():
            # As in training, the server is told of histories with their decoys, if there are any.
            told.add(method.evaluation_reports(given, host.shown.histories.train.take(positions)))
        for tuning in (method.tuning for method in host.methods if method.tuning is not None):
            given, own_rows = tune(host, given, positions, request.round, tuning)
        found, finite = rank(host, given, positions, request.round, own_rows)
        metrics.append(found)
        fit.append(finite)
    whole = EvaluateReply(request.users, np.concatenate(metrics).astype(np.float32), reports=told.stacked())
    unfit = request.users[~np.concatenate(fit)].tolist()
    reply = whole.without(dict.fromkeys(unfit, "its model gives scores that are not finite")) if unfit else whole
    return replace(reply, seconds=time.perf_counter() - start)


def limit_of(host: Host, request: TrainRequest) -> float:
    """L2 norm of what a user may change in a private run; 0 in others.

    Raises:
        WireError: the server asks for what would make a user count for more.
    """
    config = host.config
    if not config.private:
        return 0.0
    if (request.weights != 1).any():
        raise WireError("in a run with differential privacy every user weighs 1")
    if config.dp_clip_quantile and request.clip <= 0:
        raise WireError("the limit of this round is missing")
    return request.clip if config.dp_clip_quantile else config.dp_clip


def protected(host: Host, task: LocalTask, changes: Changes) -> Changes:
    """What leaves of the changes, after the protections that the run asks for."""
    if host.config.update_clip == 0:  # without which there is no noise either
        return changes
    return protect(changes, host.config, task.users[changes.users], task.num_items, host.draws, task.round)


def _diverged(changes: Changes, private: Values) -> dict[int, str]:
    """Users, by their place in `changes`, whose training left numbers that are not finite, and the reason of each."""
    found: dict[int, str] = {}
    users = changes.users
    if not len(users):
        return found
    # Neighbours as a view: private tables are large.
    at = slice(int(users[0]), int(users[-1]) + 1) if follow_one_another(users) else users
    bad = {f"'{name}'": ~_finite(values[at]) for name, values in private.items()}
    bad["its update"] = ~changes.finite()
    for name, unfit in bad.items():
        for place in np.flatnonzero(unfit).tolist():
            found.setdefault(place, f"{DIVERGED}: {name} is not finite; try a smaller learning-rate")
    return found


def _finite(values: NDArray[np.float32]) -> NDArray[np.bool_]:
    """[k] whether all values [k, …] of each user are finite."""
    return np.ones(len(values), dtype=bool) if surely_finite(values) else by_entry(np.isfinite(values))


def _renumbered(made: list[Changes], kept: NDArray[np.int64]) -> list[Changes]:
    """The same changes, with users numbered among those that are kept."""
    return [replace(part, users=np.searchsorted(kept, part.users)) for part in made]
