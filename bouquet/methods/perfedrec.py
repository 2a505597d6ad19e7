"""PerFedRec (Luo et al., CIKM 2022): a model from what all users learned, what one's cluster did, and oneself."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from bouquet.errors import ConfigError
from bouquet.methods.manifest import Method
from bouquet.methods.parts import ServerOptimizerOptions


class PerFedRecOptions(ServerOptimizerOptions):
    """How users are clustered, and what the item table that a user recommends with is mixed of."""

    perfedrec_clusters: int = Field(10, ge=1, description="Number of clusters of k-means.")
    perfedrec_sampling: Literal["equal", "proportional"] = Field(
        "proportional",
        description="How many users of a round each cluster gives: all as many as far as they have them, or in "
        "proportion to their sizes.",
    )
    perfedrec_cluster_share: float = Field(
        0.3, ge=0, le=1, description="Share of the cluster's item table in the one that a user recommends with."
    )
    perfedrec_local_share: float = Field(
        0.3,
        ge=0,
        le=1,
        description="Share of the item table as the user's last training left it; the global table has the rest.",
    )
    perfedrec_cluster_rate: float = Field(
        1.0,
        ge=0,
        description="Factor on what sets a cluster's mean change apart from that of all users; 1: the cluster's table "
        "is the mean of its users' tables.",
    )

    @model_validator(mode="after")
    def _shares_leave_room(self) -> Self:
        if self.perfedrec_cluster_share + self.perfedrec_local_share > 1:
            raise ConfigError(
                f"perfedrec-cluster-share = {self.perfedrec_cluster_share:g} and perfedrec-local-share = "
                f"{self.perfedrec_local_share:g} are more than the whole: their sum must be at most 1."
            )
        return self


PERFEDREC = Method(
    name="perfedrec",
    title="PerFedRec (Luo et al., 2022)",
    options=PerFedRecOptions,
    strategy="strategies.perfedrec:PerFedRec",
    device="client_app.personalization.perfedrec:ThreeLevels",
    sends="changes of all shared arrays, each user's on its own, and the mean embedding of its items",
    keeps="the user embedding, and the item table as its training left it",
    compared_by=("FedCA", "Fed3CR", "PLGC"),
)
