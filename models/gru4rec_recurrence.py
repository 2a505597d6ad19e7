"""The recurrence of a gated recurrent unit and its gradient, for users who each may have weights of their own.

    r_t = σ(W_r x_t + U_r h_{t-1} + b)      z_t = σ(W_z x_t + U_z h_{t-1} + b)
    n_t = tanh(W_n x_t + b + r_t ⊙ (U_n h_{t-1} + b'))      h_t = (1 - z_t) ⊙ n_t + z_t ⊙ h_{t-1}

The gradient is written by hand, because autograd would hold one gradient of U for every step of every user.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def recur(gates: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The recurrence from h_0 = 0.

    Args:
        gates: W x_t + b of every step, [k, L, 3 d], in the order r, z, n.
        weight: U, [k, d, 3 d], or [d, 3 d] for all users.
        bias: b', [k, 3 d] or [3 d].
    Returns:
        h, [k, L, d].
    """
    hidden: Tensor = _Recurrence.apply(gates, weight, bias)
    return hidden


class _Recurrence(torch.autograd.Function):
    """Saved by step, the steps first: h_{t-1}, r, z, n and U_n h_{t-1} + b', each [L, k, d]."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        k, length, d = gates.shape[0], gates.shape[1], gates.shape[2] // 3
        before = gates.new_zeros(length + 1, k, d)
        resets, updates, news, inner = (gates.new_empty(length, k, d) for _ in range(4))
        steps = gates.transpose(0, 1).contiguous()
        for t in range(length):
            recurrent = _times(before[t], weight) + bias
            both = torch.sigmoid(steps[t, :, : 2 * d] + recurrent[:, : 2 * d])
            resets[t], updates[t], inner[t] = both[:, :d], both[:, d:], recurrent[:, 2 * d :]
            torch.tanh(torch.addcmul(steps[t, :, 2 * d :], resets[t], inner[t]), out=news[t])
            torch.lerp(news[t], before[t], updates[t], out=before[t + 1])
        ctx.save_for_backward(before, resets, updates, news, inner, weight, bias)
        return before[1:].transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        before, resets, updates, news, inner, weight, bias = ctx.saved_tensors
        (length, k, d), slope = news.shape, slopes[0].transpose(0, 1)
        of_gates, of_recurrent = news.new_empty(length, k, 3 * d), news.new_empty(length, k, 3 * d)
        backwards = weight.transpose(-1, -2)
        carried = torch.zeros_like(news[0])
        for t in reversed(range(length)):
            of_hidden = slope[t] + carried
            r, z, n = resets[t], updates[t], news[t]
            of_new = of_hidden * (1 - z) * (1 - n * n)
            of_reset = of_new * inner[t] * r * (1 - r)
            of_update = of_hidden * (before[t] - n) * z * (1 - z)
            torch.cat([of_reset, of_update, of_new], dim=1, out=of_gates[t])
            torch.cat([of_reset, of_update, of_new * r], dim=1, out=of_recurrent[t])
            carried = torch.addcmul(_times(of_recurrent[t], backwards), of_hidden, z)
        of_recurrent = of_recurrent.transpose(0, 1)
        if weight.ndim == 3:
            of_weight = before[:-1].permute(1, 2, 0) @ of_recurrent
        else:
            of_weight = before[:-1].transpose(0, 1).reshape(-1, d).T @ of_recurrent.reshape(-1, 3 * d)
        of_bias = of_recurrent.sum(dim=1) if bias.ndim == 2 else of_recurrent.sum(dim=(0, 1))
        return of_gates.transpose(0, 1), of_weight, of_bias


def _times(vectors: Tensor, weight: Tensor) -> Tensor:
    """[k, w] vectors times the matrix of each user, or of all."""
    if weight.ndim == 2:
        return vectors @ weight
    return torch.bmm(vectors.unsqueeze(1), weight).squeeze(1)
