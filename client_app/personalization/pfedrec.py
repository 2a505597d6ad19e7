"""The device side of PFedRec (Zhang et al., IJCAI 2023), "dual personalization".

    score function   Section 3.3   private: on 'mf' it is the user embedding, on 'ncf' the network with it
    item embedding   Section 3.4   the common table, fine-tuned on the device before it is used there

A device recommends with its own fine-tuned table; the mean of all fine-tuned tables is only where the next
fine-tuning starts. Both are stepped at once in every batch, as in the authors' code; their Algorithm 1 steps the
score function first.
"""

from __future__ import annotations

from bouquet.config import Options, RunConfig
from bouquet.methods.pfedrec import PFedRecOptions
from client_app.personalization.base import Personalization
from models import Backbone


class FineTunedTable(Personalization):
    """Each user starts from the common table and keeps what training made of it."""

    options: PFedRecOptions

    def __init__(self, backbone: Backbone, config: RunConfig, options: Options) -> None:
        super().__init__(backbone, config, options)
        if self.options.pfedrec_evaluate == "fine-tuned":
            self.tuned = frozenset(name for name, spec in backbone.shared.items() if spec.by_item)
