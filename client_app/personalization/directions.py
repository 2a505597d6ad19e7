"""Losses over the directions of rows, and the way of their gradients back to the rows.

    share        s_i        a row's share of the samples of a batch
    direction    x / ‖x‖    of a row; a row of zeros has none
    attended     Σ_j s_j exp(τ q_i·k_j) k_j    for all i, in blocks of pairs
    contrast     mean_i - log (exp(q_i·k_i) / mean_j exp(q_i·k_j))    an item's row against those of other samples

Rows are [k, b, d] for k users, weights [k, b] how often each stands in the batch.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

SHORTEST = 1e-8
LEAST = 1e-30
# Pairs of samples of one block: on a processor they stay in its second-level cache.
_PAIRS, _GPU_PAIRS = 2**17, 2**27


def shares(weights: Tensor) -> Tensor:
    """[k, b] weights that sum to one; zeros for a user without samples."""
    return weights / weights.sum(dim=1, keepdim=True).clamp(min=1)


def directions(rows: Tensor) -> Tensor:
    return F.normalize(rows, dim=2, eps=SHORTEST)


def of_rows(slope: Tensor, rows: Tensor, of: Tensor) -> Tensor:
    """In place: from the gradient of the directions `of` to that of rows: what is along a row does not turn it."""
    lengths = rows.norm(dim=2, keepdim=True)
    along = (slope * of).sum(dim=2, keepdim=True).mul_(lengths > SHORTEST)
    return slope.sub_(along * of).div_(lengths.clamp(min=SHORTEST))


def attended(queries: Tensor, keys: Tensor, share: Tensor, sharpness: float) -> tuple[Tensor, Tensor]:
    """Σ_j s_j e_ij k_j, [k, b, d], and Σ_j s_j e_ij, [k, b], with e_ij = exp(sharpness q_i·k_j)."""
    count, rows, size = queries.shape
    values, across = _with_sum(keys, share), (sharpness * keys).transpose(1, 2)
    found = queries.new_empty(count, rows, size + 1)
    for block in _blocks(queries):
        found[:, block] = torch.bmm(torch.bmm(queries[:, block], across).exp_(), values)
    return found[:, :, :size], found[:, :, size]


def contrast(queries: Tensor, keys: Tensor, weights: Tensor) -> Tensor:
    """[k] mean_i - log (exp(q_i·k_i) / mean_j exp(q_i·k_j)) of the directions q and k: temperature 1."""
    share = shares(weights)
    cosines = torch.bmm(directions(queries), directions(keys).transpose(1, 2))
    others = torch.bmm(cosines.exp(), share.unsqueeze(2)).squeeze(2).clamp(min=LEAST).log()
    return (share * (others - torch.diagonal(cosines, dim1=1, dim2=2))).sum(dim=1)


def contrast_slope(queries: Tensor, keys: Tensor, weights: Tensor) -> Tensor:
    """∂/∂q_i = s_i (Σ_j s_j e_ij k_j / t_i - k_i) with e_ij = exp(q_i·k_j) and t_i = Σ_j s_j e_ij; [k, b, d]."""
    share, first, second = shares(weights), directions(queries), directions(keys)
    near, total = attended(first, second, share, 1.0)
    slope = near.div_(total.clamp(min=LEAST).unsqueeze(2)).sub_(second).mul_(share.unsqueeze(2))
    return of_rows(slope, queries, first)


def contrast_slopes(queries: Tensor, keys: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """That, and ∂/∂k_j = s_j (Σ_i s_i / t_i e_ij q_i - q_j), of one pass over the pairs."""
    share, first, second = shares(weights), directions(queries), directions(keys)
    values, across, size = _with_sum(second, share), second.transpose(1, 2), queries.shape[2]
    of_queries, of_keys = torch.empty_like(first), torch.zeros_like(second)
    for block in _blocks(queries):
        near = torch.bmm(first[:, block], across).exp_()
        found = torch.bmm(near, values)
        total = found[:, :, size:].clamp(min=LEAST)
        of_queries[:, block] = found[:, :, :size] / total
        of_keys.baddbmm_(near.transpose(1, 2), first[:, block] * (share[:, block].unsqueeze(2) / total))
    weight = share.unsqueeze(2)
    return (
        of_rows(of_queries.sub_(second).mul_(weight), queries, first),
        of_rows(of_keys.sub_(first).mul_(weight), keys, second),
    )


def _with_sum(keys: Tensor, share: Tensor) -> Tensor:
    """[k, b, d + 1] the keys by their shares; what is summed with one more column is the sum of weights itself."""
    return torch.cat([keys, keys.new_ones(*keys.shape[:2], 1)], dim=2).mul_(share.unsqueeze(2))


def _blocks(queries: Tensor) -> Iterator[slice]:
    """Blocks of queries whose pairs with all rows are few enough."""
    count, rows, _ = queries.shape
    at_once = max(1, (_PAIRS if queries.device.type == "cpu" else _GPU_PAIRS) // max(count * rows, 1))
    return (slice(start, start + at_once) for start in range(0, rows, at_once))
