"""Sequential ridge, the server's half (after SLIST, Choi et al., 2021; docs/methods/champions.md)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from bouquet.methods.slist import SlistOptions
from strategies.sums.base import Largest, Matrix, Sums, SumsStrategy, whole


class Slist(SumsStrategy):
    """W = (P + λI)^-1 (Q + c Qᵀ), with P = Σ x_t x_tᵀ and Q = Σ x_t e_{i_{t+1}}ᵀ over the steps t of all users."""

    options: SlistOptions

    def largest(self, sizes: NDArray[np.float64]) -> Mapping[str, Largest]:
        longest = int(sizes.max(initial=0)) + 1
        window = min(self.options.slist_window or longest, longest)
        # Each rounded weight is at most half a quantum above the power.
        weight = np.arange(1.0, window + 1) ** -self.options.slist_decay + 2.0**-17
        before, squares = (np.concatenate([[0.0], np.cumsum(x)]) for x in (weight, weight**2))
        steps = np.maximum(sizes - 1, 0)
        seen = np.minimum(steps, window).astype(int)
        line = longest_lines(weight, int(steps.max(initial=0)))[steps.astype(int)]
        return {
            "next": Largest(weight[0] * (steps > 0), steps * before[seen], before[seen]),
            # Σ_t (Σ_age w)² is all of the matrix, of which the upper half travels.
            "before": Largest(squares[seen], steps * before[seen] ** 2, line),
        }

    def weights_of(self, sums: Sums) -> Matrix:
        gram = whole(sums["before"]).toarray()
        gram.ravel()[:: len(gram) + 1] += self.options.slist_regularization
        factor = cho_factor(gram, lower=True, overwrite_a=True, check_finite=False)
        steps = (sums["next"] + self.options.slist_reverse * sums["next"].T).toarray()
        return cho_solve(factor, steps, overwrite_b=True, check_finite=False)

    def working_bytes(self) -> float:
        return super().working_bytes() + 8.0 * 3 * self.roster.num_items**2


def longest_lines(weight: NDArray[np.float64], steps: int) -> NDArray[np.float64]:
    """[steps + 1] the largest sum of a row of P = Σ_t x_t x_tᵀ after 0, 1, … steps of one history.

    Step t adds w(t - s) Σ_age w(age) to the row of the item at s.
    """
    window, before = len(weight), np.cumsum(weight)
    line, longest = np.zeros(steps), np.zeros(steps + 1)
    for t in range(steps):
        seen = min(t + 1, window)
        line[t + 1 - seen : t + 1] += weight[:seen][::-1] * before[seen - 1]
        longest[t + 1] = line.max()
    return longest
