"""The device side of pFedGraph (Ye et al., ICML 2023): a user trains from the model that was mixed for it.

The paper also draws a device's model to the direction of the mixed one. Here, as where FedCA has the method in one
framework with averaging (its Section 5.4), the mixed model is where training starts, and nothing else.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import exchanged
from bouquet.config import Options, RunConfig
from bouquet.methods import only_embeddings
from bouquet.methods.pfedgraph import PFedGraphOptions
from client_app.personalization.base import Personalization
from client_app.personalization.round import Given, OwnArrays, checked_personal
from models import Backbone


class MixedModel(Personalization):
    """Each user trains a model of its own, from the one that the server mixed for it."""

    options: PFedGraphOptions

    def __init__(self, backbone: Backbone, config: RunConfig, options: Options) -> None:
        super().__init__(backbone, config, options)
        self.mixed = exchanged(backbone.shared, only_embeddings(config))
        self.replaced = frozenset(self.mixed)

    def start(self, given: Given, personal: OwnArrays, first: NDArray[np.bool_]) -> Given:
        for name, spec in self.mixed.items():
            # What lies in a message cannot be written to.
            given = given.with_own(name, checked_personal(personal, name, spec, len(first)).copy(), reported=True)
        return given

    def deploy(self, given: Given, personal: OwnArrays, first: NDArray[np.bool_]) -> Given:
        """Recommend with the newest mixture, or with the model as training left it."""
        return self.start(given, personal, first) if self.options.pfedgraph_evaluate == "mixed" else given
