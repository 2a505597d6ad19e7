"""EASE (Steck, 2019), federated and exact: a ridge regression of each item on all others."""

from __future__ import annotations

from pydantic import Field

from bouquet.cells import CellSpec
from bouquet.methods.manifest import Method
from bouquet.methods.parts import NO_MODEL, SumsOptions


class EaseOptions(SumsOptions):
    """How strongly weights are held down."""

    ease_regularization: float = Field(300.0, gt=0, description="λ of the ridge regression.")
    ease_recency: float = Field(
        0.0,
        ge=0,
        description="When a device recommends, an item that is d back weighs (1 + d)^-r; 0: all weigh the same, as in "
        "the paper, and no order is read.",
    )

    def cells(self, num_items: int) -> dict[str, CellSpec]:
        return {"together": CellSpec((num_items, num_items), symmetric=True)}


EASE = Method(
    name="ease",
    title="EASE (Steck, 2019)",
    options=EaseOptions,
    strategy="strategies.sums.ease:Ease",
    device="client_app.sums.ease:Ease",
    private="strategies.sums.ease:PrivateEase",
    sends="which items it has together, counted, once",
    keeps="the history",
    plug_ins=False,
    no_plug_in=NO_MODEL,
    alone=None,
    kind="sums",
    defaults={"num-server-rounds": 1},
    seedless=True,
    sums_only=True,
)
