"""The device side of PFedRec (Zhang et al., IJCAI 2023), "dual personalization".

    score function   Section 3.3   private: on 'mf' it is the user embedding, on 'ncf' the network with it
    item embedding   Section 3.4   the common table, fine-tuned on the device before it is used there

A device recommends with its own fine-tuned table; the mean of all fine-tuned tables is only where the next
fine-tuning starts. Both are stepped at once in every batch, as in the authors' code; their Algorithm 1 steps the
score function first.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from bouquet.config import Options, RunConfig
from client_app.personalization.base import Given, OwnArrays, Personalization
from models import Backbone


class PFedRecOptions(Options):
    """What a device of PFedRec recommends with."""

    pfedrec_evaluate: Literal["fine-tuned", "common"] = Field(
        "fine-tuned",
        description="The item table that a device recommends with: as it came out of the device's last training, or "
        "the newest common one.",
    )


class FineTunedTable(Personalization):
    """Each user starts from the common table and keeps what training made of it."""

    options_class = PFedRecOptions
    options: PFedRecOptions

    def __init__(self, backbone: Backbone, config: RunConfig, options: Options) -> None:
        super().__init__(backbone, config, options)
        self.tables = [name for name, spec in backbone.shared.items() if spec.by_item]
        self.kept = self.replaced = frozenset(self.tables)

    def start(self, given: Given, personal: OwnArrays, first: NDArray[np.bool_]) -> Given:
        for name in self._still_common(given):
            everyone = np.repeat(given.shared[name][None], len(first), axis=0)
            given = given.with_own(name, everyone, reported=True)
        return given

    def deploy(self, given: Given, personal: OwnArrays, first: NDArray[np.bool_]) -> Given:
        """A user that has not trained yet has nothing but the common table."""
        if self.options.pfedrec_evaluate == "common":
            return self.start(given, personal, first)
        for name in self._still_common(given):
            tuned = given.own[name].copy() if first.any() else given.own[name]
            tuned[first] = given.shared[name]
            given = given.with_own(name, tuned)
        return given

    def _still_common(self, given: Given) -> list[str]:
        """The tables of which no plug-in has given the users versions of their own."""
        return [name for name in self.tables if name in given.shared]
