"""iALS (Hu, Koren and Volinsky, 2008), federated, with the weights of Rendle, Krichene, Zhang and Koren (2022)."""

from __future__ import annotations

import math

from pydantic import Field

from bouquet.arrays import ArraySpec
from bouquet.methods.manifest import Method
from bouquet.methods.parts import NO_MODEL, ModelOfSums

# Times 1 / sqrt(d), the standard deviation of what factors start from, as Rendle et al. have it.
_START = 0.1


class IalsOptions(ModelOfSums):
    """How large factors are, what counts for how much in their loss, and how exactly the server solves for them."""

    ials_rank: int = Field(32, ge=1, description="d: the size of a user's and of an item's vector.")
    ials_unobserved: float = Field(
        0.3,
        gt=0,
        description="α0: what the score of any item weighs in the loss, beside 1 for those of seen ones.",
    )
    ials_regularization: float = Field(0.001, gt=0, description="λ: how strongly vectors are held down.")
    ials_frequency: float = Field(
        1.0,
        ge=0,
        le=1,
        description="ν: λ is multiplied by (how many seen + α0 how many there are)^ν, of a user's items and of an "
        "item's users; 0: it is not.",
    )
    ials_steps: int = Field(
        1, ge=1, description="c: steps of conjugate gradients in a sweep; a sweep takes so many rounds and one more."
    )

    def published(self, num_items: int) -> dict[str, ArraySpec]:
        shape = (num_items, self.ials_rank)
        return {"factors": ArraySpec(shape, "normal", _START / math.sqrt(self.ials_rank), by_item=True)}

    def direction(self, num_items: int) -> dict[str, ArraySpec]:
        """What the server asks about beside factors, in each step."""
        return {"direction": ArraySpec((num_items, self.ials_rank), "zeros", by_item=True)}

    def sums(self, num_items: int, *, first: bool) -> dict[str, ArraySpec]:
        """What comes back, summed over users: to the first message of a sweep, or to one of a step."""
        d = self.ials_rank
        found = {"product": ArraySpec((num_items, d), "zeros", by_item=True)}
        if first:
            found["target"] = ArraySpec((num_items, d), "zeros", by_item=True)
            found["count"] = ArraySpec((num_items,), "zeros", by_item=True)
            found["gram"] = ArraySpec((d, d), "zeros")
        return found


IALS = Method(
    name="ials",
    title="iALS (Hu, Koren and Volinsky, 2008; weights of Rendle et al., 2022)",
    options=IalsOptions,
    strategy="strategies.sums.ials:Ials",
    device="client_app.sums.ials:Ials",
    sends="for its items its own vector, and the vector times its scores, in every round, to be summed over users",
    keeps="the history; its vector is solved for anew each time, so who is forgotten is in no later sum",
    plug_ins=False,
    no_plug_in=NO_MODEL,
    alone=None,
    kind="sums",
    defaults={"num-server-rounds": 8, "evaluate-every": 2},
    sums_only=True,
)
