"""HeteFedRec (Yuan et al., 2023): models of different sizes that learn together."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from bouquet.config import RunConfig, numbers
from bouquet.errors import ConfigError
from bouquet.methods.manifest import Method, Sizes
from bouquet.methods.parts import ServerOptimizerOptions


class HeteFedRecOptions(ServerOptimizerOptions):
    """Models of different sizes that learn together."""

    hetefedrec_sizes: str = numbers(
        "8,16,32",
        ",",
        "Embedding sizes N of the groups of users, smallest first; takes the place of embedding-size.",
    )
    hetefedrec_ratio: str = numbers(
        "5:3:2", ":", "How users are divided into the groups, by number of training interactions."
    )
    hetefedrec_method: Literal[
        "hetefedrec", "all-small", "all-large", "all-large-exclusive", "standalone", "clustered", "direct"
    ] = Field(
        "hetefedrec",
        description="HeteFedRec, or a baseline: the smallest or largest size for everybody; the largest, learned from "
        "the last group alone; every user alone; every group alone; padding and nothing else (eq. 8).",
    )
    hetefedrec_dual_task: bool = Field(
        True, description="Train every size up to a device's own (eq. 11); false: the ablation -UDL."
    )
    hetefedrec_alpha: float = Field(
        1.0, ge=0, description="α: weight of the decorrelation of the item table (eq. 14); 0: the ablation -DDR."
    )
    hetefedrec_off_diagonal: bool = Field(
        False, description="Leave the ones on the diagonal out of the norm of the correlations (eq. 13)."
    )
    hetefedrec_kd_items: int = Field(512, ge=2, description="Items that a distillation compares (eq. 16).")
    hetefedrec_kd_steps: int = Field(
        1, ge=0, description="Steps of distillation per round (eq. 17); 0: the ablation -RESKD."
    )
    hetefedrec_kd_learning_rate: float = Field(1e-4, gt=0, description="Rate of a step of distillation.")
    hetefedrec_aggregation: Literal["mean", "sum"] = Field(
        "mean",
        description="A block of columns takes the mean of its users' changes, or their sum as in eq. 8 (with "
        "server-optimizer = 'sgd' and a small server-learning-rate).",
    )
    hetefedrec_weighting: Literal["size", "uniform"] = Field(
        "size", description="Weights of users in the mean: training interactions, or all alike."
    )

    @model_validator(mode="after")
    def _each_group_has_a_size(self) -> Self:
        sizes = self._sizes
        if list(sizes) != sorted(set(sizes)):
            raise ConfigError(f"hetefedrec-sizes must rise, and '{self.hetefedrec_sizes}' does not.")
        if len(sizes) != len(self.ratio):
            raise ConfigError(
                f"hetefedrec-ratio '{self.hetefedrec_ratio}' makes {len(self.ratio)} groups, and hetefedrec-sizes "
                f"'{self.hetefedrec_sizes}' has {len(sizes)} sizes; give one size for each group."
            )
        return self

    def check_run(self, run: RunConfig) -> None:
        if run.exchange == "embedding":
            raise ConfigError("hetefedrec's networks belong to a size and travel with it, so exchange must be 'all'.")

    @property
    def _sizes(self) -> tuple[int, ...]:
        return tuple(int(size) for size in self.hetefedrec_sizes.split(","))

    @property
    def widths(self) -> tuple[int, ...]:
        """The embedding size of each group under the chosen method."""
        sizes = self._sizes
        if self.hetefedrec_method == "all-small":
            return (sizes[0],) * len(sizes)
        if self.hetefedrec_method.startswith("all-large"):
            return (sizes[-1],) * len(sizes)
        return sizes

    @property
    def ratio(self) -> tuple[int, ...]:
        """The shares of the groups."""
        return tuple(int(share) for share in self.hetefedrec_ratio.split(":"))

    @property
    def whole(self) -> bool:
        """Whether this is HeteFedRec itself, not one of its baselines."""
        return self.hetefedrec_method == "hetefedrec"

    @property
    def dual_task(self) -> bool:
        """Whether devices train every size up to their own."""
        return self.whole and self.hetefedrec_dual_task

    @property
    def alpha(self) -> float:
        """The weight of decorrelation; 0 in baselines."""
        return self.hetefedrec_alpha if self.whole else 0.0

    @property
    def kd_steps(self) -> int:
        """Steps of distillation per round; 0 in baselines."""
        return self.hetefedrec_kd_steps if self.whole else 0


HETEFEDREC = Method(
    name="hetefedrec",
    title="HeteFedRec (Yuan et al., 2023)",
    options=HeteFedRecOptions,
    strategy="strategies.hetefedrec_strategy:HeteFedRec",
    device="client_app.personalization.hetefedrec:Decorrelation",
    sends="changes of the arrays of its size",
    plug_ins=False,
    sizes=lambda options: Sizes(options.widths, options.dual_task),
    sequences=False,
    alone={"hetefedrec-method": "standalone"},
)
