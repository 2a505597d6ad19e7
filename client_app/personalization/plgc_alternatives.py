"""What PLGC's Table III puts in the place of redundancy reduction, each with its gradient by hand.

    AU          Wang and Isola (2020)   alignment of the two views of an item, and uniformity of each of them
    DuoRec      Qiu et al. (2022)       contrastive: an item's global row against those of the other samples
    FedDecorr   Shi et al. (2023)       the squared Frobenius norm of the local rows' correlation matrix

All read the rows of a batch's samples in the local and the global table: local, common [k, b, d], weights [k, b], how
often each row stands in the batch. The first two work on directions a = l / ‖l‖, and g of the common rows; s is a row's
share of the samples. Gradients are those of the local rows, [k, b, d]; for users without samples they are anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from client_app.personalization.plgc_redundancy import correlated, standardised, through

# Wang and Isola's exponent of the Gaussian potential; the temperature of a contrastive softmax.
POTENTIAL, TEMPERATURE = 2.0, 1.0

_SHORTEST = 1e-8
_LEAST = 1e-30
# Pairs of samples of one block: on a processor they stay in its second-level cache.
_PAIRS, _GPU_PAIRS = 2**17, 2**27


def alignment_and_uniformity(local: Tensor, common: Tensor, weights: Tensor) -> Tensor:
    """[k] mean ‖a_i - g_i‖² + ½ Σ over views of log mean_ij exp(-2 ‖x_i - x_j‖²)."""
    share = _share(weights)
    first, second = _directions(local), _directions(common)
    alignment = (share * (first - second).square().sum(dim=2)).sum(dim=1)
    return alignment + 0.5 * (_uniformity(first, share) + _uniformity(second, share))


def alignment_and_uniformity_slope(local: Tensor, common: Tensor, weights: Tensor) -> Tensor:
    """∂/∂a_i = s_i (2 (a_i - g_i) + 4 Σ_j s_j e_ij a_j / Σ_ij s_i s_j e_ij) with e_ij = exp(4 a_i·a_j).

    -2 ‖a_i - a_j‖² = 4 a_i·a_j - 4, and the constant is in both sums.
    """
    share = _share(weights)
    first, second = _directions(local), _directions(common)
    near, total = _attended(first, first, share, 2 * POTENTIAL)
    mean = (share * total).sum(dim=1).clamp(min=_LEAST)
    slope = (first - second).mul_(2).add_(near * (2 * POTENTIAL / mean)[:, None, None])
    return _of_rows(slope.mul_(share.unsqueeze(2)), local, first)


def contrast(local: Tensor, common: Tensor, weights: Tensor) -> Tensor:
    """[k] mean_i - log (exp(a_i·g_i) / mean_j exp(a_i·g_j)) over the samples."""
    share = _share(weights)
    similarity = torch.bmm(_directions(local), _directions(common).transpose(1, 2)) / TEMPERATURE
    others = (similarity.exp() * share.unsqueeze(1)).sum(dim=2).clamp(min=_LEAST).log()
    return (share * (others - torch.diagonal(similarity, dim1=1, dim2=2))).sum(dim=1)


def contrast_slope(local: Tensor, common: Tensor, weights: Tensor) -> Tensor:
    """∂/∂a_i = s_i (Σ_j s_j e_ij g_j / Σ_j s_j e_ij - g_i) with e_ij = exp(a_i·g_j)."""
    share = _share(weights)
    first, second = _directions(local), _directions(common)
    near, total = _attended(first, second, share, 1 / TEMPERATURE)
    slope = near.div_(total.clamp(min=_LEAST).unsqueeze(2)).sub_(second).mul_(share.unsqueeze(2) / TEMPERATURE)
    return _of_rows(slope, local, first)


def decorrelation(local: Tensor, common: Tensor, weights: Tensor) -> Tensor:
    """[k] ‖K‖_F² / d² with K the correlation matrix of the local rows."""
    return correlated(local, local, weights).square().mean(dim=(1, 2))


def decorrelation_slope(local: Tensor, common: Tensor, weights: Tensor) -> Tensor:
    """∂/∂Â = 4 S Â K / d² with K = Âᵀ S Â, Â the standardised columns and S the shares."""
    share = _share(weights).unsqueeze(1)
    column, inverse = standardised(local.clone(), share, 0.0)
    weighted = column * share.transpose(1, 2)
    correlation = torch.bmm(weighted.transpose(1, 2), column)
    return through(torch.bmm(weighted, correlation).mul_(4 / local.shape[2] ** 2), column, inverse, share)


class Alternative(NamedTuple):
    """A loss of each user, [k], and its gradient at the local rows."""

    loss: Callable[[Tensor, Tensor, Tensor], Tensor]
    slope: Callable[[Tensor, Tensor, Tensor], Tensor]


ALTERNATIVES: dict[str, Alternative] = {
    "au": Alternative(alignment_and_uniformity, alignment_and_uniformity_slope),
    "duorec": Alternative(contrast, contrast_slope),
    "feddecorr": Alternative(decorrelation, decorrelation_slope),
}


def _share(weights: Tensor) -> Tensor:
    return weights / weights.sum(dim=1, keepdim=True).clamp(min=1)


def _directions(rows: Tensor) -> Tensor:
    return F.normalize(rows, dim=2, eps=_SHORTEST)


def _of_rows(slope: Tensor, rows: Tensor, directions: Tensor) -> Tensor:
    """From the gradient of directions to that of rows: what is along a row does not turn it."""
    lengths = rows.norm(dim=2, keepdim=True)
    along = (slope * directions).sum(dim=2, keepdim=True).mul_(lengths > _SHORTEST)
    return slope.sub_(along * directions).div_(lengths.clamp(min=_SHORTEST))


def _attended(queries: Tensor, keys: Tensor, share: Tensor, sharpness: float) -> tuple[Tensor, Tensor]:
    """Σ_j s_j e_ij k_j, [k, b, d], and Σ_j s_j e_ij, [k, b], with e_ij = exp(sharpness q_i·k_j)."""
    count, rows, size = queries.shape
    # The sum itself comes of one more column.
    values = torch.cat([keys, keys.new_ones(count, rows, 1)], dim=2).mul_(share.unsqueeze(2))
    across = (sharpness * keys).transpose(1, 2)
    found = queries.new_empty(count, rows, size + 1)
    at_once = max(1, (_PAIRS if queries.device.type == "cpu" else _GPU_PAIRS) // max(count * rows, 1))
    for start in range(0, rows, at_once):
        block = slice(start, start + at_once)
        found[:, block] = torch.bmm(torch.bmm(queries[:, block], across).exp_(), values)
    return found[:, :, :size], found[:, :, size]


def _uniformity(directions: Tensor, share: Tensor) -> Tensor:
    """log mean_ij exp(-2 ‖x_i - x_j‖²) over pairs of samples, a sample with itself among them."""
    apart = (2 - 2 * torch.bmm(directions, directions.transpose(1, 2))).clamp(min=0)
    mean = torch.bmm(torch.bmm(share.unsqueeze(1), (-POTENTIAL * apart).exp()), share.unsqueeze(2))
    return mean.clamp(min=_LEAST).flatten().log()
