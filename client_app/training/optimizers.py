"""Optimisers of many users at once: a step along the gradients of those who have samples in it; the others rest."""

from __future__ import annotations

import torch
from torch import Tensor

from client_app.training.task import LocalTask


class SGD:
    """w ← w - lr (∂L/∂w + decay · w)."""

    def __init__(self, task: LocalTask, weights: dict[str, Tensor]) -> None:
        self.weights = weights
        self.rates = {name: task.rate(name) for name in weights}
        self.decays = {name: task.decay(name) for name in weights}
        self.plain = not any(self.decays.values())

    @torch.no_grad()
    def __call__(self, gradients: dict[str, Tensor], active: Tensor) -> None:
        for name, weight in self.weights.items():
            gradient, decay = gradients[name], self.decays[name]
            if decay:
                gradient = gradient + decay * weight * like(active, weight)
            weight.sub_(gradient, alpha=self.rates[name])


class Adam:
    """Adam (Kingma and Ba, 2015) with a step count for each user: β = (0.9, 0.999), ε = 1e-8."""

    def __init__(self, task: LocalTask, weights: dict[str, Tensor]) -> None:
        self.weights = weights
        self.rates = {name: task.rate(name) for name in weights}
        self.decays = {name: task.decay(name) for name in weights}
        self.first = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        self.second = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        one = next(iter(weights.values()))
        self.steps = torch.zeros(len(one), dtype=torch.float64, device=one.device)

    @torch.no_grad()
    def __call__(self, gradients: dict[str, Tensor], active: Tensor) -> None:
        self.steps += active
        # Users that have not started divide by zero here; their update is masked below.
        steps = self.steps.clamp(min=1)
        scale_1, scale_2 = 1 / (1 - 0.9**steps), 1 / (1 - 0.999**steps)
        everyone = surely_all(active)
        for name, weight in self.weights.items():
            decay = self.decays[name]
            gradient = gradients[name] + decay * weight if decay else gradients[name]
            first, second = self.first[name], self.second[name]
            if everyone:
                first.mul_(0.9).add_(gradient, alpha=0.1)
                second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            else:
                keep = like(active, weight)
                first.copy_(torch.where(keep, 0.9 * first + 0.1 * gradient, first))
                second.copy_(torch.where(keep, 0.999 * second + 0.001 * gradient * gradient, second))
            update = like(scale_1, weight) * first / ((like(scale_2, weight) * second).sqrt() + 1e-8)
            if not everyone:
                update = update * like(active, weight)
            weight -= self.rates[name] * update


def surely_all(active: Tensor) -> bool:
    """Whether all users [c] have samples in a step, as far as can be told without waiting for a GPU."""
    return active.device.type == "cpu" and bool(active.all())


def like(per_user: Tensor, weight: Tensor) -> Tensor:
    """A value per user [c] in a shape (and type, unless it is a mask) that broadcasts over `weight` [c, …]."""
    if per_user.dtype != torch.bool:
        per_user = per_user.to(weight.dtype)
    return per_user.reshape(-1, *[1] * (weight.ndim - 1))
