"""Matrix factorization on pooled data, with the losses that the federated methods use.

    score(u, i) = p_uᵀ q_i + b_i

MF-BCE:  mean over positives (u, i) and k negatives j each of  -log σ(s_ui)  and  -log(1 - σ(s_uj))
MF-BPR:  mean over the same pairs of  -log σ(s_ui - s_uj)   (Rendle et al., UAI 2009)

How it is trained: `pairs`.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from scipy import sparse
from torch import Tensor
from torch.nn.functional import embedding

from models.centralized.base import Rows, Scores, fitted
from models.centralized.pairs import FactorizationParameters, PairModel, cross_entropy, drawn, pairwise_ranking


class _Factorization(PairModel):
    defaults: ClassVar[FactorizationParameters]

    def __init__(self, parameters: FactorizationParameters | None = None) -> None:
        super().__init__()
        self.parameters = parameters or self.defaults

    def scores(self, users: Rows) -> Scores:
        """[b, m] (see `CentralizedModel.scores`)."""
        user_table, item_table, bias = fitted(self._weights, self.name)
        chosen = user_table.detach()[torch.as_tensor(np.asarray(users, dtype=np.int64))]
        return torch.addmm(bias.detach()[:, 0], chosen, item_table.detach().T).numpy()

    def _initial(self, matrix: sparse.csr_matrix, seed: int) -> tuple[Tensor, ...]:
        """p [n, d], q [m, d] and b [m, 1]."""
        size, scale = self.parameters.embedding_size, self.parameters.init_scale
        num_users, num_items = matrix.shape
        return drawn(seed, self.name, [((num_users, size), scale), ((num_items, size), scale), ((num_items, 1), 0.0)])

    def _logits(self, users: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        user_table, item_table, bias = fitted(self._weights, self.name)
        user_rows, item_rows = embedding(users, user_table), embedding(items, item_table)
        logits = (item_rows @ user_rows[:, :, None]).squeeze(2) + embedding(items, bias).squeeze(2)
        return logits, user_rows.square().sum(1).mean() + item_rows.square().sum(2).mean()


class MFBCE(_Factorization):
    """Matrix factorization with binary cross-entropy: what FedMF would be with all data in one place."""

    name = "mf-bce"
    defaults = FactorizationParameters(embedding_size=32, learning_rate=0.01, weight_decay=0.01, epochs=30)
    loss = staticmethod(cross_entropy)


class MFBPR(_Factorization):
    """Matrix factorization with Bayesian personalised ranking."""

    name = "mf-bpr"
    # Small sets take several times as many epochs as the 24 of MovieLens-100K.
    defaults = FactorizationParameters(
        embedding_size=64, learning_rate=0.01, weight_decay=0.01, epochs=24, most_epochs=300
    )
    loss = staticmethod(pairwise_ranking)
