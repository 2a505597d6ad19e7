"""Neural collaborative filtering: a multilayer perceptron over both embeddings (He et al., 2017; FedNCF: Perifanis
and Efraimidis, 2022)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pydantic import Field

from bouquet.arrays import ArraySpec
from bouquet.config import ModelOptions, Options, numbers
from models.backbone import Backbone, PullBack, Tensors

if TYPE_CHECKING:
    from torch import Tensor

# Activations of a layer of this many values are made at once when the whole catalogue is scored: they stay in the
# second-level cache.
_SCORE_VALUES = 2**18


class NCFOptions(Options):
    """The shape of the perceptron."""

    ncf_hidden: str = numbers(
        "16,8", ",", "Widths of the hidden layers of 'ncf', between its 2 d inputs and its one output."
    )
    ncf_prior: float = Field(
        0.2,
        gt=0,
        lt=1,
        description="Share of positives among samples that the output of 'ncf' begins with, through its bias: "
        "1 / (1 + negatives-per-positive), .2 with the default.",
    )


class NeuralCollaborativeFiltering(Backbone):
    """r̂_ui = hᵀ φ_L(… φ_1([p_u, q_i])) + b with φ_l(x) = relu(W_lᵀ x + b_l), a private p_u, shared Q, W, h and b.

    Shapes: W_1 is [2 d, first width]; all layers of a user are its own copy while it trains.

    The papers print no b. Most samples are negatives, so without it the first rounds turn h negative, and what scores
    best is what no unit of the last layer answers to: the most popular items then tie at 0, where no gradient tells
    them apart. b starts at the log-odds of a positive instead.
    """

    options_class = NCFOptions
    kernel = "ncf"

    def __init__(self, num_items: int, options: ModelOptions, own: Options | None = None) -> None:
        settings = own if isinstance(own, NCFOptions) else NCFOptions()
        size = options.embedding_size
        widths = [2 * size, *(int(width) for width in settings.ncf_hidden.split(","))]
        self.size, self.widths, self.num_hidden = size, widths[1:], len(widths) - 1
        self.shared = {"item_embedding": ArraySpec((num_items, size), "normal", options.init_scale, by_item=True)}
        for layer in range(1, len(widths)):
            fan_in, fan_out = widths[layer - 1 : layer + 1]
            # He et al. (2015): keeps the size of signals through rectified layers.
            self.shared[f"weight_{layer}"] = ArraySpec((fan_in, fan_out), "normal", math.sqrt(2 / fan_in))
            self.shared[f"bias_{layer}"] = ArraySpec((fan_out,), "zeros")
        self.shared["output"] = ArraySpec((widths[-1],), "normal", math.sqrt(1 / widths[-1]))
        prior = math.log(settings.ncf_prior / (1 - settings.ncf_prior))
        self.shared["output_bias"] = ArraySpec((1,), "constant", prior)
        self.private = {"user_embedding": ArraySpec((size,), "normal", options.init_scale)}

    def logits(self, private: Tensors, shared: Tensors) -> Tensor:
        return self._layers(private, shared)[0]

    def forward(self, private: Tensors, shared: Tensors) -> tuple[Tensor, PullBack]:
        """Backpropagation, a batched product per layer: δ_{l-1} = (δ_l W_lᵀ) [x_{l-1} > 0], ∂L/∂W_l = x_{l-1}ᵀ δ_l."""
        import torch

        logits, activations = self._layers(private, shared)

        def pull_back(slope: Tensor) -> dict[str, Tensor]:
            gradients = {"output": torch.bmm(slope.unsqueeze(1), activations[-1]).squeeze(1)}
            gradients["output_bias"] = slope.sum(dim=1, keepdim=True)
            delta = slope.unsqueeze(2) * shared["output"].unsqueeze(1)
            for layer in range(self.num_hidden, 0, -1):
                delta = delta * (activations[layer - 1] > 0)
                gradients[f"bias_{layer}"] = summed = delta.sum(dim=1)
                if layer > 1:
                    gradients[f"weight_{layer}"] = torch.bmm(activations[layer - 2].transpose(1, 2), delta)
                    delta = torch.bmm(delta, shared[f"weight_{layer}"].transpose(1, 2))
            first, p, items = shared["weight_1"], private["user_embedding"], shared["item_embedding"]
            of_items = torch.bmm(items.transpose(1, 2), delta)
            gradients["weight_1"] = torch.cat([p.unsqueeze(2) * summed.unsqueeze(1), of_items], dim=1)
            gradients["user_embedding"] = torch.bmm(first[:, : self.size], summed.unsqueeze(2)).squeeze(2)
            gradients["item_embedding"] = torch.bmm(delta, first[:, self.size :].transpose(1, 2))
            return gradients

        return logits, pull_back

    def scores(self, private: Tensors, shared: Tensors) -> Tensor:
        """With a common item table and first layer, its half of the first product is computed once for all users."""
        count, num_items = len(private["user_embedding"]), shared["item_embedding"].shape[-2]
        # Arrays that all users have in common get a dimension of users of length 1.
        own = {name: values.ndim > len(self.shared[name].shape) for name, values in shared.items()}
        model = {name: values if own[name] else values[None] for name, values in shared.items()}
        first = model["weight_1"]
        items = model["item_embedding"] @ first[:, self.size :]
        users = (private["user_embedding"].unsqueeze(1) @ first[:, : self.size]) + model["bias_1"].unsqueeze(1)
        found = items.new_empty(count, num_items)
        step = max(1, _SCORE_VALUES // (num_items * max(self.widths)))
        for start in range(0, count, step):
            these = slice(start, start + step)
            part = {name: values[these] if own[name] else values for name, values in model.items()}
            signals = ((items if len(items) == 1 else items[these]) + users[these]).relu_()
            for layer in range(2, self.num_hidden + 1):
                signals = (signals @ part[f"weight_{layer}"]).add_(part[f"bias_{layer}"].unsqueeze(1)).relu_()
            # hᵀ xᵀ and not x h, which one user alone may have rounded otherwise than among others.
            found[these] = (part["output"].unsqueeze(1) @ signals.transpose(1, 2)).squeeze(1) + part["output_bias"]
        return found

    def _layers(self, private: Tensors, shared: Tensors) -> tuple[Tensor, list[Tensor]]:
        """[k, r] logits, and the activations [k, r, width] of every hidden layer."""
        import torch

        first = shared["weight_1"]
        # The user's half of the first product is the same for all items.
        of_user = torch.bmm(private["user_embedding"].unsqueeze(1), first[:, : self.size])
        offset = of_user + shared["bias_1"].unsqueeze(1)
        activations = [torch.baddbmm(offset, shared["item_embedding"], first[:, self.size :]).relu()]
        for layer in range(2, self.num_hidden + 1):
            bias, weight = shared[f"bias_{layer}"].unsqueeze(1), shared[f"weight_{layer}"]
            activations.append(torch.baddbmm(bias, activations[-1], weight).relu())
        bias, weight = shared["output_bias"].unsqueeze(1), shared["output"].unsqueeze(2)
        return torch.baddbmm(bias, activations[-1], weight).squeeze(2), activations
