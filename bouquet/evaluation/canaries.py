"""Do scores tell that something was known which nobody could know?

Of some items of a user that alike could have been drawn, those that were drawn must rank as any others do. With ranks
r = 1 … N, ties averaged, in a user's pool of N items, of which c were drawn without replacement:

    D = Σ_users Σ_drawn (r − (N + 1) / 2)        Var D = Σ_users c (1 − c / N) s²        z = D / sqrt(Var D)

s² being the variance of the ranks of the pool (N − 1 form). This holds whatever the scores are, as long as they do not
depend on what was drawn: the test is exact in mean and variance, and normal by the number of users.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from bouquet.evaluation.ranks import Scores

SINGS_AT = 5.0
"""By chance |z| is above it once in 1.7 million files."""


@dataclass
class Preference:
    """How much higher the drawn items of many users stand than others of their pools; `add` users, then read.

    Attributes:
        drawn: how many drawn items there were.
    """

    drawn: int = 0
    _sum: float = 0.0
    _variance: float = 0.0

    def add(self, scores: Scores, pool: NDArray[np.bool_], drawn: NDArray[np.bool_]) -> None:
        """Count some users in.

        Args:
            scores: [b, m], higher is better.
            pool: [b, m] items that could have been drawn, the drawn ones among them.
            drawn: [b, m].
        """
        drawn = drawn & pool
        rows = np.flatnonzero(drawn.any(axis=1))
        pool, drawn = pool[rows], drawn[rows]
        # What is outside ranks below the pool, so that ranks inside begin one place after it.
        ranks = rankdata(np.where(pool, scores[rows], -np.inf), axis=1) - (~pool).sum(axis=1, keepdims=True)
        size, count = pool.sum(axis=1), drawn.sum(axis=1)
        centred = ranks - (size[:, None] + 1) / 2
        spread = np.where(pool, centred**2, 0.0).sum(axis=1) / np.maximum(size - 1, 1)
        self.drawn += int(count.sum())
        self._sum += float(centred[drawn].sum())
        self._variance += float((count * (1 - count / size) * spread).sum())

    @property
    def z(self) -> float:
        """Positive where drawn items stand higher than others; 0 where nothing could differ."""
        return self._sum / float(np.sqrt(self._variance)) if self._variance > 0 else 0.0
