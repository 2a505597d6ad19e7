"""Most popular items first: the row that every personal method has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy import sparse

from models.centralized.base import Rows, Scores, ValidationScore, binary, fitted


@dataclass(frozen=True)
class PopularityParameters:
    """Nothing to choose: the class exists so that all models are built alike."""


class Popularity:
    """score(u, i) = number of users with i among their training positives, the same for every u."""

    def __init__(self, parameters: PopularityParameters | None = None) -> None:
        self.parameters = parameters or PopularityParameters()
        self.chosen: dict[str, float] = {}
        self._counts: Scores | None = None

    def fit(self, train: sparse.csr_matrix, *, seed: int = 0, validation_score: ValidationScore | None = None) -> Self:
        """Count (see `CentralizedModel.fit`)."""
        matrix = binary(train)
        self._counts = np.bincount(matrix.indices, minlength=matrix.shape[1]).astype(np.float32)
        return self

    def scores(self, users: Rows) -> Scores:
        """[b, m], all rows alike (a read-only view of one row)."""
        counts = fitted(self._counts, "Popularity")
        return np.broadcast_to(counts, (len(users), len(counts)))
