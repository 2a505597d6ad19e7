"""iALS on a device: its own vector in closed form, and what it adds to the sums that items are solved from.

With items I_u, the rows of V (m, d), α0, λ, ν as in the settings (Rendle et al., 2022, eq. 5 and 10):

    loss of u     Σ_{i ∈ I_u} (1 - u·v_i)² + α0 Σ_i (u·v_i)² + λ_u |u|²,    λ_u = λ (|I_u| + α0 m)^ν
    its minimum   u = (Σ_{i ∈ I_u} v_i v_iᵀ + α0 VᵀV + λ_u I)^-1 Σ_{i ∈ I_u} v_i

which leaves |I_u| - u·Σ_{i ∈ I_u} v_i of the loss. Nothing of it is kept: u is solved for in every round, from the V
that the sweep began with.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Arrays, Specs
from bouquet.errors import WireError
from bouquet.methods.ials import IalsOptions
from bouquet.packed import PackedArray
from bouquet.ragged import Ragged
from client_app.sums.counter import Published
from client_app.sums.solver import GivenSums, RowTotal, Solver, rows_bytes


class Ials(Solver):
    """To the first message of a sweep Σ u, Σ u (u·v_i), Σ 1 by item, and Σ u uᵀ; to a step Σ u (u·p_i) by item."""

    options: IalsOptions

    @property
    def traveling(self) -> Specs:
        options, m = self.options, self.num_items
        return options.published(m) | options.direction(m) | options.sums(m, first=True)

    def given(self, shared: Arrays, histories: Ragged) -> GivenSums:
        first = "direction" not in shared
        if set(shared) - {"direction"} != {"factors"}:
            raise WireError(f"a sweep of ials has 'factors', and in its steps 'direction', not {', '.join(shared)}")
        factors = shared["factors"].astype(np.float64)
        along = factors if first else shared["direction"].astype(np.float64)
        vectors = self.vectors(factors, histories)
        fit = _travels(vectors**2)
        specs = self.options.sums(self.num_items, first=first)
        totals = {name: RowTotal(spec.shape) for name, spec in specs.items() if spec.by_item}
        loss = np.full(len(histories), np.nan, np.float32)
        for user in np.flatnonzero(fit).tolist():
            items, vector = histories.row(user), vectors[user]
            product = np.outer(along[items] @ vector, vector)
            fit[user] = _travels(product).all()
            if not fit[user]:
                continue
            totals["product"].add(items, product)
            if first:
                totals["target"].add(items, np.broadcast_to(vector, product.shape))
                totals["count"].add(items, np.ones(len(items)))
            if len(items):
                loss[user] = 1 - vector @ factors[items].sum(axis=0) / len(items)
        alone = len(histories) == 1
        sums = {name: total.packed(alone) for name, total in totals.items()}
        if first:
            gram = vectors[fit].T @ vectors[fit]
            sums["gram"] = PackedArray(None, gram.astype(np.float32) if alone else gram)
        return GivenSums(sums, fit, loss, self._upload_bytes(specs, histories.lengths))

    def vectors(self, factors: NDArray[np.float64], histories: Ragged) -> NDArray[np.float64]:
        """[k, d] u of each of these users; not finite where it cannot be solved for."""
        options, (m, d) = self.options, factors.shape
        with np.errstate(over="ignore", invalid="ignore"):
            everywhere = options.ials_unobserved * (factors.T @ factors)
            found = np.zeros((len(histories), d))
            for user in range(len(histories)):
                own = factors[histories.row(user)]
                held = options.ials_regularization * (len(own) + options.ials_unobserved * m) ** options.ials_frequency
                try:
                    found[user] = np.linalg.solve(own.T @ own + everywhere + held * np.eye(d), own.sum(axis=0))
                except np.linalg.LinAlgError:
                    found[user] = np.nan
        return found

    def scores(self, published: Published, histories: Ragged) -> NDArray[np.float32]:
        """[k, m] u·v_j, with u solved from the history, so that whoever has one is recommended to at once."""
        factors = published["factors"].astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(self.vectors(factors, histories) @ factors.T, np.float32)

    def round_bytes(self, returning: Specs, users: int) -> float:
        # Sums and the arrays that came, in float64, and the users' vectors.
        tables = sum(8 * spec.size for spec in returning.values()) + 16 * self.num_items * self.options.ials_rank
        return float(tables + 8 * users * self.options.ials_rank)

    def _upload_bytes(self, specs: Specs, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        by_item = [spec.size // spec.shape[0] for spec in specs.values() if spec.by_item]
        whole = sum(4 * spec.size for spec in specs.values() if not spec.by_item)
        return whole + sum((rows_bytes(lengths, self.num_items, words) for words in by_item), np.zeros_like(lengths))


def _travels(rows: NDArray[np.float64]) -> NDArray[np.bool_]:
    """[k] whether numbers [k, d] are finite, as 32-bit numbers too."""
    with np.errstate(over="ignore"):
        return np.asarray(np.isfinite(rows.astype(np.float32)).all(axis=1))
