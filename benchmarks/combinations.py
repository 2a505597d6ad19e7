"""Every method that trains, with every model that it takes."""

from __future__ import annotations

from collections.abc import Sequence

from bouquet.config import RunConfig
from bouquet.errors import ConfigError
from bouquet.methods import METHODS, PLUG_INS
from client_app.personalization import check_combination

TRAIN = sorted(name for name, method in METHODS.items() if method.kind == "gradients")


def combinations(methods: Sequence[str], backbones: Sequence[str]) -> list[tuple[str, str, str]]:
    """(strategy, backbone, plug-in) of every method that trains, plug-ins before FCF."""
    found = []
    for name in methods:
        for backbone in backbones:
            for plug_in in ("none", *sorted(set(PLUG_INS) - {"none"})) if name == "fcf" else ("none",):
                try:
                    check_combination(RunConfig(strategy=name, backbone=backbone, personalization=plug_in))
                except ConfigError:
                    continue
                found.append((name, backbone, plug_in))
    return found
