"""GF-CF (Shen et al., CIKM 2021), federated: a graph filter in closed form, linear and low-pass."""

from __future__ import annotations

from pydantic import Field

from bouquet.arrays import ArraySpec
from bouquet.cells import CellSpec
from bouquet.methods.manifest import Method
from bouquet.methods.parts import NO_MODEL, SumsOptions


class GfCfOptions(SumsOptions):
    """How much of the ideal low-pass filter is mixed in."""

    gf_cf_rank: int = Field(256, ge=1, description="d: so many leading eigenvectors make the ideal low-pass filter.")
    gf_cf_mixture: float = Field(
        0.3, ge=0, description="α: what the ideal low-pass filter counts for beside the linear one; 0: it is left out."
    )

    def cells(self, num_items: int) -> dict[str, CellSpec]:
        return {"together": CellSpec((num_items, num_items), symmetric=True), "counts": CellSpec((1, num_items))}

    def published(self, num_items: int) -> dict[str, ArraySpec]:
        """Beside G̃ as "weights" the eigenvectors V and the roots of item counts, D_i^½."""
        found = super().published(num_items)
        if self.gf_cf_mixture > 0:
            rank = min(self.gf_cf_rank, num_items)
            found["vectors"] = ArraySpec((num_items, rank), "zeros", by_item=True)
            found["root"] = ArraySpec((num_items,), "zeros", by_item=True)
        return found


GF_CF = Method(
    name="gf-cf",
    title="GF-CF (Shen et al., 2021)",
    options=GfCfOptions,
    strategy="strategies.sums.gf_cf:GfCf",
    device="client_app.sums.gf_cf:GfCf",
    sends="which items it has together, divided by how many it has, once",
    keeps="the history",
    plug_ins=False,
    no_plug_in=NO_MODEL,
    alone=None,
    kind="sums",
    seedless=True,
    # Of Gowalla's 1,034 neighbours an item the largest 300 lose .001 of Recall@20, and 100 lose .004.
    defaults={"num-server-rounds": 1, "published-neighbors": 300},
    sums_only=True,
)
