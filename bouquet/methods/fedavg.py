"""FedAvg (McMahan et al., 2017): one shared model, the mean of all changes by training interactions."""

from __future__ import annotations

from bouquet.methods.manifest import Method
from bouquet.methods.parts import ServerOptimizerOptions

FEDAVG = Method(
    name="fedavg",
    title="FedAvg (McMahan et al., 2017)",
    options=ServerOptimizerOptions,
    strategy="strategies.averaging:FedAvg",
    sums_only=True,
    compared_by=("FedCA", "CF-FedSR"),
)
