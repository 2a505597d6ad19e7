"""LightGCN on one device: a propagation over the user's own star graph, then a score (He et al., 2020).

A device sees one user node u and the items i of its history, each tied to u alone. With n_u items the symmetric
normalisation 1 / sqrt(|N_u| |N_i|) is c = 1 / sqrt(n_u), and the mean of layers 0 and 1 is

    e_u = (p_u + c Σ_{i in history} q_i) / 2        e_i = (q_i + c [i in history] p_u) / 2

The score is a perceptron over [e_u, e_i], as in HeteFedRec (eq. 5), or a dot product, as in LightGCN. In this graph an
item of the history carries its user, and another one does not: the score can tell them apart by that alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from bouquet.config import ModelOptions, Options, numbers
from models.backbone import HISTORY, Backbone, PullBack, Tensors
from models.mf import MatrixFactorization
from models.ncf import NCFOptions, NeuralCollaborativeFiltering

if TYPE_CHECKING:
    from torch import Tensor


class LightGCNOptions(Options):
    """What stands on top of the propagation."""

    lightgcn_predictor: Literal["perceptron", "dot"] = Field(
        "perceptron", description="How propagated embeddings of 'lightgcn' become a score."
    )
    lightgcn_hidden: str = numbers("8,8", ",", "Widths of the hidden layers of the perceptron of 'lightgcn'.")


class LightGCN(Backbone):
    """One propagation layer, and a predictor with the arrays of `mf` or `ncf`."""

    options_class = LightGCNOptions
    reads_history = True

    def __init__(self, num_items: int, options: ModelOptions, own: Options | None = None) -> None:
        settings = own if isinstance(own, LightGCNOptions) else LightGCNOptions()
        self.predictor: Backbone = (
            MatrixFactorization(num_items, options)
            if settings.lightgcn_predictor == "dot"
            else NeuralCollaborativeFiltering(num_items, options, NCFOptions(ncf_hidden=settings.lightgcn_hidden))
        )
        self.shared, self.private = self.predictor.shared, self.predictor.private

    def logits(self, private: Tensors, shared: Tensors) -> Tensor:
        return self.predictor.logits(*_propagate(private, shared))

    def forward(self, private: Tensors, shared: Tensors) -> tuple[Tensor, PullBack | None]:
        """The propagation is linear: ∂L/∂p = (g_u + c Σ_history g_i) / 2 and ∂L/∂q_i = (g_i + c [history] g_u) / 2."""
        import torch

        logits, pull_back = self.predictor.forward(*_propagate(private, shared))
        assert pull_back is not None
        weight = _weights(private[HISTORY])

        def through(slope: Tensor) -> dict[str, Tensor]:
            gradients = pull_back(slope)
            of_user, of_items = gradients["user_embedding"], gradients["item_embedding"]
            from_items = torch.bmm(weight.unsqueeze(1), of_items).squeeze(1)
            gradients["user_embedding"] = (of_user + from_items) / 2
            gradients["item_embedding"] = (of_items + weight.unsqueeze(2) * of_user.unsqueeze(1)) / 2
            return gradients

        return logits, through

    def scores(self, private: Tensors, shared: Tensors) -> Tensor:
        import torch

        table, p, history = shared["item_embedding"], private["user_embedding"], private[HISTORY]
        if table.ndim == 3:
            return self.predictor.scores(*_propagate(private, shared))
        weight = _weights(history)
        user = {"user_embedding": (p + weight @ table) / 2}
        found = self.predictor.scores(user, {**shared, "item_embedding": table / 2})
        # Only the few items of the history have embeddings of their own for each user.
        owner, item = torch.nonzero(history, as_tuple=True)
        counts = torch.bincount(owner, minlength=len(p))
        place = torch.arange(len(owner)) - (torch.cumsum(counts, 0) - counts)[owner]
        rows = table.new_zeros(len(p), int(counts.max()) if len(counts) else 0, table.shape[1])
        rows[owner, place] = (table[item] + weight[owner, item].unsqueeze(1) * p[owner]) / 2
        model = {
            name: values.expand(len(p), *values.shape) if values.ndim == len(self.shared[name].shape) else values
            for name, values in shared.items()
        }
        found[owner, item] = self.predictor.logits(user, {**model, "item_embedding": rows})[owner, place]
        return found


def _weights(history: Tensor) -> Tensor:
    """[k, r] what an edge between the user and each row weighs: c in the history, else 0."""
    return history / history.sum(dim=1, keepdim=True).clamp(min=1).sqrt()


def _propagate(private: Tensors, shared: Tensors) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The mean of layers 0 and 1, in place of both embeddings: [k, d] and [k, r, d]."""
    import torch

    table, p, weight = shared["item_embedding"], private["user_embedding"], _weights(private[HISTORY])
    user = (p + torch.bmm(weight.unsqueeze(1), table).squeeze(1)) / 2
    items = (table + weight.unsqueeze(2) * p.unsqueeze(1)) / 2
    return {**private, "user_embedding": user}, {**shared, "item_embedding": items}
