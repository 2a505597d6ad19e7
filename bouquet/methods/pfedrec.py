"""PFedRec (Zhang et al., IJCAI 2023): dual personalization."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bouquet.config import RunConfig
from bouquet.errors import ConfigError
from bouquet.methods.manifest import Method
from bouquet.methods.parts import ServerOptimizerOptions


class PFedRecOptions(ServerOptimizerOptions):
    """What a device of PFedRec recommends with."""

    pfedrec_evaluate: Literal["fine-tuned", "common"] = Field(
        "fine-tuned",
        description="The item table that a device recommends with: as it came out of the device's last training, or "
        "the newest common one.",
    )

    def check_run(self, run: RunConfig) -> None:
        if run.exchange == "all":
            raise ConfigError("pfedrec's networks are part of a user's score function and stay: leave exchange out.")


PFEDREC = Method(
    name="pfedrec",
    title="PFedRec (Zhang et al., 2023)",
    options=PFedRecOptions,
    strategy="strategies.pfedrec:PFedRec",
    device="client_app.personalization.pfedrec:FineTunedTable",
    sends="changes of the item table",
    keeps="the score function, and the item table as the device tuned it",
    sums_only=True,
    compared_by=("FedCA", "Fed3CR", "PLGC"),
)
