"""ACE, the adaptive consensus enhancement of Fed3CR (Mi et al.), by itself."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from bouquet.config import Options, or_same
from bouquet.methods.manifest import PlugIn


class ACEOptions(Options):
    """The network that makes a user's transfer matrix."""

    formerly: ClassVar = {
        "transfer-hidden-layers": "ace-hidden-layers",
        "identity-residual": "ace-identity-residual",
        "transfer-learning-rate": "ace-learning-rate",
    }

    ace_hidden_layers: int = Field(
        2, ge=1, le=3, description="Hidden layers of the transfer network, of widths 4d, 8d and 16d."
    )
    ace_identity_residual: bool = Field(
        True, description="Add the identity to the transfer matrix, so that an untrained network changes nothing."
    )
    ace_learning_rate: float = or_same("learning-rate", "Local learning rate of the transfer network")


ACE = PlugIn(
    name="ace",
    title="ACE, the consensus enhancement of Fed3CR (Mi et al.)",
    options=ACEOptions,
    device="client_app.personalization.ace:AdaptiveEnhancement",
    sends="changes of the transfer network",
    keeps="nothing more",
)
