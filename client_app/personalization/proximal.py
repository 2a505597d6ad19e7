"""A term of the loss that draws what a device trains to what it was given: FedProx's, FedCA's and GPFedRec's.

    penalty     w Σ ‖Q - Q'‖²        squared Frobenius, over all values
    gradient    2w (Q - Q')          of every trained array Q; Q' is fixed

A row that nobody works on is where it was given, and adds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from client_app.personalization.round import Pull, Tensors

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Proximal:
    """Each array is held near another one.

    Args:
        weight: w, >= 0.
        near: the name of Q -> that of Q', at least one.
    """

    weight: float
    near: Mapping[str, str]

    def penalty(self, arrays: Tensors) -> Tensor:
        """[k] what is added to each user's loss."""
        total = [(arrays[name] - arrays[there]).square().flatten(1).sum(dim=1) for name, there in self.near.items()]
        return self.weight * sum(total[1:], start=total[0])

    def forward(self, arrays: Tensors) -> tuple[Tensors, Pull]:
        """The backbone sees what there is, and the way back adds the penalty's gradient."""

        def pull(gradients: dict[str, Tensor]) -> dict[str, Tensor]:
            drawn = {name: (arrays[name] - arrays[there]).mul_(2 * self.weight) for name, there in self.near.items()}
            return {**gradients, **{name: values.add_(gradients[name]) for name, values in drawn.items()}}

        return arrays, pull
