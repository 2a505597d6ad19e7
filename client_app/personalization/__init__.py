"""Device-side methods: what a device makes of the shared model.

A run names a strategy and a personalization. Some strategies have a device side of their own; a plug-in stands
before it, nearer to the arrays that travel.
"""

from collections.abc import Mapping

from bouquet.config import RunConfig, Scalar, lookup, own
from bouquet.errors import ConfigError
from client_app.personalization.ace import AdaptiveEnhancement
from client_app.personalization.additive import AdditiveTable
from client_app.personalization.base import Personalization
from client_app.personalization.cf_fedsr import InterestsAndTuning
from client_app.personalization.fed3cr import EnhancedConsensus
from client_app.personalization.fedca import MixedTable
from client_app.personalization.finetuned import FineTunedTable
from client_app.personalization.hetefedrec import Decorrelation
from client_app.personalization.plgc import LocalGlobalCollaboration
from models import BACKBONES, Backbone, SequenceBackbone

PERSONALIZATIONS: dict[str, type[Personalization] | None] = {
    "none": None,
    "ace": AdaptiveEnhancement,
    "plgc": LocalGlobalCollaboration,
}
"""The values of the setting 'personalization'; 'none' uses the shared model as it is."""

DEVICE_SIDES: dict[str, type[Personalization]] = {
    "cf-fedsr": InterestsAndTuning,
    "fed3cr": EnhancedConsensus,
    "fedca": MixedTable,
    "fedrap": AdditiveTable,
    "hetefedrec": Decorrelation,
    "pfedrec": FineTunedTable,
}
"""Strategies that come with a device side."""

OPEN_SIDES = frozenset({"fedrap", "pfedrec"})
"""Those among them that take whatever item table a plug-in gives them."""


def check_combination(config: RunConfig) -> None:
    """Refuse a strategy and a plug-in that both decide how a device uses its item table.

    Raises:
        ConfigError: the two cannot be combined, or there is no such plug-in.
    """
    plug_in = lookup(PERSONALIZATIONS, "personalization", config.personalization)
    if plug_in is not None and config.strategy in DEVICE_SIDES.keys() - OPEN_SIDES:
        raise ConfigError(
            f"{config.strategy} already decides how a device uses its item table, so it cannot be combined with "
            f"personalization '{config.personalization}'. Choose one of them."
        )
    if config.strategy == "hetefedrec":
        if issubclass(lookup(BACKBONES, "backbone", config.backbone), SequenceBackbone):
            raise ConfigError(
                f"hetefedrec has no models of different sizes for {config.backbone}; use ncf or lightgcn."
            )
        if config.exchange == "embedding":
            raise ConfigError("hetefedrec's networks belong to a size and travel with it, so exchange must be 'all'.")
    if plug_in is not None and config.strategy == "local":
        raise ConfigError(
            f"With strategy 'local' no item table is shared, and personalization '{config.personalization}' works on "
            "one. Choose fcf, fedavg, fedrap or pfedrec, or personalization 'none'."
        )
    if config.strategy == "fedca" and (config.update_clip or config.update_noise or config.decoy_rows):
        raise ConfigError(
            "fedca's server must know what a device's table has become, so update-clip, update-noise and decoy-rows do "
            "not fit it. Use its own noise, ldp-delta and ldp-delta-features."
        )


def device_methods(
    config: RunConfig, settings: Mapping[str, Scalar], backbone: Backbone
) -> tuple[Personalization, ...]:
    """The methods of a run, in the order in which they stand between travelling arrays and the backbone.

    Raises:
        ConfigError: as `check_combination`, or a method's setting cannot be used.
    """
    check_combination(config)
    classes = [PERSONALIZATIONS[config.personalization], DEVICE_SIDES.get(config.strategy)]
    return tuple(cls(backbone, config, own(settings, cls.options_class)) for cls in classes if cls is not None)
