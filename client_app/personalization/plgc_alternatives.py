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
from torch import Tensor

from client_app.personalization.columns import column_shares, correlated, standardised, through
from client_app.personalization.directions import (
    LEAST,
    attended,
    contrast,
    contrast_slope,
    directions,
    of_rows,
    shares,
)

# Wang and Isola's exponent of the Gaussian potential.
POTENTIAL = 2.0


def alignment_and_uniformity(local: Tensor, common: Tensor, weights: Tensor) -> Tensor:
    """[k] mean ‖a_i - g_i‖² + ½ Σ over views of log mean_ij exp(-2 ‖x_i - x_j‖²)."""
    share = shares(weights)
    first, second = directions(local), directions(common)
    alignment = (share * (first - second).square().sum(dim=2)).sum(dim=1)
    return alignment + 0.5 * (_uniformity(first, share) + _uniformity(second, share))


def alignment_and_uniformity_slope(local: Tensor, common: Tensor, weights: Tensor) -> Tensor:
    """∂/∂a_i = s_i (2 (a_i - g_i) + 4 Σ_j s_j e_ij a_j / Σ_ij s_i s_j e_ij) with e_ij = exp(4 a_i·a_j).

    -2 ‖a_i - a_j‖² = 4 a_i·a_j - 4, and the constant is in both sums.
    """
    share = shares(weights)
    first, second = directions(local), directions(common)
    near, total = attended(first, first, share, 2 * POTENTIAL)
    mean = (share * total).sum(dim=1).clamp(min=LEAST)
    slope = (first - second).mul_(2).add_(near * (2 * POTENTIAL / mean)[:, None, None])
    return of_rows(slope.mul_(share.unsqueeze(2)), local, first)


def decorrelation(local: Tensor, common: Tensor, weights: Tensor) -> Tensor:
    """[k] ‖K‖_F² / d² with K the correlation matrix of the local rows."""
    return correlated(local, local, weights).square().mean(dim=(1, 2))


def decorrelation_slope(local: Tensor, common: Tensor, weights: Tensor) -> Tensor:
    """∂/∂Â = 4 S Â K / d² with K = Âᵀ S Â, Â the standardised columns and S the shares."""
    share = column_shares(weights)
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


def _uniformity(directions: Tensor, share: Tensor) -> Tensor:
    """log mean_ij exp(-2 ‖x_i - x_j‖²) over pairs of samples, a sample with itself among them."""
    apart = (2 - 2 * torch.bmm(directions, directions.transpose(1, 2))).clamp(min=0)
    mean = torch.bmm(torch.bmm(share.unsqueeze(1), (-POTENTIAL * apart).exp()), share.unsqueeze(2))
    return mean.clamp(min=LEAST).flatten().log()
