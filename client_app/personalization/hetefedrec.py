"""The device side of HeteFedRec (Yuan et al., 2023): decorrelation of the columns of the whole item table.

    L_reg(V) = (1/N) ‖corr(V)‖_F    eq. 13, added α times to the loss of all groups but the smallest (eq. 14)

With X the centred table, s_j the norm of its column j, Z = X diag(1/s) and C = corr(V) = ZᵀZ (N by N), the gradient is

    ∂‖C‖_F/∂V = (2 / ‖C‖_F) Z (C - diag(C²)) diag(1/s),

so nothing is ever larger than the table, and no product has a side of m twice. Leaving the diagonal out, with
O = C - I in place of C: ∂‖O‖_F/∂V = (2 / ‖O‖_F) Z (O - diag(C O)) diag(1/s).

The dual task (eq. 11) is a backbone, `models.NestedBackbone`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bouquet.config import Options, RunConfig
from bouquet.methods.hetefedrec import HeteFedRecOptions
from client_app.personalization.base import Personalization
from client_app.personalization.round import Batch, Changes, Pull, Tensors, Working
from client_app.training.compiled_ncf import fits_ncf, train_ncf
from client_app.training.compiler import ncf_kernels
from models import Backbone

if TYPE_CHECKING:
    from client_app.training.task import LocalTask

# A column that does not vary correlates with nothing; its norm is what rounding leaves.
_LEAST_NORM = 1e-12


class Decorrelation(Personalization):
    """Keeps the columns of a large table from saying all the same."""

    options: HeteFedRecOptions

    def __init__(self, backbone: Backbone, config: RunConfig, options: Options) -> None:
        super().__init__(backbone, config, options)
        self._table = next(name for name, spec in backbone.shared.items() if spec.by_item)

    @property
    def in_loss(self) -> bool:
        return self.options.alpha > 0 and self.backbone.shared[self._table].shape[1] > self.options.widths[0]

    @property
    def whole_table(self) -> bool:  # type: ignore[override]
        return self.in_loss

    def compiled(self, task: LocalTask) -> Iterator[Changes] | None:  # type: ignore[override]
        code = ncf_kernels()
        if code is None or not fits_ncf(task):
            return None
        return train_ncf(task, code, self.options.alpha, self.options.hetefedrec_off_diagonal)

    def penalty(self, arrays: Tensors, seen: Tensors, batch: Batch, working: Working) -> Tensor:
        return self.options.alpha * decorrelation(arrays[self._table], self.options.hetefedrec_off_diagonal)

    def forward(self, arrays: Tensors, batch: Batch, working: Working) -> tuple[Tensors, Pull] | None:
        """The model sees the table as it is; on the way back the slope of the penalty is added."""

        def pull(gradients: dict[str, Tensor]) -> dict[str, Tensor]:
            slope = decorrelation_slope(arrays[self._table], self.options.hetefedrec_off_diagonal)
            return {**gradients, self._table: gradients[self._table].add(slope, alpha=self.options.alpha)}

        return arrays, pull


def decorrelation(tables: Tensor, off_diagonal: bool = False) -> Tensor:
    """L_reg of each table (eq. 13): [k, m, N] -> [k]."""
    correlation = _correlations(tables)[0]
    if off_diagonal:
        correlation = correlation - torch.diag_embed(torch.diagonal(correlation, dim1=1, dim2=2))
    return correlation.flatten(1).norm(dim=1) / tables.shape[2]


def decorrelation_slope(tables: Tensor, off_diagonal: bool = False) -> Tensor:
    """∂L_reg/∂V of each table: [k, m, N] -> [k, m, N]; 0 where it is not defined."""
    correlation, inverse, means = _correlations(tables)
    counted = correlation
    if off_diagonal:
        counted = correlation - torch.diag_embed(torch.diagonal(correlation, dim1=1, dim2=2))
    norm = counted.flatten(1).norm(dim=1)
    inner = counted - torch.diag_embed((correlation * counted).sum(dim=2))
    scale = torch.where(norm > _LEAST_NORM, 2 / (norm * tables.shape[2]), torch.zeros_like(norm))
    product = inverse.unsqueeze(2) * inner * inverse.unsqueeze(1) * scale.reshape(-1, 1, 1)
    return torch.baddbmm(-torch.bmm(means, product), tables, product)


def _correlations(tables: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pearson correlations of the columns [k, N, N], 1 / s [k, N], and the mean rows [k, 1, N]."""
    means = tables.mean(dim=1, keepdim=True)
    centred = tables - means
    gram = torch.bmm(centred.transpose(1, 2), centred)
    norms = torch.diagonal(gram, dim1=1, dim2=2).clamp(min=0).sqrt()
    inverse = torch.where(norms > _LEAST_NORM, 1 / norms.clamp(min=_LEAST_NORM), torch.zeros_like(norms))
    return gram * inverse.unsqueeze(1) * inverse.unsqueeze(2), inverse, means
