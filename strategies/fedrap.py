"""FedRAP (Li et al., ICLR 2024): additive personalization.

The server takes the plain mean of the common tables C (Algorithm 1); every user's own table D_u stays on its device,
and what the two do there stands in `client_app.personalization.fedrap`.
"""

from __future__ import annotations

from strategies.averaging import FCF


class FedRAP(FCF):
    """The mean change of what is common."""
