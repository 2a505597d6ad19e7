"""The device side of FedRAP (Li et al., ICLR 2024): additive personalization.

    item table     eq. 2   V_u = C + D_u, C common, D_u the user's own
    difference     eq. 4   - λ_t ‖C - D_u‖²: the two shall not say the same
    sparsity       eq. 5   μ_t ‖C‖₁: C keeps what it is needed for
    schedule       eq. 7   λ_t = λ tanh(t / 10) and μ_t = μ tanh(t / 10) in round t

The norms are means over the values of the batch's samples, as in the authors' code: a norm over the whole table
would weigh 1,000 times more on a large catalogue than on a small one, and would move rows that nobody touched. The
code computes the schedules and then uses the constants; both are here. The difference is unbounded below, so with
large λ training diverges, in the authors' code as well.

A plug-in may have the two tables mixed in place of added, V_u = s D_u + (1 - s) C; the two terms stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bouquet.arrays import Array, ArraySpec
from bouquet.config import Options, RunConfig
from bouquet.methods.fedrap import FedRAPOptions
from client_app.personalization.base import Personalization
from client_app.personalization.fedrap_compiled import SUM, train
from client_app.personalization.round import PERSONAL, SHARE, Batch, Changes, Given, Pull, Tensors, Working
from client_app.personalization.summed import scores_of_sum
from models import Backbone

if TYPE_CHECKING:
    from client_app.training.task import LocalTask

# The common table as the sum has it: what a plug-in made of it.
COMMON = "additive/common"


class AdditiveTable(Personalization):
    """The table that a user sees is the sum of the common one and its own."""

    options: FedRAPOptions
    by_rows = frozenset({PERSONAL})

    def __init__(self, backbone: Backbone, config: RunConfig, options: Options) -> None:
        super().__init__(backbone, config, options)
        self.table = next(name for name, spec in backbone.shared.items() if spec.by_item)
        spec = backbone.shared[self.table]
        self.private = {PERSONAL: ArraySpec(spec.shape, spec.init, spec.scale, by_item=True)}
        self.rates = {PERSONAL: self.options.fedrap_personal_learning_rate or config.learning_rate}

    @property
    def only_sum(self) -> bool:  # type: ignore[override]
        """Whether the loss reads nothing but the sum of the two tables."""
        return self.options.fedrap_lambda == self.options.fedrap_mu == 0

    def strength(self, round_: int) -> float:
        """The factor on λ and μ in a round."""
        return math.tanh(round_ / 10) if self.options.fedrap_schedule == "tanh" else 1.0

    def view(self, arrays: Tensors, working: Working) -> Tensors:
        """V_u = C + D_u."""
        common, own, share = arrays[self.table], arrays[PERSONAL], arrays.get(SHARE)
        both = common + own if share is None else torch.lerp(common, own, share)
        return {**arrays, COMMON: common, self.table: both}

    def scores(self, given: Given) -> Callable[[NDArray[np.int64]], Array] | None:
        return scores_of_sum(given, self.table)

    def two_views(self, arrays: Tensors, seen: Tensors) -> tuple[Tensor, Tensor]:
        return seen[COMMON], arrays[PERSONAL]

    def penalty(self, arrays: Tensors, seen: Tensors, batch: Batch, working: Working) -> Tensor | None:
        """- λ_t mean (C - D_u)² + μ_t mean |C| over the samples of the batch."""
        if self.only_sum:
            return None
        common, own = batch.pick(seen[COMMON]), batch.pick(arrays[PERSONAL])
        terms = self.options.fedrap_mu * common.abs() - self.options.fedrap_lambda * (common - own).square()
        return self.strength(working.round) * (batch.samples * terms.mean(dim=2)).sum(dim=1) / batch.count

    def compiled(self, task: LocalTask) -> Iterator[Changes] | None:  # type: ignore[override]
        if self.only_sum and len(task.personalizations) == 1:
            return None  # the sum is trained as one table
        return train(self.table, SUM, task)

    def additive_terms(self, round_: int) -> tuple[float, float]:
        strength = self.strength(round_) / self.private[PERSONAL].shape[1]
        return strength * self.options.fedrap_lambda, strength * self.options.fedrap_mu

    def forward(self, arrays: Tensors, batch: Batch, working: Working) -> tuple[Tensors, Pull]:
        """Both tables get the gradient of the sum; the two terms add their own, row by row."""
        seen = self.view(arrays, working)
        options, share = self.options, arrays.get(SHARE)
        strength = self.strength(working.round) / arrays[self.table].shape[2]

        def pull(gradients: dict[str, Tensor]) -> dict[str, Tensor]:
            of_common = of_own = gradients[self.table]
            if share is not None:
                of_common, of_own = (1 - share) * of_common, share * of_own
            if not self.only_sum:
                weight = (batch.samples * (strength / batch.count).unsqueeze(1)).unsqueeze(2)
                apart = 2 * options.fedrap_lambda * weight * (seen[COMMON] - arrays[PERSONAL])
                of_common = of_common - apart + options.fedrap_mu * weight * torch.sign(seen[COMMON])
                of_own = of_own + apart
            return {**gradients, self.table: of_common, PERSONAL: of_own}

        return seen, pull
