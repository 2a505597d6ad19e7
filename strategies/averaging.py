"""Averaging: one shared model, the mean of what the users changed.

FCF (Ammad-ud-din et al., 2019) weighs all users alike, FedAvg (McMahan et al., 2017) by their number of training
interactions:

    Δ = Σ_u w_u Δ_u / Σ_u w_u,    w_u = 1 or n_u

The shared arrays then take a step along Δ. With `server-optimizer = "sgd"` and rate 1 that is plain averaging;
a larger rate, or Adam on the server (Reddi et al., 2021), makes up for rows that few of the users touch: their
mean change is small because most terms of the sum are zero.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from bouquet.arrays import Arrays
from bouquet.config import Options
from bouquet.wire import TrainReply, Weighting
from strategies.base import BaseStrategy, Extra


class AveragingOptions(Options):
    """How the server moves along the mean change."""

    server_optimizer: Literal["sgd", "adam"] = Field("adam", description="How the server applies the mean change.")
    server_learning_rate: float = Field(0.03, gt=0, description="Rate of the server's step; 1 with sgd: plain mean.")


_BETA_1, _BETA_2, _EPSILON = 0.9, 0.99, 1e-8


class FedAvg(BaseStrategy):
    """The mean of the users' changes, weighed by their number of training interactions."""

    options_class = AveragingOptions
    options: AveragingOptions

    def aggregate(
        self, server_round: int, shared: Arrays, replies: list[TrainReply], users: list[NDArray[np.int64]]
    ) -> Arrays:
        return self.step(server_round, shared, mean_change(shared, replies))

    def step(self, server_round: int, shared: Arrays, mean: dict[str, NDArray[np.float64]]) -> Arrays:
        """The shared arrays after the server's step along a mean change."""
        if self.options.server_optimizer == "adam":
            mean = self._adam(server_round, mean)
        rate = self.options.server_learning_rate
        return {name: (shared[name] + rate * mean[name]).astype(np.float32) for name in shared}

    def _adam(self, server_round: int, change: dict[str, NDArray[np.float64]]) -> dict[str, NDArray[np.float64]]:
        steps = {}
        for name, values in change.items():
            first, second = self._moments.get(name) or (np.zeros_like(values), np.zeros_like(values))
            first = _BETA_1 * first + (1 - _BETA_1) * values
            second = _BETA_2 * second + (1 - _BETA_2) * values**2
            self._moments[name] = (first, second)
            scale_1, scale_2 = 1 - _BETA_1**server_round, 1 - _BETA_2**server_round
            steps[name] = (first / scale_1) / (np.sqrt(second / scale_2) + _EPSILON)
        return steps

    @property
    def _moments(self) -> dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]:
        return self.__dict__.setdefault("_adam_moments", {})

    def extra_arrays(self) -> Extra:
        moments: dict[str, NDArray[np.float64]] = {}
        for name, (first, second) in self._moments.items():
            moments |= {f"first/{name}": first, f"second/{name}": second}
        return moments

    def restore_extra(self, arrays: Extra) -> None:
        names = [name.removeprefix("first/") for name in arrays if name.startswith("first/")]
        for name in names:
            self._moments[name] = (arrays[f"first/{name}"], arrays[f"second/{name}"])


class FCF(FedAvg):
    """The plain mean of the users' changes: FedMF on matrix factorisation, FedNCF on neural collaborative filtering."""

    weighting: Weighting = "uniform"


def mean_change(shared: Arrays, replies: list[TrainReply]) -> dict[str, NDArray[np.float64]]:
    """Δ = Σ w_u Δ_u / Σ w_u over all users of the round, in float64; rows that nobody touched are 0."""
    total_weight = sum(reply.weight for reply in replies)
    mean = {}
    for name, values in shared.items():
        total = np.zeros(values.shape)
        for reply in replies:
            packed = reply.sums[name]
            rows = slice(None) if packed.rows is None else packed.rows
            total[rows] += reply.factor * packed.values.astype(np.float64)
        mean[name] = total / total_weight if total_weight > 0 else total
    return mean
