"""The device side of FedProx (Li et al., MLSys 2020).

    loss    eq. 2    h_u(w; w^t) = L_u(w) + (μ / 2) ‖w - w^t‖²    w^t: what the server sent, over all shared arrays

A row that training does not touch is at w^t and has no gradient: only touched rows are worked on and sent. What is
private has no w^t and is trained by L_u alone. With μ = 0 nothing is added, and a device computes what FedAvg's does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import exchanged
from bouquet.config import Options, RunConfig
from bouquet.methods import only_embeddings
from bouquet.methods.fedprox import FedProxOptions
from client_app.personalization.base import Personalization
from client_app.personalization.proximal import Proximal
from client_app.personalization.round import Batch, Given, OwnArrays, Pull, Tensors, Working
from models import Backbone

if TYPE_CHECKING:
    from torch import Tensor


class ProximalTerm(Personalization):
    """Each device is drawn back to the shared arrays that it started from."""

    options: FedProxOptions
    term: Proximal

    def __init__(self, backbone: Backbone, config: RunConfig, options: Options) -> None:
        super().__init__(backbone, config, options)
        self.held = exchanged(backbone.shared, only_embeddings(config))
        self.fixed = {sent(name): spec for name, spec in self.held.items()}
        self.term = Proximal(self.options.fedprox_mu / 2, {name: sent(name) for name in self.held})

    @property
    def in_loss(self) -> bool:
        return self.options.fedprox_mu > 0

    def start(self, given: Given, personal: OwnArrays, first: NDArray[np.bool_]) -> Given:
        if not self.in_loss:
            return given
        return replace(given, frozen={**given.frozen, **{sent(name): given.shared[name] for name in self.held}})

    def penalty(self, arrays: Tensors, seen: Tensors, batch: Batch, working: Working) -> Tensor:
        """(μ / 2) ‖w - w^t‖² over all shared arrays."""
        return self.term.penalty(arrays)

    def forward(self, arrays: Tensors, batch: Batch, working: Working) -> tuple[Tensors, Pull]:
        return self.term.forward(arrays)


def sent(name: str) -> str:
    """The name of w^t beside the trained array."""
    return f"sent/{name}"
