"""CF-FedSR (Luo et al., 2022): communication-efficient and fair federated sequential recommendation."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from bouquet.errors import ConfigError
from bouquet.methods.manifest import Method
from bouquet.methods.parts import ServerOptimizerOptions


class CFFedSROptions(ServerOptimizerOptions):
    """Communication-efficient and fair federated sequential recommendation."""

    cf_fedsr_selection: bool = Field(
        True, description="Choose users by λ_1, λ_2 and clusters; false: at random (the paper's variation 1)."
    )
    cf_fedsr_lambda_1: int = Field(
        5, ge=0, description="λ_1: users with more training interactions may take part from the start."
    )
    cf_fedsr_lambda_2: int = Field(20, ge=0, description="λ_2: after so many rounds everybody may take part.")
    cf_fedsr_clustering: Literal["k-means", "mean-shift"] = Field(
        "k-means", description="How users are clustered by their interests."
    )
    cf_fedsr_clusters: int = Field(5, ge=1, description="Number of clusters of k-means.")
    cf_fedsr_short_term: int = Field(5, ge=1, description="v_1: the newest items that are the short-term interest.")
    cf_fedsr_long_term: int = Field(20, ge=1, description="v_2: the newest items that are the long-term interest.")
    cf_fedsr_fair: bool = Field(
        True, description="Weigh users by eq. 2 to 10; false: by training interactions (the paper's variation 2)."
    )
    cf_fedsr_a: float = Field(0.5, ge=0, description="α of eq. 9: weight of the factor that falls with performance.")
    cf_fedsr_b: float = Field(0.5, ge=0, description="β of eq. 9: weight of the factor that rises with size.")
    cf_fedsr_gamma: float = Field(
        0.5, ge=0, le=1, description="γ of eq. 12: share of the fine-tuned model in the one that is recommended with."
    )
    cf_fedsr_tuning_epochs: int = Field(
        1, ge=0, description="Local epochs of fine-tuning before use; 0: none (the paper's variation 3)."
    )

    @model_validator(mode="after")
    def _terms_differ_and_somebody_weighs(self) -> Self:
        if self.cf_fedsr_long_term <= self.cf_fedsr_short_term:
            raise ConfigError(
                f"cf-fedsr-long-term must be above cf-fedsr-short-term, and {self.cf_fedsr_long_term} is not above "
                f"{self.cf_fedsr_short_term}."
            )
        if self.cf_fedsr_fair and self.cf_fedsr_a == self.cf_fedsr_b == 0:
            raise ConfigError(
                "With cf-fedsr-a and cf-fedsr-b both 0 every user weighs nothing (eq. 9): give one of them a value "
                "above 0, or set cf-fedsr-fair to false."
            )
        return self


CF_FEDSR = Method(
    name="cf-fedsr",
    title="CF-FedSR (Luo et al., 2022)",
    options=CFFedSROptions,
    strategy="strategies.cf_fedsr_strategy:CFFedSR",
    device="client_app.personalization.cf_fedsr:InterestsAndTuning",
    sends="changes of item embeddings, its interests and how well it is served",
    keeps="the network",
    plug_ins=False,
    exchange="embedding",
)
