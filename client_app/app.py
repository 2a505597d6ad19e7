"""The ClientApp: the same code in a simulation, on a gateway with many users, and on a device with one."""

from __future__ import annotations

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from bouquet.wire import EvaluateRequest, RosterRequest, TrainRequest
from client_app import rounds
from client_app.host import Host, host_of

app = ClientApp()


@app.query("roster")
def roster(message: Message, context: Context) -> Message:
    """Say which users live here."""
    RosterRequest.decode(message.content)
    return Message(rounds.roster(_host(context)).encode(), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the asked users for one round."""
    host = _host(context)
    request = TrainRequest.decode(message.content, host.backbone.shared)
    return Message(rounds.train(host, request).encode(), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the asked users on what was held out of their histories."""
    host = _host(context)
    request = EvaluateRequest.decode(message.content, host.backbone.shared)
    return Message(rounds.evaluate(host, request).encode(), reply_to=message)


def _host(context: Context) -> Host:
    # Processes, not threads, are what nodes are spread over; more threads would fight for the same cores.
    torch.set_num_threads(1)
    # Where a node keeps its data is the node's own affair.
    here = {key: context.node_config[key] for key in ("data-dir", "data-file") if key in context.node_config}
    return host_of({**context.run_config, **here}, context.node_config)
