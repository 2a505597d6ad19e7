"""Fed3CR (Mi et al.): a consensus that every device enhances for itself, and two constraints."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from bouquet.config import or_same
from bouquet.methods.ace import ACEOptions
from bouquet.methods.manifest import Method
from bouquet.methods.parts import ServerOptimizerOptions


class Fed3CROptions(ACEOptions, ServerOptimizerOptions):
    """What a device makes of the consensus, and the weights of the two constraints."""

    formerly: ClassVar = {
        **ACEOptions.formerly,
        "personal-learning-rate": "fed3cr-personal-learning-rate",
        "literal-scale": "fed3cr-literal-scale",
    }

    fed3cr_enhancement: Literal["ace", "consensus", "unified", "none"] = Field(
        "ace",
        description="How the consensus is enhanced: by a matrix made for each user (ace), by one matrix for all users "
        "(consensus transfer), by one matrix for both tables (unified transfer), or not at all.",
    )
    fed3cr_consistency: Literal["ranking", "similarity", "contrast"] = Field(
        "ranking",
        description="What β_a weighs: the paper's rankings of all items, or, over a batch's samples, what its Figure 4 "
        "has in their place.",
    )
    fed3cr_complementarity: Literal["orthogonality", "cosines", "distance", "information"] = Field(
        "orthogonality",
        description="What β_o weighs: the paper's orthogonality over all items, the same of columns of length one "
        "(cosines), or, over a batch's samples, what its Figure 4 has in its place.",
    )
    fed3cr_beta_a: float = Field(0.1, ge=0, description="Weight β_a of consistency (eq. 19).")
    fed3cr_beta_o: float = Field(0.1, ge=0, description="Weight β_o of complementarity (eq. 19).")
    fed3cr_literal_scale: bool = Field(
        False,
        description="Orthogonality of a sum over all m items, as printed, which is m² times that of their mean.",
    )
    fed3cr_personal_learning_rate: float = or_same("learning-rate", "Local learning rate of a user's own item table")


FED3CR = Method(
    name="fed3cr",
    title="Fed3CR (Mi et al.)",
    options=Fed3CROptions,
    strategy="strategies.fed3cr:Fed3CR",
    device="client_app.personalization.fed3cr:EnhancedConsensus",
    sends="changes of the consensus and of the transfer network",
    keeps="the user embedding and an item table of its own",
    plug_ins=False,
    sums_only=True,
)
