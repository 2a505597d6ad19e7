"""Embedding redundancy reduction (PLGC, eq. 18 and 19) of k users at once, with its gradient by hand.

A batch is b entries with weights, how often each of them stands in it; statistics are weighted means.

    representation   x ↦ relu(n(x W₁)) W₂ twice, projector and predictor; n takes a column's mean out and divides by
                     its standard deviation over the batch
    correlation      R = Âᵀ B̂ with centred columns of length one
    loss             Σ_j (1 - R_jj)² + κ Σ_{j≠k} R_jk²
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from client_app.personalization.columns import column_shares, standardised, through
from client_app.personalization.round import Tensors
from client_app.training.compiler import redundancy_kernels
from client_app.training.threads import run_kernel

NETWORKS = ("projector_1", "projector_2", "predictor_1", "predictor_2")

# Added to a variance before its root is divided by, as in batch normalisation.
_EPSILON = 1e-5


def represented(rows: Tensor, networks: Tensors, weights: Tensor) -> Tensor:
    """The representations of rows [k, b, d]; networks [k, d, d] by name, weights [k, b]."""
    share = column_shares(weights)
    for first, second in (NETWORKS[:2], NETWORKS[2:]):
        hidden = torch.bmm(rows, networks[first])
        hidden = hidden - torch.bmm(share, hidden)
        deviation = (torch.bmm(share, hidden.square()) + _EPSILON).sqrt()
        rows = torch.bmm((hidden / deviation).relu(), networks[second])
    return rows


def reduced(correlation: Tensor, kappa: float) -> Tensor:
    """[k] Σ_j (1 - R_jj)² + κ Σ_{j≠k} R_jk² (eq. 19)."""
    diagonal = torch.diagonal(correlation, dim1=1, dim2=2)
    off = correlation.square().sum(dim=(1, 2)) - diagonal.square().sum(dim=1)
    return (1 - diagonal).square().sum(dim=1) + kappa * off


def redundancy_and_slopes(
    local: Tensor, common: Tensor, networks: Tensors, weights: Tensor, strength: float, kappa: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """`strength` times ∂L_eRR/∂local [k, b, d] and ∂L_eRR/∂network by name; `common` is frozen.

    With y = n(x), s = 1/deviation and w a row's share: ∂L/∂x = s (g - w Σ g - w y Σ g y), g = ∂L/∂y.
    The columns of eq. 18 are the same function with ε = 0.
    """
    if local.device.type == "cpu" and (code := redundancy_kernels()) is not None:
        return _compiled(code, local, common, networks, weights, strength, kappa)
    return _stacked(local, common, networks, weights, strength, kappa)


def _stacked(
    local: Tensor, common: Tensor, networks: Tensors, weights: Tensor, strength: float, kappa: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """The same in torch."""
    k, share = len(local), column_shares(weights)
    # Both views side by side: one product with the networks for both.
    rows = torch.cat([local, common])
    shares = torch.cat([share, share])
    double = {name: torch.cat([networks[name], networks[name]]) for name in NETWORKS}
    cache = []
    for first, second in (NETWORKS[:2], NETWORKS[2:]):
        normal, inverse = standardised(torch.bmm(rows, double[first]), shares, _EPSILON)
        active = normal.relu()
        cache.append((rows, normal, inverse, active))
        rows = torch.bmm(active, double[second])
    column, inverse = standardised(rows, shares, 0.0)
    weighted = column * shares.transpose(1, 2)
    correlation = torch.bmm(weighted[:k].transpose(1, 2), column[k:])
    slope = 2 * strength * kappa * correlation
    diagonal = torch.diagonal(slope, dim1=1, dim2=2)
    diagonal.copy_(2 * strength * (torch.diagonal(correlation, dim1=1, dim2=2) - 1))
    gradient = torch.cat([torch.bmm(weighted[k:], slope.transpose(1, 2)), torch.bmm(weighted[:k], slope)])
    gradient = through(gradient, column, inverse, shares)
    found: dict[str, Tensor] = {}
    for (first, second), (inputs, normal, inverse, active) in zip(
        (NETWORKS[2:], NETWORKS[:2]), reversed(cache), strict=True
    ):
        found[second] = _both(torch.bmm(active.transpose(1, 2), gradient), k)
        gradient = torch.bmm(gradient, double[second].transpose(1, 2)).mul_(active > 0)
        gradient = through(gradient, normal, inverse, shares)
        found[first] = _both(torch.bmm(inputs.transpose(1, 2), gradient), k)
        if first == NETWORKS[0]:  # nobody asks for the gradient of the frozen table
            gradient = gradient[:k]
            gradient = torch.bmm(gradient, networks[first].transpose(1, 2))
        else:
            gradient = torch.bmm(gradient, double[first].transpose(1, 2))
    return gradient, found


def _compiled(
    code: ModuleType, local: Tensor, common: Tensor, networks: Tensors, weights: Tensor, strength: float, kappa: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """The same by compiled loops, which read tables by columns and matrices of a width that 4 divides."""
    d = local.shape[2]
    columns = [table.transpose(1, 2).contiguous().numpy() for table in (local, common)]
    dtype, width = columns[0].dtype.type, -(-d // 4) * 4
    matrices = np.zeros((len(local), len(NETWORKS), width, width), dtype)
    for place, name in enumerate(NETWORKS):
        matrices[:, place, :d, :d] = networks[name].numpy()
    of_local, of_networks = np.zeros_like(columns[0]), np.zeros_like(matrices)
    flat = (len(local), len(NETWORKS), width * width)
    counts = weights.contiguous().numpy()
    scalars, slopes = (dtype(strength), dtype(kappa)), (of_local, of_networks.reshape(flat))
    indptr = np.concatenate([[0], np.count_nonzero(counts, axis=1).cumsum()])
    run_kernel(code.add_slopes, (*columns, matrices.reshape(flat), counts, *scalars, *slopes), indptr)
    found = {name: torch.from_numpy(of_networks[:, place, :d, :d]) for place, name in enumerate(NETWORKS)}
    return torch.from_numpy(of_local).transpose(1, 2), found


def _both(gradient: Tensor, k: int) -> Tensor:
    """What both views say about the networks that they share."""
    return gradient[:k] + gradient[k:]
