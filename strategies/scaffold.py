"""Scaffold: stochastic controlled averaging (Karimireddy et al., ICML 2020, algorithm 1).

Round t on the server, over the users u in S of N:
    model             w ← w + η_g (1/|S|) Σ_u Δw_u           a server optimiser's step, as in averaging
    control variate   c ← c + (|S|/N) (1/|S|) Σ_u Δc_u       so c is the mean of what all users have, of those who
                                                             have not trained yet 0

What a device does with c stands in `client_app.personalization.scaffold`. The paper's N is fixed. Where users join, c
is the mean over more users, of whom the new ones have 0. What a forgotten user had the server does not know, and takes
for c.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Arrays
from bouquet.methods.scaffold import ScaffoldOptions
from bouquet.needs import bytes_of
from bouquet.wire import TrainReply
from strategies.averaging import FCF, mean_change
from strategies.federation.base import Extra

VARIATE = "variate_"
"""What the names of control variates begin with, before that of the shared array."""


class Scaffold(FCF):
    """The plain mean of what users changed, and of their control variates."""

    options: ScaffoldOptions
    dense_updates = True

    def prepare(self) -> None:
        self.count = len(self.roster.users)

    def aggregate(
        self, server_round: int, shared: Arrays, replies: list[TrainReply], users: list[NDArray[np.int64]]
    ) -> Arrays:
        mean = mean_change(shared, replies)
        trained = sum(len(members) for members in users)
        model = {name: values for name, values in shared.items() if not name.startswith(VARIATE)}
        found = self.optimizer.step(server_round, model, {name: mean[name] for name in model})
        now = len(self.roster.users)
        for name in shared.keys() - model.keys():
            found[name] = ((self.count * shared[name].astype(np.float64) + trained * mean[name]) / now).astype("f4")
        self.count = now
        return found

    def kept_bytes(self) -> int:
        """Moments of the model alone."""
        return self.optimizer.kept_bytes(bytes_of(self.traveling(self.roster.specs)) // 2)

    def extra_arrays(self) -> Extra:
        return super().extra_arrays() | {"count": np.array([self.count])}

    def restore_extra(self, arrays: Extra) -> None:
        super().restore_extra(arrays)
        self.count = int(arrays["count"][0])

    def users_forgotten(self, positions: NDArray[np.int64]) -> None:
        self.count -= len(positions)
