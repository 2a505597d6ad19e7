"""What methods are: one file each, with all settings and what the rest of the program must know of it.

Other packages add theirs as entry points of the group "bouquet.methods", each a `Method` or a `PlugIn`.
"""

from __future__ import annotations

from typing import Any

from bouquet.config import RunConfig, wrong_options
from bouquet.errors import ConfigError
from bouquet.installed import Names
from bouquet.methods.ace import ACE
from bouquet.methods.cf_fedsr import CF_FEDSR
from bouquet.methods.ease import EASE
from bouquet.methods.fcf import FCF
from bouquet.methods.fed3cr import FED3CR
from bouquet.methods.fedatt import FEDATT
from bouquet.methods.fedavg import FEDAVG
from bouquet.methods.fedca import FEDCA
from bouquet.methods.fedfast import FEDFAST
from bouquet.methods.fedprox import FEDPROX
from bouquet.methods.fedrap import FEDRAP
from bouquet.methods.gf_cf import GF_CF
from bouquet.methods.gpfedrec import GPFEDREC
from bouquet.methods.hetefedrec import HETEFEDREC
from bouquet.methods.ials import IALS
from bouquet.methods.local import LOCAL
from bouquet.methods.manifest import Method, PlugIn
from bouquet.methods.perfedrec import PERFEDREC
from bouquet.methods.pfedgraph import PFEDGRAPH
from bouquet.methods.pfedrec import PFEDREC
from bouquet.methods.plgc import PLGC
from bouquet.methods.scaffold import SCAFFOLD
from bouquet.methods.sequential_rules import SEQUENTIAL_RULES
from bouquet.methods.slist import SLIST

_METHODS = {
    method.name: method
    for method in (
        CF_FEDSR,
        EASE,
        FCF,
        FED3CR,
        FEDATT,
        FEDAVG,
        FEDCA,
        FEDFAST,
        FEDPROX,
        FEDRAP,
        GF_CF,
        GPFEDREC,
        HETEFEDREC,
        IALS,
        LOCAL,
        PERFEDREC,
        PFEDGRAPH,
        PFEDREC,
        SCAFFOLD,
        SEQUENTIAL_RULES,
        SLIST,
    )
}
_PLUG_INS: dict[str, PlugIn | None] = {"none": None, **{plug_in.name: plug_in for plug_in in (ACE, PLGC)}}


def _wrong(name: str, value: Any) -> str:
    """What is wrong with something that is installed as a method, or ""."""
    if not isinstance(value, Method | PlugIn):
        return f"it is of the type {type(value).__name__}, and neither a Method nor a PlugIn"
    if value.name != name:
        return f"its manifest calls it '{value.name}'"
    if name in _METHODS or name in _PLUG_INS:
        return "bouquet has a method of this name itself"
    ours = [made.options for made in (*_METHODS.values(), *_PLUG_INS.values()) if made is not None]
    return wrong_options(name, value.options, {field for options in ours for field in options.model_fields})


METHODS: Names[Method] = Names(_METHODS, "bouquet.methods", _wrong, lambda value: isinstance(value, Method))
"""The values of the setting 'strategy'."""

PLUG_INS: Names[PlugIn | None] = Names(_PLUG_INS, "bouquet.methods", _wrong, lambda value: isinstance(value, PlugIn))
"""The values of the setting 'personalization'; 'none' uses the shared model as it is."""


def only_embeddings(run: RunConfig) -> bool:
    """Whether only arrays by item travel, and networks stay on each device."""
    exchange = METHODS[run.strategy].exchange if run.exchange == "auto" else run.exchange
    return exchange == "embedding"


def check_attack(method: Method, run: RunConfig) -> None:
    """Refuse an attack that the devices of a method do not know.

    Raises:
        ConfigError: says which there are.
    """
    if run.attack == "none" or method.kind == "gradients" or run.attack in method.attacks:
        return
    known = ", ".join(method.attacks)
    instead = f"take {known}, or a method that trains a model" if known else "take a method that trains a model"
    raise ConfigError(f"{method.name} has no change of a model, and attack '{run.attack}' is one: {instead}.")


def check_private(method: Method, run: RunConfig) -> None:
    """Refuse to make a model of sums private where what users give to them has no limit.

    Raises:
        ConfigError: says so.
    """
    if run.private and method.kind == "sums" and method.private is None:
        raise ConfigError(
            f"{method.name} has no limit by user on its sums yet, so dp-epsilon and dp-noise-multiplier cannot make it "
            "private: take another method (docs/reference/differential-privacy.md), or leave them out."
        )


def check_robust(method: Method, run: RunConfig) -> None:
    """Refuse a robust aggregation where it has no mean of users' changes to take the place of.

    Raises:
        ConfigError: the method needs more of users than sums, or its sums are not of changes of a model.
    """
    if run.robust_aggregation == "none":
        return
    able = ", ".join(sorted(name for name, made in _METHODS.items() if made.sums_only and made.kind == "gradients"))
    if method.kind == "sums":
        why = "adds up what users count, and holds each of them to what a history can give"
    elif not method.sums_only:
        why = "weighs users by a rule of its own"
    else:
        return
    raise ConfigError(
        f"{method.name} {why}, so robust-aggregation '{run.robust_aggregation}' has no mean to stand for: leave it "
        f"out, or take {able}."
    )
