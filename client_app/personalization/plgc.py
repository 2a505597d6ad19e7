"""The device side of PLGC: personalized local-global collaboration, before other methods.

    local table     Section IV-B   V^l, the user's own; trained, kept and never overwritten. Its change is uploaded
    global table    Section IV-B   V^g, the server's aggregate of these changes; frozen on the device
    mixing          eq. 14 to 16   V^p = μ V^l + (1 - μ) V^g with μ = tr G^l / (tr G^l + tr G^g)
    views           Section IV-C   A and B: V^l and V^g of a batch's items, through a projector and a predictor
    correlation     eq. 18         R_jk of dimension j of A and k of B over the batch
    redundancy      eq. 19         L_eRR = Σ_j (1 - R_jj)² + κ Σ_{j≠k} R_jk²
    loss            eq. 22         L = L_base + λ L_eRR

Before a method that has a table of each user's own beside the common one, FedRAP, `plgc-tables` chooses which tables
these are (Section IV-D: V^g is not updated "unless the applied backbone defines the local updating" for it):

    own     V^l in the place of the common table, V = V^p + D_u of FedRAP
    base    V^l = D_u and V^g = C, both trained, V = V^p = μ D_u + (1 - μ) C; eRR has a gradient for both

eRR reads V^l and V^g as they are before the mixing ("the original embedding vectors", Section IV-C), never V^p.

A user that trains for the first time starts from V^l = V^g. μ says which table converges faster and is a constant of
the gradient, unless `plgc-learn-through-mu` is on. Projector and predictor are d → d → d each, with batch statistics;
they have no biases, because the statistics of the next layer would take every bias out again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bouquet.arrays import ArraySpec
from bouquet.config import Options, RunConfig
from bouquet.methods.plgc import PLGCOptions
from client_app.personalization import fedrap_compiled
from client_app.personalization.base import Personalization
from client_app.personalization.columns import correlated
from client_app.personalization.fedrap_compiled import Mixture
from client_app.personalization.plgc_alternatives import ALTERNATIVES
from client_app.personalization.plgc_compiled import train
from client_app.personalization.plgc_redundancy import NETWORKS, reduced, redundancy_and_slopes, represented
from client_app.personalization.round import (
    GLOBAL,
    PERSONAL,
    SHARE,
    Batch,
    Changes,
    Given,
    OwnArrays,
    Pull,
    Tensors,
    Working,
)
from models import Backbone

if TYPE_CHECKING:
    from client_app.training.task import LocalTask


def mixing_coefficient(local: Tensor, global_: Tensor) -> Tensor:
    """μ = tr(G^l) / (tr(G^l) + tr(G^g)), the trace of a Gram matrix being a sum of squares (eq. 14, 15).

    Args:
        local, global_: [m, d].
    Returns:
        A scalar in [0, 1]; ½ if both tables are zero.
    """
    return _share(local.square().sum(), global_.square().sum())


def cross_correlation(a: Tensor, b: Tensor) -> Tensor:
    """R_jk = Σ_b A_bj B_bk / (√Σ_b A_bj² √Σ_b B_bk²) of standardised columns (eq. 18).

    Args:
        a, b: [b, d] representations of the same b samples in two views.
    Returns:
        [d, d] in [-1, 1]; 0 where a column is constant.
    """
    return correlated(a[None], b[None], torch.ones(1, len(a), dtype=a.dtype, device=a.device))[0]


def redundancy_loss(correlation: Tensor, off_diagonal_weight: float) -> Tensor:
    """Σ_j (1 - R_jj)² + κ Σ_{j≠k} R_jk² (eq. 19) of R [d, d]; κ is `off_diagonal_weight`."""
    return reduced(correlation[None], off_diagonal_weight)[0]


def _share(local: Tensor, global_: Tensor) -> Tensor:
    total = local + global_
    return torch.where(total > 0, local / torch.where(total > 0, total, 1), 0.5)


class LocalGlobalCollaboration(Personalization):
    """Each user has an item table of its own and sees it mixed with the common one."""

    options: PLGCOptions

    def __init__(self, backbone: Backbone, config: RunConfig, options: Options) -> None:
        super().__init__(backbone, config, options)
        self.table = next(name for name, spec in backbone.shared.items() if spec.by_item)
        mixing, self.of_base = self.options.plgc_mixing, self.options.plgc_tables == "base"
        # The names of V^l and V^g.
        self.local, self.common = (PERSONAL, self.table) if self.of_base else (self.table, GLOBAL)
        self.norms_of = (self.local, self.common) if mixing == "ntk" else ()
        if not self.of_base:
            self.fixed = {GLOBAL: backbone.shared[self.table]}
            self.kept = frozenset() if mixing == "none" else frozenset({self.table})
        rate, size = self.options.plgc_learning_rate, config.embedding_size
        self.rates = {self.table: rate} if rate > 0 else {}
        if self.options.plgc_redundancy == "err":
            self.private = {
                name: ArraySpec((size, size), "normal", math.sqrt((2 if name.endswith("1") else 1) / size))
                for name in NETWORKS
            }

    def _mixture(self) -> Mixture | None:
        """What the method makes of the base method's own two tables; None: what compiled loops do not know."""
        options = self.options
        if options.plgc_learn_through_mu or (options.plgc_redundancy in ALTERNATIVES and options.weight > 0):
            return None
        weights = {"ntk": (-1.0, 0.0), "half": (0.5, 0.5), "local": (1.0, 0.0), "none": (1.0, 1.0)}
        if options.plgc_redundancy != "err" or options.weight == 0:
            return Mixture(weights[options.plgc_mixing])
        return Mixture(weights[options.plgc_mixing], NETWORKS, options.weight, options.plgc_kappa)

    def start(self, given: Given, personal: OwnArrays, first: NDArray[np.bool_]) -> Given:
        """V^l is what the user's last training left, V^g what the server sent."""
        if self.of_base:
            return given
        common = given.shared[self.table]
        given = replace(given, frozen={**given.frozen, GLOBAL: common})
        if self.options.plgc_mixing == "none":
            return given
        local = given.own[self.table]
        if first.any():
            local = local.copy()
            local[first] = common
        return given.with_own(self.table, local, reported=True)

    def view(self, arrays: Tensors, working: Working) -> Tensors:
        """V^p = μ V^l + (1 - μ) V^g (eq. 16)."""
        share = self._mu(arrays, working)
        if share is None:
            return arrays
        if self.of_base:
            return {**arrays, SHARE: share}
        return {**arrays, self.table: share * arrays[self.local] + (1 - share) * arrays[self.common]}

    def two_views(self, arrays: Tensors, seen: Tensors) -> tuple[Tensor, Tensor]:
        return arrays[self.common], arrays[self.local]

    def penalty(self, arrays: Tensors, seen: Tensors, batch: Batch, working: Working) -> Tensor | None:
        """λ L_eRR (eq. 22), or what stands in its place."""
        options = self.options
        if options.weight == 0:
            return None
        local, common = batch.pick(arrays[self.local]), batch.pick(arrays[self.common])
        if options.plgc_redundancy != "err":
            return options.weight * ALTERNATIVES[options.plgc_redundancy].loss(local, common, batch.samples)
        own, shared = (represented(table, arrays, batch.samples) for table in (local, common))
        return options.weight * reduced(correlated(own, shared, batch.samples), options.plgc_kappa)

    def forward(self, arrays: Tensors, batch: Batch, working: Working) -> tuple[Tensors, Pull] | None:
        """The gradient of V^p passes to V^l with the factor μ; those of eRR and its alternatives stand with them.

        The alternatives' are of V^l alone: where V^g is trained too it is autograd's.
        """
        options, kind = self.options, self.options.plgc_redundancy
        if options.plgc_learn_through_mu or (kind in ALTERNATIVES and self.of_base):
            return None
        local, common, share = arrays[self.local], arrays[self.common], self._mu(arrays, working)
        seen: Tensors = arrays
        if share is not None:
            mixed = {SHARE: share} if self.of_base else {self.table: torch.lerp(common, local, share)}
            seen = {**arrays, **mixed}

        def pull(gradients: dict[str, Tensor]) -> dict[str, Tensor]:
            found = dict(gradients)
            if share is not None and not self.of_base:
                found[self.table] = found[self.table] * share
            if kind in ALTERNATIVES and options.weight > 0:
                slope = ALTERNATIVES[kind].slope(local, common, batch.samples)
                found[self.local] = slope.mul_(options.weight).add_(found[self.local])
            if kind == "err" and options.weight > 0:
                beside = (arrays, batch.samples, options.weight, options.plgc_kappa)
                of_local, of_networks = redundancy_and_slopes(local, common, *beside)
                found[self.local] = found[self.local] + of_local
                if self.of_base:  # R of exchanged views is Rᵀ, and eq. 19 is the same of it
                    found[self.common] = found[self.common] + redundancy_and_slopes(common, local, *beside)[0]
                found |= of_networks
            return found

        return seen, pull

    def compiled(self, task: LocalTask) -> Iterator[Changes] | None:  # type: ignore[override]
        if not self.of_base:
            return train(self.options, self.table, task)
        mixture = self._mixture()
        return None if mixture is None else fedrap_compiled.train(self.table, mixture, task)

    def _mu(self, arrays: Tensors, working: Working) -> Tensor | None:
        """[k, 1, 1] μ over the whole tables: the rows that are worked on, and the others (eq. 15); None: no mixing."""
        local, common = arrays[self.local], arrays[self.common]
        if self.options.plgc_mixing == "none" or (self.options.plgc_mixing == "local" and not self.of_base):
            return None
        if self.options.plgc_mixing in ("half", "local"):
            share = 0.5 if self.options.plgc_mixing == "half" else 1.0
            return torch.full((len(local), 1, 1), share, dtype=local.dtype, device=local.device)
        if not self.options.plgc_learn_through_mu:
            local, common = local.detach(), common.detach()
        traces = [
            table.square().sum(dim=(1, 2)) + working.outside[name]
            for name, table in ((self.local, local), (self.common, common))
        ]  # fmt: skip
        return _share(*traces)[:, None, None]
