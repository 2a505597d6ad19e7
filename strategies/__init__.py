"""Server-side methods: one module per paper, over one base."""

from collections.abc import Mapping

from bouquet.config import Scalar
from strategies.averaging import FCF, FedAvg
from strategies.base import BaseStrategy
from strategies.cf_fedsr_strategy import CFFedSR
from strategies.fed3cr import Fed3CR
from strategies.fedca_strategy import FedCA
from strategies.fedrap import FedRAP
from strategies.hetefedrec_strategy import HeteFedRec
from strategies.local import Local
from strategies.pfedrec import PFedRec

STRATEGIES: dict[str, type[BaseStrategy]] = {
    "cf-fedsr": CFFedSR,
    "fcf": FCF,
    "fed3cr": Fed3CR,
    "fedavg": FedAvg,
    "fedca": FedCA,
    "fedrap": FedRAP,
    "hetefedrec": HeteFedRec,
    "local": Local,
    "pfedrec": PFedRec,
}

__all__ = ["STRATEGIES", "BaseStrategy", "without_other_methods"]


def without_other_methods(settings: Mapping[str, Scalar], strategy: str) -> dict[str, Scalar]:
    """A configuration without the settings that only other strategies have."""
    mine = STRATEGIES[strategy].options_class().to_flat()
    others = {key for method in STRATEGIES.values() for key in method.options_class().to_flat()} - mine.keys()
    return {key: value for key, value in settings.items() if key not in others}
