"""ACE, the consensus enhancement of Fed3CR (Mi et al.), before other methods (Section V-E).

"We treat the global item embedding tables downloaded from the server as consensus": p^G is the mean row of the user's
items in the table as it came, p^P the same in the table that the method has of its own, D_u in FedRAP; where it has
none, in the table as it is being trained. What the method takes for its item table is C^E = C W_uᵀ (eq. 11); how it
trains, adds to and averages C stays its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bouquet.config import Options, RunConfig
from bouquet.methods.ace import ACEOptions
from client_app.personalization import ace_compiled
from client_app.personalization.ace_network import TransferNetwork
from client_app.personalization.base import Personalization
from client_app.personalization.enhanced_sum_compiled import train_before_fedrap
from client_app.personalization.fed3cr import centres, turned
from client_app.personalization.round import GLOBAL, PERSONAL, Batch, Changes, Given, OwnArrays, Pull, Tensors, Working
from models import Backbone

if TYPE_CHECKING:
    from client_app.training.task import LocalTask


class AdaptiveEnhancement(Personalization):
    """The item table that a method works with is the common one, turned by a matrix made for the user."""

    options: ACEOptions
    reads_history = True

    def __init__(self, backbone: Backbone, config: RunConfig, options: Options) -> None:
        super().__init__(backbone, config, options)
        self.table = next(name for name, spec in backbone.shared.items() if spec.by_item)
        self.network = TransferNetwork(config.embedding_size, self.options, config.learning_rate)
        self.shared, self.rates = self.network.specs, self.network.rates
        self.fixed = {GLOBAL: backbone.shared[self.table]}

    def start(self, given: Given, personal: OwnArrays, first: NDArray[np.bool_]) -> Given:
        return replace(given, frozen={**given.frozen, GLOBAL: given.shared[self.table]})

    def view(self, arrays: Tensors, working: Working) -> Tensors:
        """C^E = C W_uᵀ (eq. 9 to 11)."""
        matrix = self.network.matrices(arrays, self._prototypes(arrays, working))
        return {**arrays, self.table: turned(arrays[self.table], matrix)}

    def _prototypes(self, arrays: Tensors, working: Working) -> Tensor:
        own = arrays.get(PERSONAL, arrays[self.table])
        return torch.cat([centres(arrays[GLOBAL], working), centres(own, working)], dim=1)

    def compiled(self, task: LocalTask) -> Iterator[Changes] | None:  # type: ignore[override]
        train = train_before_fedrap if len(task.personalizations) > 1 else ace_compiled.train
        return train(self.options, self.table, self.network, task)

    def forward(self, arrays: Tensors, batch: Batch, working: Working) -> tuple[Tensors, Pull]:
        """Through the turn and through the network; p^G is frozen."""
        table = arrays[self.table]
        matrix, back = self.network.forward(arrays, self._prototypes(arrays, working))

        def pull(gradients: dict[str, Tensor]) -> dict[str, Tensor]:
            of_enhanced = gradients[self.table]
            of_prototypes, of_network = back(torch.bmm(of_enhanced.transpose(1, 2), table))
            found = {**gradients, **of_network, self.table: torch.bmm(of_enhanced, matrix)}
            own = PERSONAL if PERSONAL in arrays else self.table
            share = working.positive / working.positive.sum(dim=1, keepdim=True).clamp(min=1)
            of_own = of_prototypes[:, table.shape[2] :].unsqueeze(1)
            found[own] = torch.baddbmm(found[own], share.unsqueeze(2), of_own)
            return found

        return {**arrays, self.table: turned(table, matrix)}, pull
