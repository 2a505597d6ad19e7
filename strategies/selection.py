"""The round that is reported: the best on validation, never the best on test."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

SELECTED_BY = ("validation", "full", "NDCG@10")

Means = dict[str, dict[str, dict[str, float]]]


@dataclass
class BestRound:
    """The best evaluated round so far.

    Attributes:
        round: 0 before the first evaluation.
        score: its validation NDCG@10 over the full catalogue.
        means: its metrics, by part, candidate set and name.
        values: [n, parts, candidate sets, metrics] its metrics by user.
    """

    round: int = 0
    score: float = float("-inf")
    means: Means = field(default_factory=dict)
    values: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))

    def offer(self, server_round: int, means: Means, values: NDArray[np.float64]) -> bool:
        """Take a round if it is better than the best so far; among equals the earliest stays."""
        part, candidates, metric = SELECTED_BY
        score = means[part][candidates][metric]
        # Without any validation item there is nothing to choose by: the last round counts.
        if not (score > self.score or np.isnan(score)):
            return False
        self.round, self.means, self.values = server_round, means, values
        self.score = float("-inf") if np.isnan(score) else score
        return True
