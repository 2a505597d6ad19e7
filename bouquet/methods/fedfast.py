"""FedFast (Muhammad et al., KDD 2020): rounds of users from all clusters, who stand for those that are like them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bouquet.methods.manifest import Method
from bouquet.methods.parts import ServerOptimizerOptions


class FedFastOptions(ServerOptimizerOptions):
    """How users are clustered, who is drawn, and whom they speak for."""

    fedfast_clusters: int = Field(10, ge=1, description="Number of clusters of k-means; 1: FCF with other users.")
    fedfast_sampling: Literal["equal", "proportional"] = Field(
        "equal",
        description="How many users of a round each cluster gives: all as many as far as they have them, or in "
        "proportion to their sizes.",
    )
    fedfast_aggregation: Literal["clusters", "users"] = Field(
        "clusters",
        description="What a user of a round weighs: as much as its part of the users in its cluster (clusters), or as "
        "all others (users).",
    )


FEDFAST = Method(
    name="fedfast",
    title="FedFast (Muhammad et al., 2020)",
    options=FedFastOptions,
    strategy="strategies.fedfast:FedFast",
    device="client_app.personalization.fedfast:Delegate",
    sends="changes of all shared arrays, and the mean embedding of its items",
    compared_by=("FedCA",),
)
