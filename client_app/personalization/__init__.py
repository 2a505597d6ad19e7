"""Device-side methods: what a device makes of the shared model. A file is named as the method that it belongs to.

A run names a strategy and a personalization. Some strategies have a device side of their own; a plug-in stands
before it, nearer to the arrays that travel.
"""

from bouquet.config import Options, RunConfig, Settings, lookup
from bouquet.errors import ConfigError
from bouquet.methods import METHODS, PLUG_INS
from bouquet.methods.manifest import class_at
from client_app.node.histories import no_order
from client_app.personalization.base import Personalization
from models import BACKBONES, Backbone


def check_combination(config: RunConfig) -> None:
    """Refuse a strategy with a plug-in or a backbone that it cannot be combined with.

    Raises:
        ConfigError: the two cannot be combined, or there is no such plug-in.
    """
    method = lookup(METHODS, "strategy", config.strategy)
    plug_in = lookup(PLUG_INS, "personalization", config.personalization)
    if plug_in is not None and not method.plug_ins:
        raise ConfigError(method.no_plug_in.format(name=method.name, plug_in=plug_in.name))
    if not method.sequences and BACKBONES[config.backbone].sequential:
        others = ", ".join(name for name, kind in BACKBONES.items() if not kind.sequential)
        raise ConfigError(f"{method.name} does not work with {config.backbone}, which reads sequences; use {others}.")


def _sides(config: RunConfig) -> list[tuple[str, type[Personalization], type[Options]]]:
    """Name, class and settings of a run's device sides, the plug-in first."""
    of_run = [lookup(PLUG_INS, "personalization", config.personalization), METHODS[config.strategy]]
    return [(m.name, class_at(m.device), m.options) for m in of_run if m is not None and m.device is not None]


def check_order(settings: Settings, in_time: bool) -> None:
    """Refuse a model or method that reads what came after what, where rows stand in an order that means nothing.

    Args:
        in_time: whether histories are in the order of time.
    Raises:
        ConfigError: they are not, and something reads their order.
    """
    config = settings.run
    if in_time:
        return
    counts = lookup(METHODS, "strategy", config.strategy).kind == "sums"  # and trains no model
    if not counts and lookup(BACKBONES, "backbone", config.backbone).reads_order:
        raise ConfigError(no_order(config.backbone, config, "use a backbone that reads no order, such as mf"))
    for name, side, options in _sides(config):
        if side.reads_order(settings.of(options)):
            raise ConfigError(no_order(name, config, side.without_order))


def device_methods(settings: Settings, backbone: Backbone) -> tuple[Personalization, ...]:
    """The methods of a run, in the order in which they stand between travelling arrays and the backbone.

    Raises:
        ConfigError: as `check_combination`, or a method's setting cannot be used.
    """
    config = settings.run
    check_combination(config)
    if METHODS[config.strategy].kind == "sums":
        return ()
    return tuple(side(backbone, config, settings.of(options)) for _, side, options in _sides(config))
