"""The device side of Fed3CR (Mi et al.): consistency- and complementarity-aware consensus enhancement.

    prototypes        eq. 10       p^G and p^P, the mean rows of the user's items in C and in V_u
    transfer matrix   eq. 9        W_u = F_θ([p^G, p^P]), in `transfer`
    enhanced table    eq. 11       c^E_i = W_u c_i
    fused table       eq. 12       V^F = C^E + V_u, what the backbone sees
    consistency       eq. 15, 16   both views shall rank the items alike
    complementarity   eq. 17, 18   both views shall be orthogonal
    loss              eq. 19       L_rec + β_a L_a + β_o L_o

Eq. 15 as printed divides cosines by their sum, which can be zero or negative; ListNet, which it cites, has a softmax,
and so have we. Eq. 18 is in `fed3cr_orthogonality`, in three forms. `ace` has the enhancement alone, for other methods,
and `fed3cr_alternatives` what stands in the place of the constraints in Figure 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bouquet.arrays import Array, ArraySpec
from bouquet.config import Options, RunConfig
from bouquet.methods.fed3cr import Fed3CROptions
from client_app.personalization.ace_network import TransferNetwork
from client_app.personalization.base import Personalization
from client_app.personalization.enhanced_sum_compiled import train_fed3cr
from client_app.personalization.fed3cr_alternatives import COMPLEMENTARITY, CONSISTENCY, add_alternative
from client_app.personalization.fed3cr_compiled import train
from client_app.personalization.fed3cr_orthogonality import (
    add_cosine_slopes,
    add_slopes,
    complementarity,
    cosine_complementarity,
)
from client_app.personalization.round import PERSONAL, Batch, Changes, Given, Pull, Tensors, Working
from client_app.personalization.summed import scores_of_sum
from models import Backbone

if TYPE_CHECKING:
    from client_app.training.task import LocalTask

ENHANCED, OWN, CENTRE = "fed3cr/enhanced", "fed3cr/own", "fed3cr/enhanced prototype"

# Rows shorter than this have no direction.
_TINY = 1e-8


def consistency_loss(
    personal: Tensor, enhanced: Tensor, personal_prototype: Tensor, enhanced_prototype: Tensor
) -> Tensor:
    """The symmetric cross-entropy of two rankings of all items (eq. 16).

    P_i = softmax_i(cos(prototype, row_i)) in each view; L_a = - ½ Σ P^P log P^E - ½ Σ P^E log P^P.

    Args:
        personal, enhanced: [m, d] the two views of the items.
        personal_prototype, enhanced_prototype: [d] what the user likes in each of them.
    Returns:
        A scalar, at least log m less the divergence of the views: the entropy of the rankings stays in it.
    """
    views = (personal[None], enhanced[None], personal_prototype[None], enhanced_prototype[None])
    return _consistency(*views, torch.ones(1, len(personal), dtype=torch.bool, device=personal.device))[0]


class EnhancedConsensus(Personalization):
    """Each user adds a table of its own to a consensus that it has turned its way."""

    options: Fed3CROptions

    def __init__(self, backbone: Backbone, config: RunConfig, options: Options) -> None:
        super().__init__(backbone, config, options)
        self.table = next(name for name, spec in backbone.shared.items() if spec.by_item)
        spec, size = backbone.shared[self.table], config.embedding_size
        self.private = {PERSONAL: ArraySpec(spec.shape, spec.init, spec.scale, by_item=True)}
        rate = self.options.ace_learning_rate or config.learning_rate
        self.rates = {PERSONAL: self.options.fed3cr_personal_learning_rate or config.learning_rate}
        self.network: TransferNetwork | None = None
        if self.options.fed3cr_enhancement == "ace":
            self.network = TransferNetwork(size, self.options, config.learning_rate)
            self.shared = self.network.specs
        elif self.options.fed3cr_enhancement != "none":
            # The departure from the identity, so that decay and averages pull towards doing nothing.
            self.shared = {"transfer_matrix": ArraySpec((size, size), "zeros")}
        self.rates |= dict.fromkeys(self.shared, rate)

    @property
    def reads_history(self) -> bool:  # type: ignore[override]
        """Only the matrix that is made for a user is made from its prototypes."""
        return self.network is not None

    @property
    def whole_table(self) -> bool:  # type: ignore[override]
        ranked = self.options.fed3cr_beta_a > 0 and self.options.fed3cr_consistency == "ranking"
        return ranked or (self.options.fed3cr_beta_o > 0 and self.options.fed3cr_complementarity not in COMPLEMENTARITY)

    @property
    def fewer_rows(self) -> str:  # type: ignore[override]
        """The constraints of Figure 4, which look at samples."""
        return "constraints over samples (fed3cr-consistency, fed3cr-complementarity)" if self.whole_table else ""

    @property
    def by_rows(self) -> frozenset[str]:  # type: ignore[override]
        """A user's own table, where no constraint moves all of it."""
        return frozenset() if self.whole_table else frozenset({PERSONAL})

    @property
    def only_sum(self) -> bool:  # type: ignore[override]
        """Neither ACE nor constraints: V^F = C + V_u, which is FedRAP's model without its two terms."""
        return self._added and self.options.fed3cr_beta_a == self.options.fed3cr_beta_o == 0

    @property
    def _added(self) -> bool:
        return self.options.fed3cr_enhancement == "none"

    def view(self, arrays: Tensors, working: Working) -> Tensors:
        """V^F = C^E + V_u (eq. 9 to 12)."""
        consensus, own = arrays[self.table], arrays[PERSONAL]
        centre = centres(consensus, working)
        enhanced = consensus
        if self.network is not None:
            matrix = self.network.matrices(arrays, torch.cat([centre, centres(own, working)], dim=1))
            enhanced, centre = turned(consensus, matrix), turned(centre.unsqueeze(1), matrix).squeeze(1)
        elif self.options.fed3cr_enhancement != "none":
            matrix = arrays["transfer_matrix"] + torch.eye(own.shape[2], dtype=own.dtype, device=own.device)
            enhanced, centre = turned(consensus, matrix), turned(centre.unsqueeze(1), matrix).squeeze(1)
            own = turned(own, matrix) if self.options.fed3cr_enhancement == "unified" else own
        return {**arrays, ENHANCED: enhanced, OWN: own, CENTRE: centre, self.table: enhanced + own}

    def scores(self, given: Given) -> Callable[[NDArray[np.int64]], Array] | None:
        return scores_of_sum(given, self.table) if self._added else None

    def two_views(self, arrays: Tensors, seen: Tensors) -> tuple[Tensor, Tensor]:
        return seen[ENHANCED], seen[OWN]

    def penalty(self, arrays: Tensors, seen: Tensors, batch: Batch, working: Working) -> Tensor:
        """β_a L_a + β_o L_o (eq. 19)."""
        options, enhanced, own = self.options, seen[ENHANCED], seen[OWN]
        total = torch.zeros(len(own), dtype=own.dtype, device=own.device)
        if options.fed3cr_beta_a > 0 and (other := CONSISTENCY.get(options.fed3cr_consistency)):
            total = total + options.fed3cr_beta_a * other.loss(batch.pick(enhanced), batch.pick(own), batch.samples)
        elif options.fed3cr_beta_a > 0:
            views = (own, enhanced, centres(own, working), seen[CENTRE])
            total = total + options.fed3cr_beta_a * _consistency(*views, working.valid)
        if options.fed3cr_beta_o > 0 and (other := COMPLEMENTARITY.get(options.fed3cr_complementarity)):
            total = total + options.fed3cr_beta_o * other.loss(batch.pick(enhanced), batch.pick(own), batch.samples)
        elif options.fed3cr_beta_o > 0 and self._cosines:
            total = total + options.fed3cr_beta_o * cosine_complementarity(enhanced, own)
        elif options.fed3cr_beta_o > 0:
            total = total + options.fed3cr_beta_o * complementarity(enhanced, own, self._items(working, own))
        return total

    @property
    def _cosines(self) -> bool:
        return self.options.fed3cr_complementarity == "cosines"

    def _items(self, working: Working, like: Tensor) -> Tensor:
        """[k] what E is divided by; all rows are worked on."""
        items = working.valid.sum(dim=1).to(like).clamp(min=1)
        return torch.ones_like(items) if self.options.fed3cr_literal_scale else items

    def compiled(self, task: LocalTask) -> Iterator[Changes] | None:  # type: ignore[override]
        kind = train if self.whole_table else train_fed3cr
        return kind(self.options, self.table, self.network, task)

    def forward(self, arrays: Tensors, batch: Batch, working: Working) -> tuple[Tensors, Pull] | None:
        """One pass over the tables for each loss; the transfer network by backpropagation of one row per user."""
        if self.network is None and self.options.fed3cr_enhancement != "none":
            return None
        return _forward(self, arrays, batch, working)


def centres(table: Tensor, working: Working) -> Tensor:
    """[k, d] the prototypes of k users in tables [k, R, d] (eq. 10)."""
    count = working.positive.sum(dim=1, keepdim=True).clamp(min=1)
    return torch.bmm((working.positive / count).unsqueeze(1), table).squeeze(1)


def turned(table: Tensor, matrix: Tensor) -> Tensor:
    """c^E_i = W c_i for all rows (eq. 11): [k, R, d]."""
    return torch.bmm(table, matrix.transpose(1, 2))


def _consistency(personal: Tensor, enhanced: Tensor, own_centre: Tensor, centre: Tensor, valid: Tensor) -> Tensor:
    """`consistency_loss` of k users: [k]."""
    p = _log_ranking(personal, own_centre, valid)
    e = _log_ranking(enhanced, centre, valid)
    cross = p.exp() * e + e.exp() * p
    return -0.5 * torch.where(valid, cross, torch.zeros_like(cross)).sum(dim=1)


def _log_ranking(table: Tensor, centre: Tensor, valid: Tensor) -> Tensor:
    """[k, R] log P: the logarithm of the top-one probability of each row (eq. 15)."""
    rows = table.square().sum(dim=2).clamp(min=_TINY**2).sqrt()
    length = centre.square().sum(dim=1, keepdim=True).clamp(min=_TINY**2).sqrt()
    cosines = torch.bmm(table, (centre / length).unsqueeze(2)).squeeze(2) / rows
    return cosines.masked_fill(~valid, -1e9).log_softmax(dim=1)


def _forward(method: EnhancedConsensus, arrays: Tensors, batch: Batch, working: Working) -> tuple[Tensors, Pull]:
    """Eq. 9 to 19 with their gradients by hand.

    With P, Q the rankings of the own and the enhanced view, and s, t their cosines:
        ∂L_a/∂s = - ½ P (log Q - Σ P log Q) - ½ (Q - P),    and the same for t with P and Q exchanged
        ∂cos(p, v_i)/∂v_i = (p̂ - s_i v̂_i) / ‖v_i‖,         ∂s_i/∂p = (v̂_i - s_i p̂) / ‖p‖
    """
    options, network, table = method.options, method.network, method.table
    consensus, own = arrays[table], arrays[PERSONAL]
    share = working.positive / working.positive.sum(dim=1, keepdim=True).clamp(min=1)
    centre, own_centre = centres(consensus, working), centres(own, working)
    matrix: Tensor | None = None
    enhanced, enhanced_centre = consensus, centre
    if network is not None:
        matrix, back = network.forward(arrays, torch.cat([centre, own_centre], dim=1))
        enhanced = turned(consensus, matrix)
        enhanced_centre = torch.bmm(matrix, centre.unsqueeze(2)).squeeze(2)
    seen = {**arrays, table: enhanced + own}

    def pull(gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        of_enhanced, of_own = gradients[table], gradients[table].clone()
        of_centre, of_own_centre = torch.zeros_like(centre), torch.zeros_like(own_centre)
        if options.fed3cr_beta_a > 0 and (other := CONSISTENCY.get(options.fed3cr_consistency)):
            add_alternative(other, options.fed3cr_beta_a, enhanced, own, batch.samples, of_enhanced, of_own)
        elif options.fed3cr_beta_a > 0:
            first = _Cosines(own, own_centre, working.valid)
            second = _Cosines(enhanced, enhanced_centre, working.valid)
            of_own_centre += first.add_slope(options.fed3cr_beta_a, second, of_own)
            of_centre += second.add_slope(options.fed3cr_beta_a, first, of_enhanced)
        if options.fed3cr_beta_o > 0 and (other := COMPLEMENTARITY.get(options.fed3cr_complementarity)):
            add_alternative(other, options.fed3cr_beta_o, enhanced, own, batch.samples, of_enhanced, of_own)
        elif options.fed3cr_beta_o > 0 and method._cosines:
            add_cosine_slopes(options.fed3cr_beta_o, enhanced, own, of_enhanced, of_own)
        elif options.fed3cr_beta_o > 0:
            add_slopes(options.fed3cr_beta_o, enhanced, own, method._items(working, own), of_enhanced, of_own)
        found = dict(gradients)
        of_consensus = of_enhanced
        if matrix is not None:
            of_consensus = torch.bmm(of_enhanced, matrix)
            of_matrix = torch.bmm(of_enhanced.transpose(1, 2), consensus)
            of_matrix += of_centre.unsqueeze(2) * centre.unsqueeze(1)
            of_prototypes, of_network = back(of_matrix)
            found |= of_network
            size = centre.shape[1]
            of_centre = torch.bmm(of_centre.unsqueeze(1), matrix).squeeze(1) + of_prototypes[:, :size]
            of_own_centre = of_own_centre + of_prototypes[:, size:]
        of_consensus.baddbmm_(share.unsqueeze(2), of_centre.unsqueeze(1))
        of_own.baddbmm_(share.unsqueeze(2), of_own_centre.unsqueeze(1))
        return {**found, table: of_consensus, PERSONAL: of_own}

    return seen, pull


class _Cosines:
    """One view of eq. 15: the cosines of all rows with a prototype, and the ranking that they make."""

    def __init__(self, table: Tensor, centre: Tensor, valid: Tensor) -> None:
        self.table = table
        # Columns are contiguous: adding them up is several times faster than a norm along the rows.
        self.rows = table.square().sum(dim=2).sqrt_().clamp_(min=_TINY)
        self.length = torch.linalg.vector_norm(centre, dim=1, keepdim=True).clamp(min=_TINY)
        self.direction = centre / self.length
        self.cosines = torch.bmm(table, self.direction.unsqueeze(2)).squeeze(2).div_(self.rows)
        self.log = self.cosines.masked_fill(~valid, -1e9).log_softmax(dim=1)
        self.ranking = self.log.exp()

    def add_slope(self, weight: float, other: _Cosines, gradient: Tensor) -> Tensor:
        """Add β_a ∂L_a/∂table to `gradient`; returns β_a ∂L_a/∂prototype, [k, d]."""
        log = other.log.clamp(min=-1e6)
        mean = (self.ranking * log).sum(dim=1, keepdim=True)
        slope = (self.ranking * (log - mean) + other.ranking - self.ranking).mul_(-0.5 * weight)
        per_row = slope / self.rows
        gradient.baddbmm_(per_row.unsqueeze(2), self.direction.unsqueeze(1))
        along = slope * self.cosines
        gradient.addcmul_((along / self.rows.square()).unsqueeze(2), self.table, value=-1)
        towards = torch.bmm(per_row.unsqueeze(1), self.table).squeeze(1)
        return (towards - along.sum(dim=1, keepdim=True) * self.direction) / self.length
