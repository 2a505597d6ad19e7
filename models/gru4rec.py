"""GRU4Rec: a gated recurrent unit reads the history (Hidasi et al., 2016).

    r_t = σ(W_r x_t + U_r h_{t-1} + b)      z_t = σ(W_z x_t + U_z h_{t-1} + b)
    n_t = tanh(W_n x_t + b + r_t ⊙ (U_n h_{t-1} + b'))      h_t = (1 - z_t) ⊙ n_t + z_t ⊙ h_{t-1}

and an output layer h_t W_o + b_o, which meets the items. Every user may have weights of its own, so all products are
batched over users.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from bouquet.arrays import ArraySpec
from models.backbone import Tensors
from models.sequence import Drop, SequenceBackbone, along, no_drop

if TYPE_CHECKING:
    from torch import Tensor


class GRU4Rec(SequenceBackbone):
    """One recurrent layer of d units; item embeddings stand at its input and at its output.

    Shapes: input_weight and hidden_weight [d, 3 d], biases [3 d], in the order r, z, n; output_weight [d, d].
    """

    sites = 2
    kernel = "gru4rec"

    def network(self) -> Mapping[str, ArraySpec]:
        d, bound = self.size, 1 / math.sqrt(self.size)
        return {
            "input_weight": ArraySpec((d, 3 * d), "uniform", bound),
            "hidden_weight": ArraySpec((d, 3 * d), "uniform", bound),
            "input_bias": ArraySpec((3 * d,), "zeros"),
            "hidden_bias": ArraySpec((3 * d,), "zeros"),
            "output_weight": ArraySpec((d, d), "uniform", bound),
            "output_bias": ArraySpec((d,), "zeros"),
        }

    def states(self, shared: Tensors, embedded: Tensor, drop: Drop = no_drop) -> Tensor:
        from models.gru4rec_recurrence import recur  # torch, which nobody needs to declare a model

        gates = drop(embedded, 0) @ shared["input_weight"] + along(shared["input_bias"])
        hidden = recur(gates, shared["hidden_weight"], shared["hidden_bias"])
        return drop(hidden, 1) @ shared["output_weight"] + along(shared["output_bias"])
