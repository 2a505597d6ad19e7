"""Matrix factorisation: a user and an item meet in a dot product (Koren et al., 2009)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from bouquet.arrays import ArraySpec
from bouquet.config import ModelOptions, Options
from models.backbone import Backbone, PullBack, Tensors

if TYPE_CHECKING:
    from torch import Tensor


class MatrixFactorization(Backbone):
    """r̂_ui = p_u · q_i with a private user embedding p_u [d] and a shared item embedding Q [m, d]."""

    kernel = "mf"

    def __init__(self, num_items: int, options: ModelOptions, own: Options | None = None) -> None:
        size = options.embedding_size
        self.shared = {"item_embedding": ArraySpec((num_items, size), "normal", options.init_scale, by_item=True)}
        self.private = {"user_embedding": ArraySpec((size,), "normal", options.init_scale)}

    def logits(self, private: Tensors, shared: Tensors) -> Tensor:
        # A row times a matrix: several times faster than matrix times column, or a broadcast product and a sum over d.
        return private["user_embedding"].unsqueeze(1).bmm(shared["item_embedding"].transpose(1, 2)).squeeze(1)

    def forward(self, private: Tensors, shared: Tensors) -> tuple[Tensor, PullBack]:
        """∂L/∂p = Σ_r (∂L/∂z_r) q_r and ∂L/∂q_r = (∂L/∂z_r) p."""

        def pull_back(slope: Tensor) -> dict[str, Tensor]:
            return {
                "user_embedding": slope.unsqueeze(1).bmm(shared["item_embedding"]).squeeze(1),
                "item_embedding": slope.unsqueeze(-1) * private["user_embedding"].unsqueeze(1),
            }

        return self.logits(private, shared), pull_back

    def sgd_step(self, private: Tensors, shared: Tensors, slope: Tensor, rates: Mapping[str, float]) -> bool:
        """q_r ← q_r - rate (∂L/∂z_r) p for all rows at once, without ever holding the gradient of the table."""
        p, table = private["user_embedding"], shared["item_embedding"]
        change = slope.unsqueeze(1).bmm(table).squeeze(1)
        # Rows run fastest in memory: the transposed table is updated at once, the other one user by user.
        table.transpose(1, 2).baddbmm_(p.unsqueeze(2), slope.unsqueeze(1), alpha=-rates["item_embedding"])
        p.sub_(change, alpha=rates["user_embedding"])
        return True

    def scores(self, private: Tensors, shared: Tensors) -> Tensor:
        table = shared["item_embedding"]
        if table.ndim == 2:
            return private["user_embedding"] @ table.T
        return self.logits(private, shared)
