"""Settings of parts that several methods hold."""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

from pydantic import Field

from bouquet.arrays import ArraySpec
from bouquet.cells import CellSpec
from bouquet.config import Options, RunConfig
from bouquet.errors import ConfigError

NO_MODEL = "{name} has no model that is trained, so it cannot be combined with personalization '{plug_in}'."
"""Why no plug-in stands before a method that only counts, for its manifest."""


PAIRS = "pairs"
"""The one matrix that a private sum is made of."""


def published_factors(num_items: int, rank: int) -> dict[str, ArraySpec]:
    """What devices recommend with of a private sum: K[i, j] = f_i · f_j s_j, with "factors" [m, r] and "scales" [m]."""
    return {
        "factors": ArraySpec((num_items, min(rank, num_items)), "zeros", by_item=True),
        "scales": ArraySpec((num_items,), "zeros", by_item=True),
    }


class ServerOptimizerOptions(Options):
    """How the server moves along the mean change."""

    server_optimizer: Literal["sgd", "adam"] = Field("adam", description="How the server applies the mean change.")
    server_learning_rate: float = Field(0.03, gt=0, description="Rate of the server's step; 1 with sgd: plain mean.")


class OwnItemsOptions(Options):
    """What a user's own items count for beside a model of sums, where users come back to items (`repeats = "keep"`)."""

    own_items_weight: float = Field(
        2.0, ge=0, description="w: the newest item of a history counts w times the best score of all; 0: not at all."
    )
    own_items_decay: float = Field(1.0, ge=0, description="a: one that n others came after counts (1 + n)^-a of that.")


class ModelOfSums(OwnItemsOptions):
    """What the settings of every method say whose model is made of sums over users."""

    @abstractmethod
    def published(self, num_items: int) -> dict[str, ArraySpec]:
        """The arrays that devices recommend with, by item along the first axis."""

    def check_run(self, run: RunConfig) -> None:
        if run.changes_updates:
            raise ConfigError(
                f"{run.strategy} sends exact sums, and update-clip, update-noise and decoy-rows would make something "
                "else of them: leave them out."
            )
        if run.private and run.dp_clip_quantile:
            raise ConfigError(
                f"{run.strategy} has one round, in which no limit follows anything: leave dp-clip-quantile out."
            )


class SumsOptions(ModelOfSums):
    """How much of a model that was made of sums of cells is published, whatever it was made of."""

    published_neighbors: int = Field(
        200, ge=0, description="So many items are published beside each item, those with the largest weights; 0: all."
    )

    @abstractmethod
    def cells(self, num_items: int) -> dict[str, CellSpec]:
        """The matrices that are summed over users, by name."""

    def published(self, num_items: int) -> dict[str, ArraySpec]:
        """What devices recommend with: "weights" of the items in "neighbors", or of all; [m, …] by item."""
        kept = self.published_neighbors
        if not 0 < kept < num_items:
            return {"weights": ArraySpec((num_items, num_items), "zeros", by_item=True)}
        shape = (num_items, kept)
        return {
            "neighbors": ArraySpec(shape, "zeros", by_item=True, dtype="int32"),
            "weights": ArraySpec(shape, "zeros", by_item=True),
        }
