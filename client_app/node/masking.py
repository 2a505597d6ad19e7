"""A node's side of secure sums: between two messages of a round, what it has promised and to whom.

That is kept in the node's memory (Flower's `context.state`), not on the disk: a node that was started anew has lost its
keys, and is lost for the round. It gives its numbers once in a round of a run, and of no round that is past.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict

from bouquet.config import Settings, parsed
from bouquet.errors import ConfigError, WireError
from bouquet.masking.fixed import Whole
from bouquet.masking.identity import Registered
from bouquet.masking.key_messages import KeysRequest, SharesRequest
from bouquet.masking.names import CERTIFICATE
from bouquet.masking.participant import Participant
from bouquet.masking.rules import Rules
from bouquet.masking.sum_messages import AgreeRequest, InputRequest, UnmaskRequest, said_beside
from bouquet.masking.vectors import Layout, model_digest, refuse_length
from bouquet.policy import Policy
from bouquet.wire import TrainReply, TrainRequest
from client_app.side import Node

_STATE, _LAST = "secure", "last"


def keys(message: Message, context: Context) -> Message:
    """Make keys for a round that is still to come."""
    _settings(context)
    request = KeysRequest.decode(message.content)
    if request.round <= (last := _last_round(context, request.series)):
        raise WireError(f"this node has given its numbers of round {last}, and is asked for round {request.round}")
    node, reply = Participant.begin(request, _identity(context))
    _keep(context, node)
    return Message(reply.encode(request.series, request.round), reply_to=message)


def shares(message: Message, context: Context) -> Message:
    """Share this node's secrets among its neighbours."""
    settings, policy = _settings(context), Policy.of(context.node_config)
    request = SharesRequest.decode(message.content)
    node, reply = _kept(context).share(request, rules_of(settings), policy.accept_nodes, _identity(context))
    _keep(context, node)
    return Message(reply.encode(request.series, request.round), reply_to=message)


def agree(message: Message, context: Context) -> Message:
    """Sign who is in the sum."""
    settings, policy, before = _settings(context), Policy.of(context.node_config), _kept(context)
    request = AgreeRequest.decode(message.content, before.nodes)
    node, reply = before.agree(request, rules_of(settings), policy.accept_nodes)
    _keep(context, node)
    return Message(reply.encode(request.series, request.round), reply_to=message)


def unmask(message: Message, context: Context) -> Message:
    """Reveal what takes the masks off the sum."""
    settings, before = _settings(context), _kept(context)
    request = UnmaskRequest.decode(message.content, before.nodes)
    node, reply = before.reveal(request, rules_of(settings))
    _keep(context, node)
    return Message(reply.encode(request.series, request.round), reply_to=message)


def masked(
    message: Message, context: Context, node: Node, request: TrainRequest, train: Callable[[], TrainReply]
) -> RecordDict:
    """What a node answers that was asked to train: who was trained, and its numbers under masks.

    Args:
        train: does it.
    Raises:
        WireError: it is asked for something that is each user's own, or with weights that single somebody out.
    """
    settings, before = _settings(context), _kept(context)
    if (request.series, request.round) != (before.series, before.round):
        raise WireError(f"this node has no keys for round {request.round} of this run")
    asked = InputRequest.decode(message.content, before.nodes)
    if request.update == "rows" or request.reports or request.personal:
        raise WireError("under masks there is nothing of single users")
    _refuse_weights(node, request)
    rules = rules_of(settings)
    # Whether it can be masked is known before it is trained; what it gives is not.
    before.refuse_input(asked, rules)
    reply = train()
    values = _numbers(settings, node, request, reply, asked, before.nodes)
    quiet = TrainReply(
        users=reply.users,
        loss=np.full(len(reply.users), np.nan, np.float32),
        upload_bytes=np.zeros(len(reply.users), np.int64),
        left_out=reply.left_out,
        seconds=reply.seconds,
        series=request.series,
        round=request.round,
    )
    content = quiet.encode()
    about = said_beside(content) + asked.digest()
    after, given = before.mask(asked, values, model_digest(request.shared), about, rules)
    _keep(context, after, last=request.round)
    given.add_to(content)
    return content


def rules_of(settings: Settings) -> Rules:
    """What all nodes of the run hold to."""
    run = settings.run
    return Rules(
        run.secure_sums_neighbors,
        run.secure_sums_threshold,
        run.secure_sums_clip,
        run.secure_sums_bits,
        run.noise_of_nodes,
    )


def _numbers(
    settings: Settings, node: Node, request: TrainRequest, reply: TrainReply, asked: InputRequest, nodes: int
) -> Whole:
    cells = node.cells if request.update == "cells" else {}
    specs = {} if cells else {name: node.shared_specs[name] for name in reply.sums}
    refuse_length(specs, cells, settings.run.strategy)
    layout = Layout(specs, cells, rules_of(settings), asked.weight, asked.users, nodes)
    if cells:
        return layout.encode_cells(reply.cells, reply.loss)
    kept = np.isin(request.users, reply.users)
    alone = len(request.users) == 1
    factor = float(request.weights[0]) if alone else 1.0
    weight = float(request.weights[kept].sum())
    return layout.encode_sums(reply.sums, factor, weight, reply.loss)


def _refuse_weights(node: Node, request: TrainRequest) -> None:
    """Weights are known beforehand, and the same rule for everybody: one, or one for each training item.

    Raises:
        WireError: a user would count for more or less than others.
    """
    weights = request.weights
    if request.update == "cells" or (weights == 1).all():
        return
    sizes = node.histories.train.lengths[node.place.positions(request.users)]
    if not np.array_equal(weights, sizes):
        raise WireError("a user would count for more or less in the sum than one, or than its training items")


def _settings(context: Context) -> Settings:
    """The run's settings, where it has secure sums.

    Raises:
        ConfigError: it has none, or asks for more than this node gives.
    """
    settings = parsed(context.run_config)
    if not settings.run.secure_sums:
        raise ConfigError("The run has no secure-sums, and its messages ask for some.")
    Policy.of(context.node_config).refuse_run(settings.run, "sum")
    return settings


def _identity(context: Context) -> Registered | None:
    """This node's registered identity; None where it has no certificate, and takes everybody for what they say.

    A certificate can come while the node runs: it counts from the next round on.
    """
    folder = str(context.node_config.get("identity", ""))
    return Registered.at(Path(folder)) if folder and (Path(folder) / CERTIFICATE).exists() else None


def _kept(context: Context) -> Participant:
    try:
        return Participant.load(dict(_record(context)))
    except KeyError:
        raise WireError("this node has no keys for this round: it was not asked, or was started anew") from None


def _keep(context: Context, node: Participant, last: int | None = None) -> None:
    before = _last_round(context, node.series)
    said = f"{before if last is None else last} {node.series}".encode()
    context.state[_STATE] = ConfigRecord({**node.dump(), _LAST: said})


def _last_round(context: Context, series: str) -> int:
    """The last round of which this node has given numbers in this run."""
    record: Mapping[str, bytes] = _record(context)
    round_, _, of = record.get(_LAST, b"0 ").decode().partition(" ")
    return int(round_) if of == series else 0


def _record(context: Context) -> dict[str, bytes]:
    found = context.state.get(_STATE)
    return {name: part for name, part in found.items() if isinstance(part, bytes)} if found else {}
