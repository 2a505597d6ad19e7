"""A user's own items, the newest first: the row that everything has to beat where people come back to items."""

from __future__ import annotations

from typing import Self

import numpy as np

from bouquet.ragged import Ragged, positions
from models.centralized.base import LearnsOrder, Scores, ValidationScore, binary_histories, fitted


class MostRecent(LearnsOrder):
    """score(u, i) = the place of i's last event in u's history, counted from 1; below all of these, how popular i is.

    What is popular is what many users have among their training items, n_i / (1 + max n): the same for everybody. Where
    `full` leaves out what a user has had, nothing else is left.
    """

    def __init__(self) -> None:
        self.chosen: dict[str, float] = {}
        self._popularity: Scores | None = None

    def fit(
        self, train: Ragged, num_items: int, *, seed: int = 0, validation_score: ValidationScore | None = None
    ) -> Self:
        """Count.

        Args:
            train: rows of items, oldest first.
            num_items: m.
            seed: not used; validation_score: there is nothing to choose.
        """
        counts = np.bincount(binary_histories(train, num_items).indices, minlength=num_items)
        self._popularity = (counts / (1 + counts.max(initial=0))).astype(np.float32)
        return self

    def scores_after(self, histories: Ragged) -> Scores:
        """[b, m] scores of all items for users who did this, oldest first."""
        popularity = fitted(self._popularity, "MostRecent")
        found = np.tile(popularity, (len(histories), 1))
        # Of an item that comes more than once the last place stays: places ascend.
        found[histories.row_of_value, histories.values] = 1 + positions(histories.lengths)
        return found
