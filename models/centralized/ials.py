"""iALS on pooled data (Hu, Koren and Volinsky, 2008), weighed as by Rendle, Krichene, Zhang and Koren (2022).

minimise  Σ_{(u,i) in S} (1 - p_uᵀ q_i)² + α0 Σ_{all u,i} (p_uᵀ q_i)² + Σ_u λ_u ‖p_u‖² + Σ_i λ_i ‖q_i‖²

    λ_u = λ (|S_u| + α0 m)^ν,   λ_i = λ (|S_i| + α0 n)^ν

by turns, each side exactly:  p_u = (Σ_{i in S_u} q_i q_iᵀ + α0 Qᵀ Q + λ_u I)⁻¹ Σ_{i in S_u} q_i,  and q_i likewise. It
ends with the users, so that a history scores as its user does.

With ν = 0 it is the loss of Hu et al. with confidence 1 + 1 / α0 and regularization λ (1 + α0) / α0, whose factors are
sqrt(1 + α0) times as long: a test lays the two beside each other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import cho_factor, cho_solve

from bouquet.errors import BouquetError
from bouquet.ragged import Ragged
from bouquet.randomness import Purpose, generator
from models.centralized.base import Rows, Scores, ValidationScore, binary, binary_histories, fitted
from models.centralized.choosing import climb

Factors = NDArray[np.float64]


@dataclass(frozen=True)
class IALSParameters:
    """Hyper-parameters of `IALS`.

    Attributes:
        rank: d.
        unobserved: α0 > 0.
        regularization: λ > 0.
        frequency: ν.
        sweeps: how often both sides are solved.
        init_scale: times 1 / sqrt(d), the standard deviation of what item factors start from.
        regularization_grid, unobserved_grid: ascending, what validation chooses from, first the one and then the other.
    """

    rank: int = 64
    unobserved: float = 0.3
    regularization: float = 0.003
    frequency: float = 1.0
    sweeps: int = 12
    init_scale: float = 0.1
    regularization_grid: tuple[float, ...] = (0.001, 0.003, 0.01, 0.03)
    unobserved_grid: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0)


class IALS:
    """Alternating least squares with all data in one place."""

    def __init__(self, parameters: IALSParameters | None = None) -> None:
        self.parameters = parameters or IALSParameters()
        self.chosen: dict[str, float] = {}
        self._train: sparse.csr_matrix | None = None
        self._solution: tuple[IALSParameters, Factors] | None = None

    def fit(self, train: sparse.csr_matrix, *, seed: int = 0, validation_score: ValidationScore | None = None) -> Self:
        """Solve by turns (see `CentralizedModel.fit`), under the λ and α0 that are best on validation.

        Raises:
            BouquetError: λ or α0 is not positive.
        """
        asked = self.parameters
        if not min(asked.regularization, asked.unobserved, *asked.regularization_grid, *asked.unobserved_grid) > 0:
            raise BouquetError("iALS needs a regularization and a weight of unobserved pairs above 0.")
        self._train = matrix = binary(train)
        if validation_score is None:
            self._solution = asked, _items(matrix, asked, seed)
            return self
        made: dict[IALSParameters, tuple[float, Factors]] = {}

        def value(tried: IALSParameters) -> float:
            if tried not in made:
                self._solution = tried, _items(matrix, tried, seed)
                made[tried] = validation_score(self.scores), self._solution[1]
            return made[tried][0]

        best = asked
        for key in ("regularization", "unobserved"):
            grid = [replace(best, **{key: entry}) for entry in getattr(asked, f"{key}_grid")]
            nearest = min(grid, key=lambda tried: abs(np.log(getattr(tried, key) / getattr(best, key))))
            best = climb(grid, grid.index(nearest), value)
            self.chosen[key] = getattr(best, key)
        self._solution = best, made[best][1]
        return self

    def scores(self, users: Rows) -> Scores:
        """[b, m] (see `CentralizedModel.scores`)."""
        return self._scores(fitted(self._train, "iALS")[users])

    def scores_after(self, histories: Ragged) -> Scores:
        """[b, m] (see `ReadsHistories`)."""
        return self._scores(binary_histories(histories, fitted(self._train, "iALS").shape[1]))

    def _scores(self, histories: sparse.csr_matrix) -> Scores:
        parameters, items = fitted(self._solution, "iALS")
        return np.asarray(solved(histories, items, parameters) @ items.T, dtype=np.float32)


def solved(matrix: sparse.csr_matrix, others: Factors, parameters: IALSParameters) -> Factors:
    """The factors of one side, exactly, where those of the other side stand.

    Args:
        matrix: [k, m] what each of k has of the other side.
        others: [m, d].
    Returns:
        [k, d]; zeros for whoever has nothing.
    """
    found = np.zeros((matrix.shape[0], others.shape[1]))
    common = parameters.unobserved * (others.T @ others)
    diagonal = np.arange(others.shape[1])
    for row in np.flatnonzero(np.diff(matrix.indptr)):
        mine = others[matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]]]
        weight = (len(mine) + parameters.unobserved * len(others)) ** parameters.frequency
        system = mine.T @ mine + common
        system[diagonal, diagonal] += parameters.regularization * weight
        found[row] = cho_solve(cho_factor(system, overwrite_a=True, check_finite=False), mine.sum(axis=0))
    return found


def _items(matrix: sparse.csr_matrix, parameters: IALSParameters, seed: int) -> Factors:
    """Q after all sweeps, [m, d]."""
    draws = generator(seed, 0, Purpose.SHARED_INIT, "iALS")
    scale = parameters.init_scale / np.sqrt(parameters.rank)
    items, by_item = scale * draws.standard_normal((matrix.shape[1], parameters.rank)), matrix.T.tocsr()
    for _ in range(parameters.sweeps):
        items = solved(by_item, solved(matrix, items, parameters), parameters)
    return items
