"""Columns of the rows of a batch, standardised and correlated, and the way of their gradients back to the rows.

Rows are [k, b, d] for k users, weights [k, b] how often each stands in the batch; statistics are weighted means.
"""

from __future__ import annotations

import torch
from torch import Tensor

from client_app.personalization.directions import shares

# Columns shorter than the root of this are constant.
_TINY = 1e-12


def column_shares(weights: Tensor) -> Tensor:
    """[k, 1, b] weights that sum to one; zeros for a user without samples."""
    return shares(weights).unsqueeze(1)


def correlated(a: Tensor, b: Tensor, weights: Tensor) -> Tensor:
    """[k, d, d] the correlation of the columns of a with those of b; 0 of a constant column."""
    share = column_shares(weights)
    columns = []
    for values in (a, b):
        centred = values - torch.bmm(share, values)
        columns.append(centred / torch.bmm(share, centred.square()).clamp(min=_TINY).sqrt())
    return torch.bmm((columns[0] * share.transpose(1, 2)).transpose(1, 2), columns[1])


def standardised(values: Tensor, share: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """In place: columns less their mean, over their deviation; and one over the deviation, 0 for a constant column."""
    mean = torch.bmm(share, values)
    centred = values.sub_(mean)
    variance = torch.bmm(share, centred.square())
    spread = variance + epsilon if epsilon else torch.where(variance > _TINY, variance, torch.inf)
    inverse = spread.rsqrt_()
    return centred.mul_(inverse), inverse


def through(gradient: Tensor, normal: Tensor, inverse: Tensor, share: Tensor) -> Tensor:
    """From the gradient of standardised columns to that of the columns."""
    rows = share.transpose(1, 2)
    total = gradient.sum(dim=1, keepdim=True)
    along = torch.einsum("kbd,kbd->kd", gradient, normal).unsqueeze(1)
    return (gradient - rows * (total + normal * along)).mul_(inverse)
