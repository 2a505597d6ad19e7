"""Models of rising size over the first columns of one item table, each with a network of its own (HeteFedRec, eq. 11).

    L_a = Σ_{b <= a} L(u[:N_b], V[:, :N_b], Θ_b)

Every size is a head: a sample has one logit from each, and the largest one is what the device recommends with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from models.backbone import HISTORY, Backbone, PullBack, Tensors

if TYPE_CHECKING:
    from torch import Tensor


class NestedBackbone(Backbone):
    """Backbones of one kind that share the columns of their embeddings.

    The arrays of the largest keep their names; a network of size number b is called `b.name`.

    Args:
        sizes: smallest first.
    """

    def __init__(self, sizes: Sequence[Backbone]) -> None:
        self.sizes = tuple(sizes)
        self.largest = self.sizes[-1]
        self.heads, self.reads_history = len(self.sizes), self.largest.reads_history
        # Matrix factorisations of several sizes have no kernel; perceptrons have.
        self.kernel = "ncf" if all(size.kernel == "ncf" for size in self.sizes) else ""
        self.shared = dict(self.largest.shared)
        for number, smaller in enumerate(self.sizes[:-1]):
            self.shared |= {f"{number}.{name}": spec for name, spec in smaller.shared.items() if not spec.by_item}
        self.private = self.largest.private

    def logits(self, private: Tensors, shared: Tensors) -> Tensor:
        import torch

        parts = (size.logits(*self._cut(number, private, shared)) for number, size in enumerate(self.sizes))
        return torch.cat(list(parts), dim=1)

    def forward(self, private: Tensors, shared: Tensors) -> tuple[Tensor, PullBack | None]:
        """Each head's gradient goes to its columns."""
        import torch

        done = [size.forward(*self._cut(number, private, shared)) for number, size in enumerate(self.sizes)]
        pulls = [pull for _, pull in done if pull is not None]

        def pull_back(slope: Tensor) -> dict[str, Tensor]:
            slopes = slope.chunk(self.heads, dim=1)
            gradients = pulls[-1](slopes[-1])
            for number, pull in enumerate(pulls[:-1]):
                for name, part in pull(slopes[number]).items():
                    if self._is_cut(name):
                        gradients[name][..., : part.shape[-1]] += part
                    else:
                        gradients[f"{number}.{name}"] = part
            return gradients

        return torch.cat([logits for logits, _ in done], dim=1), pull_back if len(pulls) == self.heads else None

    def scores(self, private: Tensors, shared: Tensors) -> Tensor:
        return self.largest.scores(private, {name: shared[name] for name in self.largest.shared})

    def _is_cut(self, name: str) -> bool:
        return name in self.private or self.largest.shared[name].by_item

    def _cut(self, number: int, private: Tensors, shared: Tensors) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """What one of the sizes sees."""
        size = self.sizes[number]
        mine = {name: private[name][..., : spec.shape[-1]] for name, spec in size.private.items()}
        if HISTORY in private:
            mine[HISTORY] = private[HISTORY]
        is_largest = number == self.heads - 1
        model = {
            name: shared[name][..., : spec.shape[-1]]
            if spec.by_item
            else shared[name if is_largest else f"{number}.{name}"]
            for name, spec in size.shared.items()
        }
        return mine, model
