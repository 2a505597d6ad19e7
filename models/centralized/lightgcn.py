"""LightGCN on pooled data (He et al., SIGIR 2020): embeddings that are spread over the graph of users and items.

    E⁰ = all p_u and q_i,   Eᵏ⁺¹ = Ã Eᵏ                                       (eq. 3, 7)
    Ã_ui = 1 / sqrt(|N_u| |N_i|) for each training positive (u, i), both ways, else 0
    E = mean of E⁰ … Eᴷ,    score(u, i) = e_uᵀ e_i                             (eq. 4, 5)

The loss is BPR's, the L2 term is on the rows of E⁰ in a batch (eq. 15), and training is that of `pairs`: four negatives
per positive, where the paper draws one. With K = 0 nothing is spread, and this is MF-BPR without its biases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor
from torch.nn.functional import embedding

from models.centralized.base import Rows, Scores, fitted
from models.centralized.pairs import FactorizationParameters, PairModel, drawn, pairwise_ranking


@dataclass(frozen=True)
class LightGCNParameters(FactorizationParameters):
    """Hyper-parameters of `LightGCN`.

    Attributes:
        layers: K.
    """

    layers: int = 3


class LightGCN(PairModel):
    """Propagation without networks, as a row of tables."""

    name = "lightgcn"
    loss = staticmethod(pairwise_ranking)

    def __init__(self, parameters: LightGCNParameters | None = None) -> None:
        super().__init__()
        self.layers = (parameters or _DEFAULTS).layers
        self.parameters = parameters or _DEFAULTS
        self._graph: sparse.csr_matrix | None = None
        self._final: tuple[int, Tensor] | None = None

    def scores(self, users: Rows) -> Scores:
        """[b, m] (see `CentralizedModel.scores`)."""
        weights = fitted(self._weights, self.name)
        # Scores are asked block by block of users, between which nothing is trained.
        version = sum(weight._version for weight in weights)
        if self._final is None or self._final[0] != version:
            with torch.no_grad():
                self._final = version, self._spread(*weights)
        user_table, item_table = self._final[1].split([len(weight) for weight in weights])
        chosen = user_table[torch.as_tensor(np.asarray(users, dtype=np.int64))]
        return np.asarray((chosen @ item_table.T).numpy())

    def _initial(self, matrix: sparse.csr_matrix, seed: int) -> tuple[Tensor, ...]:
        """p [n, d] and q [m, d]."""
        size, scale = self.parameters.embedding_size, self.parameters.init_scale
        self._graph, self._final = _normalised(matrix), None
        return drawn(seed, self.name, [((rows, size), scale) for rows in matrix.shape])

    def _logits(self, users: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        user_table, item_table = fitted(self._weights, self.name)
        norm = embedding(users, user_table).square().sum(1).mean() + embedding(items, item_table).square().sum(2).mean()
        user_rows, item_rows = self._spread(user_table, item_table).split([len(user_table), len(item_table)])
        logits = (embedding(items, item_rows) @ embedding(users, user_rows)[:, :, None]).squeeze(2)
        return logits, norm

    def _spread(self, user_table: Tensor, item_table: Tensor) -> Tensor:
        """[n + m, d] the mean of all layers."""
        layer = total = torch.cat([user_table, item_table])
        for _ in range(self.layers):
            layer = _Propagation.apply(fitted(self._graph, self.name), layer)
            total = total + layer
        return total / (self.layers + 1)


_DEFAULTS = LightGCNParameters(embedding_size=64, learning_rate=0.01, weight_decay=0.001, epochs=80)


class _Propagation(torch.autograd.Function):
    """Ã X. As Ã is symmetric, the gradient is Ã times that of the product, without a transposed copy."""

    @staticmethod
    def forward(ctx: Any, graph: sparse.csr_matrix, values: Tensor) -> Tensor:
        ctx.graph = graph
        return torch.from_numpy(graph @ values.numpy())

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[None, Tensor]:
        return None, torch.from_numpy(ctx.graph @ slopes[0].numpy())


def _normalised(matrix: sparse.csr_matrix) -> sparse.csr_matrix:
    """Ã, [n + m, n + m]; whoever has no edge spreads nothing."""
    weights: list[NDArray[np.float64]] = []
    for axis in (1, 0):
        degrees = np.asarray(matrix.astype(np.float64).sum(axis=axis)).ravel()
        weights.append(1.0 / np.sqrt(np.maximum(degrees, 1.0)))
    edges = sparse.diags(weights[0]) @ matrix @ sparse.diags(weights[1])
    return sparse.csr_matrix(sparse.bmat([[None, edges], [edges.T, None]]), dtype=np.float32)
