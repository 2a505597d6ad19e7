"""GF-CF, the server's half (Shen et al., 2021; docs/methods/champions.md).

D_i       how many users have each item
G̃         X̃ᵀ X̃ = D_i^-½ (Σ_u x_u x_uᵀ / n_u) D_i^-½, since X̃ = D_u^-½ X D_i^-½
V         right singular vectors of X̃ = eigenvectors of G̃
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bouquet.arrays import Arrays
from bouquet.cells import FINE
from bouquet.methods.gf_cf import GfCfOptions
from strategies.numerics.eigenvectors import leading
from strategies.sums.base import Largest, Sums, SumsStrategy, whole


class GfCf(SumsStrategy):
    """Publishes G̃, V and D_i^½."""

    options: GfCfOptions

    def largest(self, sizes: NDArray[np.float64]) -> Mapping[str, Largest]:
        # n (n + 1) / 2 cells of 1 / n, which is rounded by at most half a quantum. A cell is bounded by 1 and not by
        # 1 / n: a history that was shorter before takes that off.
        line = np.minimum(sizes, 1.0) + sizes * FINE / 2
        return {
            "together": Largest(np.minimum(sizes, 1.0), line * (sizes + 1) / 2, line),
            "counts": Largest(np.minimum(sizes, 1.0), sizes),
        }

    def weights_of(self, sums: Sums) -> sparse.csr_matrix:
        root = roots(sums)
        scale = np.divide(1.0, root, out=np.zeros_like(root), where=root > 0)
        upper = sums["together"].copy()
        upper.data *= scale[upper.indices]
        upper.data *= np.repeat(scale, np.diff(upper.indptr))
        return whole(upper)

    def model_of(self, sums: Sums) -> Arrays:
        weights = self.weights_of(sums)
        found = self.publishable(weights)
        if "vectors" in (specs := self.traveling({})):
            vectors = leading(weights, specs["vectors"].shape[1])
            found |= {"vectors": vectors.astype(np.float32), "root": roots(sums).astype(np.float32)}
        return found

    def most_cells(self) -> float:
        sizes, items = self.roster.sizes.astype(float), self.roster.num_items
        return min(float((sizes * (sizes + 1) / 2).sum()), items * (items + 1) / 2) + items

    def working_bytes(self) -> float:
        # eigsh holds twice as many vectors as are wanted, in float64.
        rank = self.options.gf_cf_rank if self.options.gf_cf_mixture > 0 else 0
        return super().working_bytes() + 8.0 * self.roster.num_items * 2 * min(rank, self.roster.num_items)


def roots(sums: Sums) -> NDArray[np.float64]:
    """[m] D_i^½."""
    return np.sqrt(np.asarray(sums["counts"].todense(), float).ravel())
