"""Server-side methods: papers here, what they share in `federation`, and numerical routines in `numerics`."""

from collections.abc import Mapping

from bouquet.config import Scalar, Settings, lookup
from bouquet.methods import METHODS, check_attack, check_private, check_robust
from bouquet.methods.manifest import class_at
from bouquet.reporting.run_directory import RunDirectory
from strategies.federation.base import BaseStrategy

__all__ = ["BaseStrategy", "strategy_of", "without_other_methods"]


def strategy_of(settings: Settings, directory: RunDirectory) -> BaseStrategy:
    """The strategy of a run.

    Args:
        directory: where results and checkpoints go.
    Raises:
        ConfigError: there is no such method, or its settings cannot be used.
    """
    method = lookup(METHODS, "strategy", settings.run.strategy)
    check_robust(method, settings.run)
    check_attack(method, settings.run)
    check_private(method, settings.run)
    place = method.private if settings.run.private and method.private else method.strategy
    made: BaseStrategy = class_at(place)(settings.run, settings.of(method.options), directory)
    return made


def without_other_methods(settings: Mapping[str, Scalar], strategy: str) -> dict[str, Scalar]:
    """A configuration without the settings that only other strategies have."""
    mine = METHODS[strategy].options().to_flat()
    others = {key for method in METHODS.values() for key in method.options().to_flat()} - mine.keys()
    return {key: value for key, value in settings.items() if key not in others}
