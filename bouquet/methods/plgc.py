"""PLGC, personalised local-global collaboration: NTK-balanced mixing and redundancy reduction."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from bouquet.config import Options
from bouquet.methods.manifest import PlugIn


class PLGCOptions(Options):
    """How local and global item table are mixed, and what keeps their dimensions apart."""

    formerly: ClassVar = {"learn-through-mu": "plgc-learn-through-mu"}

    plgc_mixing: Literal["ntk", "half", "local"] = Field(
        "ntk",
        description="The table that the model sees: mixed by traces (ntk), half and half, or the local one alone.",
    )
    plgc_learn_through_mu: bool = Field(False, description="Let the gradient flow through the mixing coefficient μ.")
    plgc_redundancy: Literal["err", "au", "duorec", "feddecorr", "none"] = Field(
        "err", description="The loss beside the base method's: redundancy reduction, an alternative to it, or none."
    )
    plgc_lambda: float = Field(0.1, ge=0, description="Weight λ of that loss (eq. 22).")
    plgc_kappa: float = Field(0.005, ge=0, description="Weight κ of correlations between dimensions (eq. 19).")
    plgc_learning_rate: float = Field(
        0.0, ge=0, description="Local learning rate of the local item table; 0: the same as learning-rate."
    )


PLGC = PlugIn(
    name="plgc",
    title="PLGC",
    options=PLGCOptions,
    device="client_app.personalization.plgc:LocalGlobalCollaboration",
    sends="changes of the local item table",
    keeps="an item table of its own, and the networks of its loss",
)
