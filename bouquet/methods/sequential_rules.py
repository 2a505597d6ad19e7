"""Sequential rules (Kamehkhosh et al., 2017; Ludewig and Jannach, 2018), federated: what came soon after what."""

from __future__ import annotations

from pydantic import Field

from bouquet.cells import CellSpec
from bouquet.methods.manifest import Method
from bouquet.methods.parts import NO_MODEL, SumsOptions


class SequentialRulesOptions(SumsOptions):
    """How far apart two items may be, and what their transitions count for."""

    sequential_rules_window: int = Field(
        10, ge=1, description="L: an item counts for the next L of a history, and the newest L are recommended from."
    )
    sequential_rules_decay: float = Field(
        0.7, ge=0, description="a: items that are d apart count d^-a, and one that is d back weighs (1 + d)^-a."
    )
    sequential_rules_source: float = Field(
        0.5, ge=0, description="b: transitions are divided by the count of the item that they come from to this power."
    )
    sequential_rules_target: float = Field(
        0.2, ge=0, description="b': the same for the count of the item that they go to."
    )
    sequential_rules_reverse: float = Field(
        0.5, ge=0, description="c: what a transition counts for in the other direction."
    )

    def cells(self, num_items: int) -> dict[str, CellSpec]:
        return {"transitions": CellSpec((num_items, num_items)), "counts": CellSpec((1, num_items))}


SEQUENTIAL_RULES = Method(
    name="sequential-rules",
    title="sequential rules (Ludewig and Jannach, 2018)",
    options=SequentialRulesOptions,
    strategy="strategies.sums.sequential_rules:SequentialRules",
    device="client_app.sums.sequential_rules:SequentialRules",
    private="strategies.sums.sequential_rules:PrivateSequentialRules",
    sends="which items came soon after which, counted, once",
    keeps="the history",
    plug_ins=False,
    no_plug_in=NO_MODEL,
    alone=None,
    kind="sums",
    defaults={"num-server-rounds": 1},
    seedless=True,
    sums_only=True,
    attacks=("push",),
)
