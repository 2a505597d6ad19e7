"""FedRAP (Li et al., ICLR 2024): additive personalization."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from bouquet.config import or_same
from bouquet.methods.manifest import Method
from bouquet.methods.parts import ServerOptimizerOptions


class FedRAPOptions(ServerOptimizerOptions):
    """The weights of FedRAP's two terms, and how they grow."""

    formerly: ClassVar = {"personal-learning-rate": "fedrap-personal-learning-rate"}

    fedrap_lambda: float = Field(0.0, ge=0, description="Weight λ of the difference of common and own item table.")
    fedrap_mu: float = Field(0.0, ge=0, description="Weight μ of the sparsity of the common item table.")
    fedrap_schedule: Literal["tanh", "constant"] = Field(
        "tanh", description="λ and μ grow with the round t as tanh(t / 10), or are constant as in the authors' code."
    )
    fedrap_personal_learning_rate: float = or_same("learning-rate", "Local learning rate of a user's own item table")


FEDRAP = Method(
    name="fedrap",
    title="FedRAP (Li et al., 2024)",
    options=FedRAPOptions,
    strategy="strategies.fedrap:FedRAP",
    device="client_app.personalization.fedrap:AdditiveTable",
    sends="changes of the common item table",
    keeps="the user embedding and an item table of its own",
    sums_only=True,
    compared_by=("Fed3CR", "PLGC"),
)
