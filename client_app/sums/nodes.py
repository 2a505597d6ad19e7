"""The node of a method of sums over users: its users count, or they solve."""

from __future__ import annotations

from bouquet.config import Settings
from bouquet.errors import ConfigError
from bouquet.methods import METHODS, PLUG_INS, check_private
from bouquet.methods.manifest import class_at
from bouquet.methods.parts import ModelOfSums
from client_app.node.histories import no_order
from client_app.node.place import Place
from client_app.sums.counting_node import CountingNode
from client_app.sums.node import SumsNode
from client_app.sums.private import PrivateCounter
from client_app.sums.solver import Solver
from client_app.sums.solving_node import SolvingNode


def node_of_sums(settings: Settings, place: Place) -> SumsNode:
    """As `node_at`."""
    config, method = settings.run, METHODS[settings.run.strategy]
    options, device = settings.of(method.options), class_at(str(method.device))
    assert isinstance(options, ModelOfSums)
    options.check_run(config)
    check_private(method, config)
    if config.personalization != "none":
        plug_in = PLUG_INS[config.personalization]
        raise ConfigError(method.no_plug_in.format(name=method.name, plug_in=plug_in and plug_in.name))
    if device.reads_order(options) and not place.histories.in_time:
        raise ConfigError(no_order(method.name, config, device.without_order))
    made = device(place.histories.num_items, options)
    if config.private:
        made = PrivateCounter(made, config.dp_clip, config.dp_rank)
    return SolvingNode(config, place, made) if isinstance(made, Solver) else CountingNode(config, place, made)
