"""PLGC, personalised local-global collaboration: NTK-balanced mixing and redundancy reduction."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from bouquet.config import Options, RunConfig, or_same
from bouquet.errors import ConfigError
from bouquet.methods.manifest import PlugIn


class PLGCOptions(Options):
    """How local and global item table are mixed, and what keeps their dimensions apart."""

    formerly: ClassVar = {"learn-through-mu": "plgc-learn-through-mu"}

    plgc_tables: Literal["own", "base"] = Field(
        "own",
        description="Which two item tables are mixed: one of the plug-in's own and the common one (own), or the two "
        "that the base method has itself, FedRAP's D and C (base).",
    )
    plgc_mixing: Literal["ntk", "half", "local", "none"] = Field(
        "ntk",
        description="The table that the model sees: mixed by traces (ntk), half and half, the local one alone, or the "
        "base method's as without the plug-in, which starts from the common one in every round (none).",
    )
    plgc_learn_through_mu: bool = Field(False, description="Let the gradient flow through the mixing coefficient μ.")
    plgc_redundancy: Literal["err", "au", "duorec", "feddecorr", "none"] = Field(
        "err", description="The loss beside the base method's: redundancy reduction, an alternative to it, or none."
    )
    plgc_lambda: float = Field(0.1, ge=0, description="Weight λ of that loss (eq. 22).")
    plgc_lambda_au: float = or_same("plgc-lambda", "Weight of AU where it is that loss")
    plgc_lambda_duorec: float = or_same("plgc-lambda", "Weight of DuoRec's loss where it is that loss")
    plgc_lambda_feddecorr: float = or_same("plgc-lambda", "Weight of FedDecorr where it is that loss")
    plgc_kappa: float = Field(0.005, ge=0, description="Weight κ of correlations between dimensions (eq. 19).")
    plgc_learning_rate: float = or_same("learning-rate", "Local learning rate of the local item table")

    def check_run(self, run: RunConfig) -> None:
        if self.plgc_tables == "own":
            return
        if run.strategy != "fedrap":
            raise ConfigError(
                "plgc-tables = 'base' mixes the two item tables that a base method has itself, which is fedrap alone, "
                f"and this run has {run.strategy}: leave plgc-tables out."
            )
        if self.plgc_learning_rate > 0:
            raise ConfigError(
                "With plgc-tables = 'base' the local table is fedrap's own, whose rate is "
                "fedrap-personal-learning-rate: leave plgc-learning-rate out."
            )

    @property
    def weight(self) -> float:
        """The weight of the loss beside the base method's."""
        own = {
            "au": self.plgc_lambda_au,
            "duorec": self.plgc_lambda_duorec,
            "feddecorr": self.plgc_lambda_feddecorr,
        }
        return 0.0 if self.plgc_redundancy == "none" else own.get(self.plgc_redundancy, 0.0) or self.plgc_lambda


PLGC = PlugIn(
    name="plgc",
    title="PLGC",
    options=PLGCOptions,
    device="client_app.personalization.plgc:LocalGlobalCollaboration",
    sends="changes of the local item table",
    keeps="an item table of its own, and the networks of its loss",
)
