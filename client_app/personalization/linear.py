"""A term of the loss that moves what a device trains along what it was given: Scaffold's correction.

penalty     Σ ⟨Q', Q⟩            over all values
gradient    Q'                   of every trained array Q; Q' is fixed
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from client_app.personalization.round import Pull, Tensors

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Linear:
    """Every step of an array goes along another one, too.

    Args:
        near: the name of Q -> that of Q', at least one.
    """

    near: Mapping[str, str]

    def penalty(self, arrays: Tensors) -> Tensor:
        """[k] what is added to each user's loss."""
        total = [(arrays[there] * arrays[name]).flatten(1).sum(dim=1) for name, there in self.near.items()]
        return sum(total[1:], start=total[0])

    def forward(self, arrays: Tensors) -> tuple[Tensors, Pull]:
        """The backbone sees what there is, and the way back adds Q'."""

        def pull(gradients: dict[str, Tensor]) -> dict[str, Tensor]:
            added = {name: gradients[name] + arrays[there] for name, there in self.near.items()}
            return {**gradients, **added}

        return arrays, pull
