"""GF-CF on a device: which items it has together, out; two filters of what it has, in."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from bouquet.cells import FINE, quantized
from bouquet.methods.gf_cf import GfCfOptions
from bouquet.ragged import Ragged
from client_app.sums.counter import Counter, Published, apart, pairs


class GfCf(Counter):
    """x_u x_uᵀ / n_u and x_u out; scores x_u G̃ + α x_u D_i^-½ V Vᵀ D_i^½.

    The paper's x is divided by √n_u too, which changes no order of a user's items. 1 / n_u is rounded to a multiple of
    2^-24, so that sums are exact.
    """

    options: GfCfOptions

    def counted(self, histories: Ragged) -> Iterator[tuple[str, NDArray[np.int64], NDArray[np.float64] | float]]:
        items = histories.values.astype(np.int64)
        yield "counts", items, 1.0
        share = quantized(1.0 / histories.lengths[histories.row_of_value], FINE)
        for distance, places in apart(histories, range(int(histories.lengths.max(initial=0)))):
            one, other = items[places], items[places + distance]
            yield "together", np.minimum(one, other) * self.num_items + np.maximum(one, other), share[places]

    def sizes(self, lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        cells = pairs(lengths, range(int(lengths.max(initial=0)) + 1)) + lengths
        return cells, lengths + (lengths > 0)

    def scores(self, published: Published, histories: Ragged) -> NDArray[np.float32]:
        linear = super().scores(published, histories)
        if "vectors" not in published:
            return linear
        # In float64, so that items which score the same do so whatever users stand beside each other.
        ideal = self._seen(published, histories) @ published["vectors"].astype(np.float64).T
        ideal *= self.options.gf_cf_mixture * published["root"].astype(np.float64)
        return (linear + ideal).astype(np.float32)

    def _seen(self, published: Published, histories: Ragged) -> NDArray[np.float64]:
        """[k, d] x_u D_i^-½ V; an item that nobody counted says nothing."""
        root, items = published["root"][histories.values].astype(np.float64), histories.values
        weight = np.divide(1.0, root, out=np.zeros_like(root), where=root > 0)
        found = np.zeros((len(histories), published["vectors"].shape[1]))
        filled = histories.lengths > 0
        if filled.any():
            rows = published["vectors"][items] * weight[:, None]
            found[filled] = np.add.reduceat(rows, histories.indptr[:-1][filled], axis=0)
        return found
