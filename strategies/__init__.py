"""Server-side methods: one module per paper, over one base."""

from strategies.averaging import FCF, FedAvg
from strategies.base import BaseStrategy
from strategies.local import Local

STRATEGIES: dict[str, type[BaseStrategy]] = {"fcf": FCF, "fedavg": FedAvg, "local": Local}

__all__ = ["STRATEGIES", "BaseStrategy"]
