"""SASRec: self-attention reads the history (Kang and McAuley, 2018).

    x_t = q_{s_t} + e_t                                            embedding and position
    x ← x + drop(attention(norm(x) W_Q, … W_K, … W_V))             each place looks at itself and at earlier ones
    x ← x + drop(relu(norm(x) W_1 + b_1) W_2 + b_2)                and these two steps once per block
    h = norm(x)

Places count from the oldest item that is read, so that users with
short histories, who are most, all train the same places. Attention weights are not dropped, values are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from bouquet.arrays import ArraySpec
from bouquet.config import ModelOptions, Options
from bouquet.errors import ConfigError
from models.backbone import Tensors
from models.sequence import Drop, SequenceBackbone, along, no_drop

if TYPE_CHECKING:
    from torch import Tensor

_EPSILON = 1e-8
_MATRICES = ("query", "key", "value", "first_weight", "second_weight")
_VECTORS = ("first_bias", "second_bias", "attention_gain", "attention_shift", "forward_gain", "forward_shift")


class SASRec(SequenceBackbone):
    """Blocks of causal self-attention; item embeddings stand at the input and at the output.

    Shapes, with B blocks: query, key, value, first_weight and second_weight [B, d, d]; biases and norms [B, d];
    position_embedding [max-length, d]. A norm's factor is kept as its distance from 1.
    """

    def __init__(self, num_items: int, options: ModelOptions, own: Options | None = None) -> None:
        self._scale = options.init_scale
        super().__init__(num_items, options, own)
        self.sites = 1 + 2 * self.settings.sasrec_blocks
        heads = self.settings.sasrec_heads
        if self.size % heads:
            raise ConfigError(f"sasrec-heads must divide embedding-size, and {heads} does not divide {self.size}.")

    def network(self) -> Mapping[str, ArraySpec]:
        blocks, d, bound = self.settings.sasrec_blocks, self.size, 1 / math.sqrt(self.size)
        return {
            "position_embedding": ArraySpec((self.settings.max_length, d), "normal", self._scale),
            **{name: ArraySpec((blocks, d, d), "uniform", bound) for name in _MATRICES},
            **{name: ArraySpec((blocks, d), "zeros") for name in _VECTORS},
            "last_gain": ArraySpec((d,), "zeros"),
            "last_shift": ArraySpec((d,), "zeros"),
        }

    def states(self, shared: Tensors, embedded: Tensor, drop: Drop = no_drop) -> Tensor:
        import torch

        length = embedded.shape[1]
        read = embedded + shared["position_embedding"][..., :length, :]
        x = drop(read, 0)
        # Of eight entries dropout takes all at .3⁸ of the places: a norm would divide what is left, next to nothing, by
        # its own length and hand gradients on some thousand times as large. Such a place is read whole.
        x = torch.where((x == 0).all(dim=2, keepdim=True), read, x)
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        for block in range(self.settings.sasrec_blocks):
            one = {name: shared[name][..., block, :, :] for name in _MATRICES}
            one |= {name: shared[name][..., block, :] for name in _VECTORS}
            seen = _norm(x, one["attention_gain"], one["attention_shift"])
            attended = self._attend(seen @ one["query"], seen @ one["key"], seen @ one["value"], future)
            x = x + drop(attended, 2 * block + 1)
            seen = _norm(x, one["forward_gain"], one["forward_shift"])
            inner = (seen @ one["first_weight"] + along(one["first_bias"])).relu()
            x = x + drop(inner @ one["second_weight"] + along(one["second_bias"]), 2 * block + 2)
        return _norm(x, shared["last_gain"], shared["last_shift"])

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, future: Tensor) -> Tensor:
        """softmax(Q Kᵀ / √(d / heads)) V for each head; [k, L, d] each."""
        k, length, d = query.shape
        heads = self.settings.sasrec_heads
        q, s, v = (part.view(k, length, heads, d // heads).transpose(1, 2) for part in (query, key, value))
        weights = (q @ s.transpose(2, 3) / math.sqrt(d // heads)).masked_fill(future, float("-inf")).softmax(dim=3)
        return (weights @ v).transpose(1, 2).reshape(k, length, d)


def _norm(x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    """Each place of x [k, L, d] with mean 0 and variance 1, times 1 + gain, plus shift."""
    centred = x - x.mean(dim=2, keepdim=True)
    scaled = centred / (centred.square().mean(dim=2, keepdim=True) + _EPSILON).sqrt()
    return scaled * (1 + along(gain)) + along(shift)
