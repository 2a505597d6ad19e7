"""Fed3CR (Mi et al.): a consensus that every device enhances for itself.

    aggregation   eq. 8, Algorithm 1   C and θ (item table, transfer network): plain means over the users

What the devices do with them stands in `client_app.personalization.fed3cr`.
"""

from __future__ import annotations

from strategies.averaging import FCF


class Fed3CR(FCF):
    """The mean change of consensus and transfer network."""
