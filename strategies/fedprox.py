"""FedProx (Li et al., MLSys 2020, "Federated optimization in heterogeneous networks").

The server is FedAvg's; what a device minimises stands in `client_app.personalization.fedprox`.
"""

from __future__ import annotations

from strategies.averaging import FedAvg


class FedProx(FedAvg):
    """The mean change by training interactions."""
