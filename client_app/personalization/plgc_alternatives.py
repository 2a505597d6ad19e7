"""What PLGC's Table III puts in the place of redundancy reduction.

    AU          Wang and Isola (2020)   alignment of the two views of an item, and uniformity of each of them
    DuoRec      Qiu et al. (2022)       contrastive: an item's global row against those of the other samples
    FedDecorr   Shi et al. (2023)       the squared Frobenius norm of the local rows' correlation matrix

All read the rows of a batch's samples in the local and the global table: local, common [k, b, d], weights [k, b], how
often each row stands in the batch. The first two work on directions.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from client_app.personalization.plgc_redundancy import correlated

# Wang and Isola's exponent of the Gaussian potential; the temperature of a contrastive softmax.
POTENTIAL, TEMPERATURE = 2.0, 1.0


def alignment_and_uniformity(local: Tensor, common: Tensor, weights: Tensor) -> Tensor:
    """[k] mean ‖l_i - g_i‖² + ½ Σ over views of log mean_ij exp(-2 ‖x_i - x_j‖²)."""
    share = _share(weights)
    first, second = F.normalize(local, dim=2, eps=1e-8), F.normalize(common, dim=2, eps=1e-8)
    alignment = (share * (first - second).square().sum(dim=2)).sum(dim=1)
    return alignment + 0.5 * (_uniformity(first, share) + _uniformity(second, share))


def contrast(local: Tensor, common: Tensor, weights: Tensor) -> Tensor:
    """[k] mean_i - log (exp(l_i·g_i) / mean_j exp(l_i·g_j)) over the samples."""
    share = _share(weights)
    similarity = torch.bmm(F.normalize(local, dim=2, eps=1e-8), F.normalize(common, dim=2, eps=1e-8).transpose(1, 2))
    similarity = similarity / TEMPERATURE
    others = (similarity.exp() * share.unsqueeze(1)).sum(dim=2).clamp(min=1e-30).log()
    return (share * (others - torch.diagonal(similarity, dim1=1, dim2=2))).sum(dim=1)


def decorrelation(local: Tensor, common: Tensor, weights: Tensor) -> Tensor:
    """[k] ‖K‖_F² / d² with K the correlation matrix of the local rows."""
    return correlated(local, local, weights).square().mean(dim=(1, 2))


ALTERNATIVES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "au": alignment_and_uniformity,
    "duorec": contrast,
    "feddecorr": decorrelation,
}


def _share(weights: Tensor) -> Tensor:
    return weights / weights.sum(dim=1, keepdim=True).clamp(min=1)


def _uniformity(directions: Tensor, share: Tensor) -> Tensor:
    """log mean_ij exp(-2 ‖x_i - x_j‖²) over pairs of samples, a sample with itself among them."""
    apart = (2 - 2 * torch.bmm(directions, directions.transpose(1, 2))).clamp(min=0)
    mean = torch.bmm(torch.bmm(share.unsqueeze(1), (-POTENTIAL * apart).exp()), share.unsqueeze(2))
    return mean.clamp(min=1e-30).flatten().log()
