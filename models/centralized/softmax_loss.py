"""The cross-entropy over a whole catalogue, and its gradient, without a matrix of all logits.

    L = -1/n Σ_t log P_{t, y_t}      P = softmax(H Qᵀ)
    ∂L/∂H = (P - Y) Q / n            ∂L/∂Q = (P - Y)ᵀ H / n

with Y the targets as rows of zeros and a one. As soon as some rows of P are known, so is their part of both gradients,
so those rows need not leave the processor's cache: reading and writing [n, m] logits several times takes longer than
the products.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# So many logits are held at once: two megabytes of them.
_LOGITS = 2**19


def over_all_items(states: Tensor, items: Tensor, targets: Tensor) -> Tensor:
    """The mean of -log softmax(H Qᵀ)_{t, y_t} over all places t.

    Args:
        states: H, [n, d].
        items: Q, [m, d].
        targets: y, [n], the item that came at each place.
    """
    loss: Tensor = _OverAllItems.apply(states, items, targets)
    return loss


class _OverAllItems(torch.autograd.Function):
    """The gradient is known when the loss is, and is kept in place of the logits."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, items: Tensor, targets: Tensor) -> Tensor:
        of_states, of_items = torch.empty_like(states), torch.zeros_like(items)
        loss, rows = states.new_zeros(()), max(1, _LOGITS // len(items))
        for start in range(0, len(states), rows):
            part = slice(start, start + rows)
            logits = states[part] @ items.T
            target = targets[part].unsqueeze(1)
            loss += (logits.logsumexp(1, keepdim=True) - logits.gather(1, target)).sum()
            slope = torch.softmax(logits, 1)
            slope.scatter_add_(1, target, slope.new_full(target.shape, -1.0))
            torch.mm(slope, items, out=of_states[part])
            of_items.addmm_(slope.T, states[part])
        ctx.save_for_backward(of_states / len(states), of_items / len(states))
        return loss / len(states)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, Tensor, None]:
        of_states, of_items = ctx.saved_tensors
        return slopes[0] * of_states, slopes[0] * of_items, None
