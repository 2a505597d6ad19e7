"""EASE, the server's half (Steck, 2019; docs/methods/champions.md)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Arrays
from bouquet.methods.ease import EaseOptions
from strategies.numerics.inverse import inverse
from strategies.sums.base import Largest, Matrix, Sums, SumsStrategy, whole
from strategies.sums.private import PrivatePairs


class Ease(SumsStrategy):
    """B = -P / diag(P) off the diagonal and 0 on it, with P = (G + λI)^-1 and G = Σ_u x_u x_uᵀ."""

    options: EaseOptions

    def largest(self, sizes: NDArray[np.float64]) -> Mapping[str, Largest]:
        return {"together": Largest(np.minimum(sizes, 1.0), sizes * (sizes + 1) / 2, sizes)}

    def weights_of(self, sums: Sums) -> Matrix:
        gram = whole(sums["together"]).toarray()
        gram.ravel()[:: len(gram) + 1] += self.options.ease_regularization
        weights = inverse(gram)
        weights /= -np.diag(weights).copy()
        np.fill_diagonal(weights, 0.0)
        return weights

    def working_bytes(self) -> float:
        return super().working_bytes() + 8.0 * 2 * self.roster.num_items**2


class PrivateEase(PrivatePairs):
    """B of what is left of a noisy G."""

    options: EaseOptions

    def factors_of(self, values: NDArray[np.float64], vectors: NDArray[np.float64], edge: float) -> Arrays:
        """B of G = V Λ Vᵀ: with S = Λ / (Λ + λ), P = (I - V S Vᵀ) / λ and B_ij = (V S Vᵀ)_ij / (1 - (V S Vᵀ)_jj)."""
        factors = vectors * np.sqrt(values / (values + self.options.ease_regularization))
        scales = 1.0 / (1.0 - (factors**2).sum(axis=1))
        return {"factors": factors.astype(np.float32), "scales": scales.astype(np.float32)}
