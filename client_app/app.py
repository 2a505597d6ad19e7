"""The ClientApp: the same code in a simulation, on a gateway with many users, and on a device with one."""

from __future__ import annotations

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from bouquet.config import Scalar
from bouquet.reporting.events import event
from bouquet.wire import EvaluateRequest, RosterRequest, TrainRequest
from client_app import rounds
from client_app.device import before_training, device_host, device_roster
from client_app.edge import is_device
from client_app.host import Host, host_of

app = ClientApp()


@app.query("roster")
def roster(message: Message, context: Context) -> Message:
    """Say which users live here."""
    request = RosterRequest.decode(message.content)
    if is_device(context.node_config):
        reply = device_roster(request, context.run_config, context.node_config)
    else:
        reply = rounds.roster(_host(context))
    return Message(reply.encode(), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the asked users for one round."""
    host = _host(context, message)
    request = TrainRequest.decode(message.content, host.shared_specs)
    if is_device(context.node_config):
        before_training(host, context.node_config)
    reply = rounds.train(host, request)
    event("trained", round=request.round, users=len(request.users), seconds=reply.seconds)
    return Message(reply.encode(), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the asked users on what was held out of their histories."""
    host = _host(context, message)
    request = EvaluateRequest.decode(message.content, host.shared_specs)
    reply = rounds.evaluate(host, request)
    event("evaluated", round=request.round, users=len(request.users), seconds=reply.seconds)
    return Message(reply.encode(), reply_to=message)


def _host(context: Context, message: Message | None = None) -> Host:
    # Processes, not threads, are what nodes are spread over; more threads would fight for the same cores.
    torch.set_num_threads(1)
    if is_device(context.node_config):
        round_ = int(message.metadata.group_id or 0) if message else 0
        return device_host(context.run_config, context.node_config, round_)
    # Where a node keeps its data is the node's own affair.
    here: dict[str, Scalar] = {
        key: context.node_config[key] for key in ("data-dir", "data-file") if key in context.node_config
    }
    return host_of({**context.run_config, **here}, context.node_config)
