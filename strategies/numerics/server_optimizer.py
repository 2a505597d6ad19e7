"""The step that a server takes along a mean change.

With `server-optimizer = "sgd"` and rate 1 that is plain averaging; a larger rate, or Adam on the server (Reddi et al.,
2021), makes up for rows that few of the users touch: their mean change is small because most terms of the sum are zero.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Arrays
from bouquet.methods.parts import ServerOptimizerOptions

_BETA_1, _BETA_2, _EPSILON = 0.9, 0.99, 1e-8

Mean = dict[str, NDArray[np.float64]]


class ServerOptimizer:
    """Plain steps, or Adam's with its two moments."""

    def __init__(self, options: ServerOptimizerOptions) -> None:
        self._adam, self._rate = options.server_optimizer == "adam", options.server_learning_rate
        self._moments: dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]] = {}

    def step(self, server_round: int, shared: Arrays, mean: Mean) -> Arrays:
        """The shared arrays after a step along a mean change."""
        if self._adam:
            mean = self._directions(server_round, mean)
        return {name: (shared[name] + self._rate * mean[name]).astype(np.float32) for name in shared}

    def _directions(self, server_round: int, change: Mean) -> Mean:
        steps = {}
        for name, values in change.items():
            first, second = self._moments.get(name) or (np.zeros_like(values), np.zeros_like(values))
            first = _BETA_1 * first + (1 - _BETA_1) * values
            second = _BETA_2 * second + (1 - _BETA_2) * values**2
            self._moments[name] = (first, second)
            scale_1, scale_2 = 1 - _BETA_1**server_round, 1 - _BETA_2**server_round
            steps[name] = (first / scale_1) / (np.sqrt(second / scale_2) + _EPSILON)
        return steps

    def arrays(self) -> Mean:
        """What must be in a checkpoint."""
        moments: Mean = {}
        for name, (first, second) in self._moments.items():
            moments |= {f"first/{name}": first, f"second/{name}": second}
        return moments

    def restore(self, arrays: Mean) -> None:
        """Take back what `arrays` gave, from among a checkpoint's."""
        names = [name.removeprefix("first/") for name in arrays if name.startswith("first/")]
        for name in names:
            self._moments[name] = (arrays[f"first/{name}"], arrays[f"second/{name}"])

    def kept_bytes(self, shared: int) -> int:
        """Bytes of both moments, in float64, where float32 shared arrays have so many."""
        return 4 * shared if self._adam else 0

    def working_bytes(self, shared: int) -> float:
        """Sum and mean in float64; Adam's next moments and the step while the old ones are still there."""
        return 2 * shared * (5 if self._adam else 3)
