"""The device side of GPFedRec (Zhang et al., WWW 2024), "graph-guided personalization".

    start             Q_u ← C                          the common item table
    loss              L_rec + λ ‖Q_u - R_u‖²           R_u: the table that the user's neighbours made for it
    score function    private: on 'mf' it is the user embedding, on 'ncf' the network with it

Every row of Q_u is drawn towards R_u, those of items that the user knows nothing about too: there it learns from its
neighbours. What comes for a user is D_u = R_u - C. A device recommends with Q_u as its last training left it.

The norm is a sum over the table, so that what one step does to a row does not depend on how many others there are. A
mean, as means of squared errors usually are, is λ divided by the number of values.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Array
from bouquet.config import Options, RunConfig
from bouquet.errors import WireError
from bouquet.methods.gpfedrec import GPFedRecOptions
from client_app.personalization.base import Personalization
from client_app.personalization.proximal import Proximal
from client_app.personalization.round import Batch, Given, OwnArrays, Pull, Tensors, Working
from models import Backbone

if TYPE_CHECKING:
    from torch import Tensor


class GuidedTable(Personalization):
    """Each user starts from the common table, and is drawn to the one that its neighbours made for it."""

    options: GPFedRecOptions
    term: Proximal

    def __init__(self, backbone: Backbone, config: RunConfig, options: Options) -> None:
        super().__init__(backbone, config, options)
        self.tables = {name: spec for name, spec in backbone.shared.items() if spec.by_item}
        self.fixed = {specific(name): spec for name, spec in self.tables.items()}
        self.term = Proximal(self.options.gpfedrec_lambda, {name: specific(name) for name in self.tables})
        if self.options.gpfedrec_evaluate == "fine-tuned":
            self.tuned = frozenset(self.tables)

    @property
    def whole_table(self) -> bool:  # type: ignore[override]
        return self.options.gpfedrec_lambda > 0

    @property
    def in_loss(self) -> bool:
        return self.options.gpfedrec_lambda > 0

    def start(self, given: Given, personal: OwnArrays, first: NDArray[np.bool_]) -> Given:
        if self.options.gpfedrec_lambda == 0:
            return given
        return replace(given, anchors={specific(name): self._made_for(given, personal, name) for name in self.tables})

    def deploy(self, given: Given, personal: OwnArrays, first: NDArray[np.bool_]) -> Given:
        """Recommend with the table as training left it, or with the newest that the neighbours made."""
        if self.options.gpfedrec_evaluate == "user-specific":
            for name in self.tables:
                given = given.with_own(name, self._made_for(given, personal, name))
        return given

    def penalty(self, arrays: Tensors, seen: Tensors, batch: Batch, working: Working) -> Tensor:
        """λ ‖Q_u - R_u‖² over all items."""
        return self.term.penalty(arrays)

    def forward(self, arrays: Tensors, batch: Batch, working: Working) -> tuple[Tensors, Pull]:
        return self.term.forward(arrays)

    def _made_for(self, given: Given, personal: OwnArrays, name: str) -> Array:
        """R_u = C + D_u of every user, [k, m, …]."""
        common, apart = given.shared[name], personal.get(name)
        if apart is None or apart.shape[1:] != common.shape or apart.dtype != np.float32:
            came = "nothing" if apart is None else f"{apart.dtype.name} {list(apart.shape[1:])}"
            raise WireError(
                f"the personal array '{name}' should be float32 {list(common.shape)} of each user, not {came}"
            )
        return common + apart


def specific(name: str) -> str:
    """The name of R_u beside the common array."""
    return f"user-specific/{name}"
