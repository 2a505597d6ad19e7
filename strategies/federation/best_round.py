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

    def offer(self, server_round: int, means: Means, values: NDArray[np.float64], *, last: bool = False) -> bool:
        """Take a round if it is better than the best so far; among equals the earliest stays.

        Args:
            last: whatever it is; to choose by metrics would tell of them.
        """
        part, candidates, metric = SELECTED_BY
        score = means[part][candidates][metric]
        # Without any validation item there is nothing to choose by: the last round counts.
        if not (last or score > self.score or np.isnan(score)):
            return False
        self.round, self.means, self.values = server_round, means, values
        self.score = float("-inf") if np.isnan(score) else score
        return True

    def users_joined(self, count: int) -> None:
        """New users stand at the end of the roster; they have no value in the best round."""
        if self.round:
            unknown = np.full((count, *self.values.shape[1:]), np.nan)
            self.values = np.concatenate([self.values, unknown])

    def users_forgotten(self, positions: NDArray[np.int64]) -> None:
        """Drop the users at these positions; means over all users stay as they were published."""
        if self.round:
            self.values = np.delete(self.values, positions, axis=0)
