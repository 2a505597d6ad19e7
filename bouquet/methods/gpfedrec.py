"""GPFedRec (Zhang et al., WWW 2024): graph-guided personalization."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bouquet.config import RunConfig
from bouquet.errors import ConfigError
from bouquet.methods.manifest import Method
from bouquet.methods.parts import ServerOptimizerOptions


class GPFedRecOptions(ServerOptimizerOptions):
    """Who is whose neighbour, and how strongly devices hold on to what their neighbours say."""

    gpfedrec_lambda: float = Field(
        1.0,
        ge=0,
        description="Weight λ of ‖Q_u - R_u‖², the squared distance of the table that a device trains from the one "
        "that its neighbours made for it. With SGD it must stay below 1 / learning-rate.",
    )
    gpfedrec_graph: Literal["similarity", "distance"] = Field(
        "similarity",
        description="What the graph is made of: cosine similarity of item tables, or 1 minus it, as in the authors' "
        "code, which makes the most different users neighbours.",
    )
    gpfedrec_threshold: float = Field(
        1.0, ge=0, description="Two users are neighbours where they are above γ times the mean of all pairs."
    )
    gpfedrec_layers: int = Field(1, ge=1, description="Layers of graph convolution: how many steps away users matter.")
    gpfedrec_evaluate: Literal["fine-tuned", "user-specific"] = Field(
        "fine-tuned",
        description="The item table that a device recommends with: as it came out of the device's last training, or "
        "the newest that its neighbours made for it.",
    )

    def check_run(self, run: RunConfig) -> None:
        if run.exchange == "all":
            raise ConfigError("gpfedrec's networks are part of a user's score function and stay: leave exchange out.")
        if run.optimizer == "sgd" and self.gpfedrec_lambda * run.learning_rate >= 1:
            raise ConfigError(
                f"With gpfedrec-lambda = {self.gpfedrec_lambda:g} and learning-rate = {run.learning_rate:g} a step "
                "overshoots the table that it is drawn to by more than it was away: their product must be below 1."
            )


GPFEDREC = Method(
    name="gpfedrec",
    title="GPFedRec (Zhang et al., 2024)",
    options=GPFedRecOptions,
    strategy="strategies.gpfedrec:GPFedRec",
    device="client_app.personalization.gpfedrec:GuidedTable",
    sends="changes of the item table, each user's on its own",
    keeps="the score function, and the item table as the device tuned it",
    plug_ins=False,
    exchange="embedding",
    compared_by=("Fed3CR", "PLGC"),
)
