"""pFedGraph (Ye et al., ICML 2023): a collaboration graph of users, inferred from their models."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bouquet.config import Options, RunConfig
from bouquet.errors import ConfigError
from bouquet.methods.manifest import Method


class PFedGraphOptions(Options):
    """Who learns from whom, and how much."""

    pfedgraph_alpha: float = Field(
        0.8, ge=0, description="Weight α of the similarity of two users' models in the collaboration graph; 0: p alone."
    )
    pfedgraph_similarity: Literal["cosine", "distance"] = Field(
        "cosine",
        description="How alike two users' models are: the cosine of what sets them apart from the initial model, or "
        "1 / (1 + ‖Q_u - Q_v‖²) as in FedCA's eq. 6.",
    )
    pfedgraph_prior: Literal["size", "uniform"] = Field(
        "size", description="The weights p that the graph starts from: by training interactions, or all alike."
    )
    pfedgraph_evaluate: Literal["trained", "mixed"] = Field(
        "trained",
        description="The model that a device recommends with: as it came out of the device's last training, or the "
        "newest that the server mixed for it.",
    )

    def check_run(self, run: RunConfig) -> None:
        if run.changes_updates:
            raise ConfigError(
                "pfedgraph's server must know what a device's model has become, so update-clip, update-noise and "
                "decoy-rows do not fit it: leave them out."
            )


PFEDGRAPH = Method(
    name="pfedgraph",
    title="pFedGraph (Ye et al., 2023)",
    options=PFedGraphOptions,
    strategy="strategies.pfedgraph:PFedGraph",
    device="client_app.personalization.pfedgraph:MixedModel",
    sends="changes of its whole model",
    keeps="the user embedding",
    plug_ins=False,
    item_table="own",
    compared_by=("FedCA",),
)
