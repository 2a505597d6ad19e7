"""The transfer network of Fed3CR's adaptive consensus enhancement (eq. 9), for many users at once.

    W_u = I + F_θ([p^G, p^P])    F: fully connected, 2d → 4d → 8d → d², rectified between the layers

The paper has W_u = F_θ(…). An untrained F would then replace the consensus by noise; with the identity added and an
output layer that starts at zero it leaves the consensus as it is, and training moves away from there.
`ace-identity-residual = false` is the bare form. The "length scale coefficient α = 10" of Section V-A4 stands in no
equation of the paper and is not here.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bouquet.arrays import Arrays, ArraySpec
from bouquet.methods.ace import ACEOptions
from client_app.personalization.round import Tensors


class TransferNetwork:
    """W_u of many users, and the way back of its gradient.

    Args:
        size: embedding size d.
        options: its shape.
        rate: learning rate where the options leave it open.

    Attributes:
        specs: the network's arrays, shared by all users; each user trains its own copy.
    """

    def __init__(self, size: int, options: ACEOptions, rate: float) -> None:
        widths = [2 * size, *(4 * size * 2**layer for layer in range(options.ace_hidden_layers)), size**2]
        self.size, self.layers, self.identity = size, len(widths) - 1, options.ace_identity_residual
        self.specs: dict[str, ArraySpec] = {}
        for layer in range(1, len(widths)):
            fan_in, fan_out = widths[layer - 1 : layer + 1]
            quiet = layer == self.layers and self.identity
            self.specs[f"transfer_weight_{layer}"] = ArraySpec(
                (fan_in, fan_out), "zeros" if quiet else "normal", math.sqrt(2 / fan_in)
            )
            self.specs[f"transfer_bias_{layer}"] = ArraySpec((fan_out,), "zeros")
        self.rates = dict.fromkeys(self.specs, options.ace_learning_rate or rate)

    def matrices(self, weights: Tensors, prototypes: Tensor) -> Tensor:
        """W_u [k, d, d] from [p^G, p^P], [k, 2 d]."""
        return self.forward(weights, prototypes)[0]

    def forward(
        self, weights: Tensors, prototypes: Tensor
    ) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, dict[str, Tensor]]]]:
        """W_u, and a function from ∂L/∂W_u to ∂L/∂prototypes and ∂L/∂θ by name: δ_{l-1} = (W_l δ_l) [x_{l-1} > 0]."""
        inputs = [prototypes.unsqueeze(1)]
        for layer in range(1, self.layers + 1):
            bias = weights[f"transfer_bias_{layer}"].unsqueeze(1)
            output = torch.baddbmm(bias, inputs[-1], weights[f"transfer_weight_{layer}"])
            inputs.append(output.relu() if layer < self.layers else output)
        matrix = inputs[-1].reshape(-1, self.size, self.size)
        if self.identity:
            matrix = matrix + torch.eye(self.size, dtype=matrix.dtype, device=matrix.device)

        def pull(slope: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            delta = slope.reshape(-1, 1, self.size**2)
            found: dict[str, Tensor] = {}
            for layer in range(self.layers, 0, -1):
                found[f"transfer_weight_{layer}"] = inputs[layer - 1].transpose(1, 2) * delta
                found[f"transfer_bias_{layer}"] = delta.squeeze(1)
                delta = torch.bmm(delta, weights[f"transfer_weight_{layer}"].transpose(1, 2))
                if layer > 1:
                    delta = delta * (inputs[layer - 1] > 0)
            return delta.squeeze(1), found

        return matrix, pull


class FlatNetwork:
    """A transfer network as compiled loops read it: θ in one array, layer by layer.

    Args:
        network: None: there is none, and no layer.
        shared: where everybody starts.
        dtype: of θ.

    Attributes:
        names: of its arrays, as they lie in `theta`.
        begins: where each of them begins, and at last the end.
        arguments: θ; the widths of all layers; where in θ each layer's weights and biases are; where in a row of all
            signals those of each layer are.
    """

    def __init__(self, network: TransferNetwork | None, shared: Arrays, dtype: type[np.floating]) -> None:
        self.names = list(network.specs) if network else []
        layers = [shared[name] for name in self.names]
        self.shapes = [layer.shape for layer in layers]
        self.theta = np.concatenate([np.empty(0), *(layer.reshape(-1) for layer in layers)]).astype(dtype)
        self.begins = np.concatenate([[0], np.cumsum([layer.size for layer in layers])]).astype(np.int64)
        self._weights, self._biases = ([place for place, layer in enumerate(layers) if layer.ndim == n] for n in (2, 1))
        widths = [self.shapes[self._weights[0]][0], *(self.shapes[n][1] for n in self._weights)] if layers else [0]
        self.arguments = (
            self.theta,
            np.array(widths, np.int64),
            self.begins[self._weights],
            self.begins[self._biases],
            np.concatenate([[0], np.cumsum(widths)[:-1]]).astype(np.int64),
        )

    @property
    def sizes(self) -> tuple[list[int], list[int]]:
        """How many values the weights of each layer are, and the biases."""
        return [math.prod(self.shapes[n]) for n in self._weights], [math.prod(self.shapes[n]) for n in self._biases]

    def by_name(
        self, weights: NDArray[np.floating], biases: NDArray[np.floating], users: int
    ) -> dict[str, NDArray[np.floating]]:
        """name -> [k, …] of values that lie flat, layer by layer and in a layer user by user, without a copy."""
        found = {}
        for values, places in ((weights, self._weights), (biases, self._biases)):
            begin = 0
            for place in places:
                size = users * math.prod(self.shapes[place])
                found[self.names[place]] = values[begin : begin + size].reshape(users, *self.shapes[place])
                begin += size
        return found
