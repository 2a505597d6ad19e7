"""The ClientApp: the same code in a simulation, on a gateway with many users, and on a device with one."""

from __future__ import annotations

from dataclasses import replace

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from bouquet.attacks import EXPOSURE, target_of
from bouquet.config import Scalar
from bouquet.policy import Policy
from bouquet.reporting.events import event
from bouquet.training_part import TRAINING
from bouquet.wire import EvaluateRequest, RosterRequest, TrainReply, TrainRequest
from client_app.edge.growing_history import is_device
from client_app.edge.handlers import after_evaluation, after_training, before_training, device_node, device_roster
from client_app.folding import unfolding
from client_app.node.lists import Shown, folder_of, together
from client_app.side import Node, node_of

app = ClientApp(mods=[unfolding])


@app.query("roster")
def roster(message: Message, context: Context) -> Message:
    """Say which users live here."""
    request = RosterRequest.decode(message.content)
    if is_device(context.node_config):
        reply = device_roster(request, context.run_config, context.node_config)
    else:
        node = _node(context)
        _policy(context).refuse_run(node.config, request.update, request.tells)
        node.refuse_unable()
        reply = node.roster()
    return Message(reply.encode(), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the asked users for one round."""
    node = _node(context, message)
    request = TrainRequest.decode(message.content, node.shared_specs)
    _policy(context).refuse_run(node.config, request.update, request.reports)
    node.refuse_full_disk(request)
    if is_device(context.node_config):
        before_training(node, context.node_config)

    def trained() -> TrainReply:
        with node.alone(request.series):
            reply = node.train(request)
        if is_device(context.node_config):
            after_training(node, request, context.node_config)
        event("trained", round=request.round, users=len(request.users), seconds=reply.seconds)
        return replace(reply, series=request.series, round=request.round)

    if not node.config.secure_sums:
        return Message(trained().encode(), reply_to=message)
    # Here, so that a device that masks nothing does without.
    from client_app.node.masking import masked

    return Message(masked(message, context, node, request, trained), reply_to=message)


def _masking(stage: str) -> ClientAppCallable:
    """What a node answers at a stage of a secure sum; imported when it is first asked for."""

    def answer(message: Message, context: Context) -> Message:
        from client_app.node import masking

        found: Message = getattr(masking, stage)(message, context)
        return found

    return answer


for _stage in ("keys", "shares", "agree", "unmask"):
    app.query(_stage)(_masking(_stage))


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the asked users on what was held out of their histories."""
    node = _node(context, message)
    request = EvaluateRequest.decode(message.content, node.shared_specs)
    # Metrics are asked for, and no update of any kind.
    _policy(context).refuse_run(node.config, "sum", request.reports)
    folder = folder_of(node.config, context.node_config)
    shown = Shown(node.histories, node.config.recommendations, exclude_known=node.config.repeats == "drop")
    watches = [shown.take] if folder else []
    if EXPOSURE in request.reports:
        from client_app.node.exposure import Exposed  # only a simulation of an attack has a use for it

        exposed = Exposed(
            node.histories,
            target_of(node.config, node.histories.num_items),
            exclude_known=node.config.repeats == "drop",
        )
        watches.append(exposed.take)
    if TRAINING in request.reports:
        from client_app.node.training_part import Learned  # only a simulation that asks has a use for it

        learned = Learned(node.histories, exclude_known=node.config.repeats == "drop")
        watches.append(learned.take)
    with node.alone(request.series):
        reply = (node.watched_by(together(watches)) if watches else node).evaluate(request)
    if EXPOSURE in request.reports:
        reply = exposed.told(reply, node.positions(reply.users))
    if TRAINING in request.reports:
        reply = learned.told(reply, node.positions(reply.users))
    if folder:
        shown.leave(folder, request.round)
    if is_device(context.node_config):
        after_evaluation(node, request, context.run_config, context.node_config)
    event("evaluated", round=request.round, users=len(request.users), seconds=reply.seconds)
    return Message(replace(reply, series=request.series, round=request.round).encode(), reply_to=message)


def _policy(context: Context) -> Policy:
    return Policy.of(context.node_config)


def _node(context: Context, message: Message | None = None) -> Node:
    if is_device(context.node_config):
        round_ = int(message.metadata.group_id or 0) if message else 0
        return device_node(context.run_config, context.node_config, round_)
    # Where a node keeps its data is the node's own affair.
    here: dict[str, Scalar] = {
        key: context.node_config[key] for key in ("data-dir", "data-file") if key in context.node_config
    }
    return node_of({**context.run_config, **here}, context.node_config)
