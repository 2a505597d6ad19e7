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
        for row in np.flatnonzero((drawn & pool).any(axis=1)):
            chosen = drawn[row][pool[row]]
            ranks = rankdata(scores[row][pool[row]])
            count, size = int(chosen.sum()), len(ranks)
            self.drawn += count
            self._sum += float(ranks[chosen].sum()) - count * (size + 1) / 2
            self._variance += count * (1 - count / size) * float(ranks.var(ddof=1)) if size > count else 0.0

    @property
    def z(self) -> float:
        """Positive where drawn items stand higher than others; 0 where nothing could differ."""
        return self._sum / float(np.sqrt(self._variance)) if self._variance > 0 else 0.0
