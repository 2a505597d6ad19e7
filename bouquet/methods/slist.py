"""SLIST in spirit (Choi et al., 2021), federated: a ridge regression of the next item on what came before it."""

from __future__ import annotations

from pydantic import Field

from bouquet.cells import CellSpec
from bouquet.methods.manifest import Method
from bouquet.methods.parts import NO_MODEL, SumsOptions


class SlistOptions(SumsOptions):
    """How quickly what came before loses weight, and how strongly weights are held down."""

    slist_window: int = Field(
        0, ge=0, description="How many of the items before the next one are looked at; 0: all of them."
    )
    slist_decay: float = Field(0.7, ge=0, description="a: an item that is d back weighs (1 + d)^-a.")
    slist_reverse: float = Field(0.25, ge=0, description="c: what a step counts for in the other direction.")
    slist_regularization: float = Field(300.0, gt=0, description="λ of the ridge regression.")

    def cells(self, num_items: int) -> dict[str, CellSpec]:
        square = (num_items, num_items)
        return {"before": CellSpec(square, symmetric=True), "next": CellSpec(square)}


SLIST = Method(
    name="slist",
    title="sequential ridge, after SLIST (Choi et al., 2021)",
    options=SlistOptions,
    strategy="strategies.sums.slist:Slist",
    device="client_app.sums.slist:Slist",
    sends="which items came before which, counted, once",
    keeps="the history",
    plug_ins=False,
    no_plug_in=NO_MODEL,
    alone=None,
    kind="sums",
    defaults={"num-server-rounds": 1},
    seedless=True,
    sums_only=True,
)
