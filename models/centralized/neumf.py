"""NeuMF on pooled data (He et al., WWW 2017): a product of embeddings and a perceptron, with embeddings of their own.

    x_0 = [p_u, q_i],   x_l = relu(x_{l-1} W_l + a_l)                          (eq. 10)
    score(u, i) = hᵀ [p'_u ⊙ q'_i, x_L] + b                                    (eq. 12)

p and q have half the width of the first layer each, p' and q' embedding_size. The loss is BCE over positives and drawn
negatives (eq. 7), and training is that of `pairs`, from random weights: the paper's pre-training of the two halves is
left out. Without the perceptron (`hidden = ()`) this is GMF, hᵀ (p'_u ⊙ q'_i) + b.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy import sparse
from torch import Tensor
from torch.nn.functional import embedding

from bouquet.errors import BouquetError
from models.centralized.base import Rows, Scores, fitted
from models.centralized.pairs import FactorizationParameters, PairModel, cross_entropy, drawn

# Activations of a layer of this many values are made at once when the whole catalogue is scored.
_SCORE_VALUES = 2**22


@dataclass(frozen=True)
class NeuMFParameters(FactorizationParameters):
    """Hyper-parameters of `NeuMF`.

    Attributes:
        hidden: inputs and widths of the perceptron's layers; the first is twice the size of its embeddings. Empty: GMF.
    """

    hidden: tuple[int, ...] = (64, 32, 16)


_DEFAULTS = NeuMFParameters(embedding_size=32, learning_rate=0.003, weight_decay=0.01, epochs=40)


class NeuMF(PairModel):
    """Neural matrix factorization, as a row of tables."""

    name = "neumf"
    loss = staticmethod(cross_entropy)

    def __init__(self, parameters: NeuMFParameters | None = None) -> None:
        super().__init__()
        self.hidden = (parameters or _DEFAULTS).hidden
        self.parameters = parameters or _DEFAULTS
        if self.hidden and self.hidden[0] % 2:
            raise BouquetError(
                f"NeuMF halves the first width of its perceptron, so it must be even, not {self.hidden[0]}."
            )

    def scores(self, users: Rows) -> Scores:
        """[b, m] (see `CentralizedModel.scores`)."""
        num_items = len(fitted(self._weights, self.name)[1])
        step = max(1, _SCORE_VALUES // (num_items * max((self.parameters.embedding_size, *self.hidden))))
        rows = torch.as_tensor(np.asarray(users, dtype=np.int64))
        items, found = torch.arange(num_items)[None, :], np.empty((len(rows), num_items), dtype=np.float32)
        with torch.inference_mode():
            for start in range(0, len(rows), step):
                found[start : start + step] = self._logits(rows[start : start + step], items)[0].numpy()
        return found

    def _initial(self, matrix: sparse.csr_matrix, seed: int) -> tuple[Tensor, ...]:
        """p', q', h [d + last width] and b [1]; with a perceptron also p, q, and W and a of each layer."""
        (num_users, num_items), chosen = matrix.shape, self.parameters
        width = chosen.embedding_size + (self.hidden[-1] if self.hidden else 0)
        shapes: list[tuple[tuple[int, ...], float]]
        shapes = [((rows, chosen.embedding_size), chosen.init_scale) for rows in (num_users, num_items)]
        shapes += [((width,), math.sqrt(1 / width)), ((1,), 0.0)]
        if self.hidden:
            shapes += [((rows, self.hidden[0] // 2), chosen.init_scale) for rows in (num_users, num_items)]
        for before, after in zip(self.hidden, self.hidden[1:], strict=False):
            # He et al. (2015): keeps the size of signals through rectified layers.
            shapes += [((before, after), math.sqrt(2 / before)), ((after,), 0.0)]
        return drawn(seed, self.name, shapes)

    def _logits(self, users: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        of_users, of_items, output, bias, *perceptron = fitted(self._weights, self.name)
        user_rows, item_rows = embedding(users, of_users), embedding(items, of_items)
        norm = user_rows.square().sum(1).mean() + item_rows.square().sum(2).mean()
        # hᵀ (p' ⊙ q') = (h ⊙ p')ᵀ q'
        logits = ((item_rows @ (user_rows * output[: user_rows.shape[1]])[:, :, None]).squeeze(2)) + bias
        if perceptron:
            signals, of_signals = self._perceptron(users, items, perceptron)
            logits = logits + signals @ output[user_rows.shape[1] :]
            norm = norm + of_signals
        return logits, norm

    def _perceptron(self, users: Tensor, items: Tensor, weights: list[Tensor]) -> tuple[Tensor, Tensor]:
        """x_L [b, k, last width], and the mean squared norm of its embeddings."""
        user_rows, item_rows = embedding(users, weights[0]), embedding(items, weights[1])
        norm = user_rows.square().sum(1).mean() + item_rows.square().sum(2).mean()
        if len(weights) == 2:
            shape = (len(user_rows), item_rows.shape[1], -1)
            return torch.cat([user_rows[:, None].expand(shape), item_rows.expand(shape)], dim=2), norm
        first, size = weights[2], user_rows.shape[1]
        # The user's half of the first product is the same for all of its items.
        signals = (item_rows @ first[size:] + (user_rows @ first[:size] + weights[3])[:, None]).relu()
        for weight, bias in zip(weights[4::2], weights[5::2], strict=True):
            signals = (signals @ weight + bias).relu()
        return signals, norm
