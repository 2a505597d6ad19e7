"""Euclidean projection onto the probability simplex, and the same as a quadratic programme.

    w = argmin ‖w − y‖²   subject to   Σ w = 1,   0 ≤ w (≤ cap)

is w = clip(y − τ, 0, cap) with the one τ at which the weights sum to 1 (Held, Wolfe and Crowder, 1974).
`project_rows` finds τ exactly, for all rows at once. `QuadraticProgramme` hands the problem to a convex solver, as the
FedCA paper does: it is what the projection is tested against.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.errors import RunFailed
from bouquet.extras import need
from strategies.numerics.checks import refuse_non_finite

Matrix = NDArray[np.float64]

# Rows of one block, in bytes: the few arrays of a block stay in a core's own cache.
BLOCK_BYTES = 2**18


def project_rows(y: NDArray[Any], cap: float | None = None) -> Matrix:
    """The nearest point of the probability simplex to every row, in O(n log n) a row.

    Args:
        y: [r, n], finite, of any size: only differences within a row matter.
        cap: the most that any single weight may be, in [1/n, 1]; None for no bound.
    Returns:
        w, [r, n], float64; every row is non-negative and sums to 1 within rounding.
    Raises:
        ValueError: y is empty, no matrix or not finite (names the first bad row), or the cap is impossible.
    """
    y = np.asarray(y)
    if y.ndim != 2 or y.size == 0:
        raise ValueError(f"y must be a matrix with at least one row and one column, not of shape {y.shape}.")
    bound = checked_cap(cap, y.shape[1])
    weights = np.empty(y.shape)
    rows = max(1, BLOCK_BYTES // (8 * y.shape[1]))
    for start in range(0, len(y), rows):
        block = y[start : start + rows].astype(np.float64)
        refuse_non_finite(block, "row {} of y", start)
        ordered = np.sort(block, axis=1)
        anchor = ordered[:, _anchor(bound, y.shape[1]), None].copy()
        block, ordered = (_within_reach(values, anchor, bound) for values in (block, ordered))
        tau = _threshold(ordered) if bound == 1.0 else _capped_threshold(ordered, bound)
        weights[start : start + rows] = _weights(block, tau, bound)
    return weights


def _anchor(cap: float, count: int) -> int:
    """Position in ascending order of a value y_a with y_a − cap ≤ τ ≤ y_a.

    It is the k-th largest with k = ⌈1/cap⌉: at τ = y_a at most k − 1 weights are positive, too few for a sum above 1;
    at τ = y_a − cap at least k weights are at the cap, enough for a sum of 1. Without a cap it is the largest value.
    """
    return max(0, count - int(np.ceil(1.0 / cap)))


def _within_reach(values: Matrix, anchor: Matrix, cap: float) -> Matrix:
    """Differences to the anchor, cut where the weight is 0 or the cap anyway, so that huge values cost no digits."""
    with np.errstate(over="ignore"):
        return np.clip(values - anchor, -2.0 * cap, cap)


def _threshold(ordered: Matrix) -> Matrix:
    """τ of rows in ascending order, without a cap: (Σ of the ρ largest − 1) / ρ.

    ρ, the number of positive weights, is the number of j with j·y_j > Σ of the j largest − 1, y_j the j-th largest.
    """
    descending = ordered[:, ::-1]
    sums = np.cumsum(descending, axis=1)
    sums -= 1.0
    positive = np.count_nonzero(descending * np.arange(1.0, ordered.shape[1] + 1.0) > sums, axis=1)[:, None]
    return np.take_along_axis(sums, positive - 1, axis=1) / positive


def _capped_threshold(ordered: Matrix, cap: float) -> Matrix:
    """τ of rows in ascending order with a cap: where f(τ) = Σ clip(y − τ, 0, cap) is 1.

    f falls from n·cap to 0 in straight pieces. A weight leaves the cap at τ = y − cap and reaches 0 at τ = y; the
    slope of a piece is minus the number of weights between the two.
    """
    count = ordered.shape[1]
    breaks = np.concatenate([ordered - cap, ordered], axis=1)
    order = np.argsort(breaks, axis=1, kind="stable")
    breaks = np.take_along_axis(breaks, order, axis=1)
    between = np.cumsum(np.where(order < count, 1.0, -1.0), axis=1)
    sums = np.full(breaks.shape, count * cap)
    sums[:, 1:] -= np.cumsum(between[:, :-1] * np.diff(breaks, axis=1), axis=1)
    last = np.maximum(np.count_nonzero(sums >= 1.0, axis=1)[:, None] - 1, 0)
    begin, at, slope = (np.take_along_axis(values, last, axis=1) for values in (breaks, sums, between))
    return begin + (at - 1.0) / slope


def _weights(block: Matrix, tau: Matrix, cap: float) -> Matrix:
    """clip(y − τ, 0, cap), after a Newton step on τ that takes away the rounding of its long sums."""
    weights = np.clip(block - tau, 0.0, cap)
    free = np.count_nonzero((weights > 0.0) & (weights < cap), axis=1)[:, None]
    tau = tau + (weights.sum(axis=1, keepdims=True) - 1.0) / np.maximum(free, 1)
    return np.clip(np.subtract(block, tau, out=block), 0.0, cap, out=block)


class QuadraticProgramme:
    """min wᵀw − 2 yᵀw over the simplex with cvxpy: compiled once, solved for many y.

    Args:
        count: n, the number of weights.
        cap: the most that any single weight may be, in [1/n, 1]; None for no bound.
    Raises:
        ValueError: the cap is impossible.
        ConfigError: cvxpy is not installed.
    """

    # A gap of ε in the objective is √ε in a weight that lies just on its bound, hence the small tolerances.
    SETTINGS = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-13) | dict.fromkeys(
        ("reduced_tol_gap_abs", "reduced_tol_gap_rel", "reduced_tol_feas"), 1e-12
    )

    def __init__(self, count: int, cap: float | None = None) -> None:
        need("cvxpy", "The reference solver")
        # Imported here because it takes seconds and only this reference needs it.
        from cvxpy import Minimize, Parameter, Problem, Variable
        from cvxpy.atoms.sum_squares import sum_squares

        self.cap = checked_cap(cap, count)
        self._y = Parameter(count)
        self._w = Variable(count)
        constraints = [self._w.sum() == 1, self._w >= 0]
        if self.cap < 1.0:
            constraints.append(self._w <= self.cap)
        self._problem = Problem(Minimize(sum_squares(self._w) - 2 * self._y @ self._w), constraints)

    def solve(self, y: NDArray[Any]) -> Matrix:
        """The weights for one y.

        Args:
            y: [n], finite.
        Returns:
            w, [n], float64, within 1e-6 of the exact weights; what the solver leaves below 0 is cut off, and the sum
            made 1.
        Raises:
            ValueError: y has another length or is not finite.
            RunFailed: the solver found no solution.
        """
        from cvxpy.error import SolverError

        y = np.asarray(y, dtype=np.float64)
        if y.shape != self._y.shape:
            raise ValueError(f"y must have shape {self._y.shape}, not {y.shape}.")
        refuse_non_finite(y[None], "row {} of y")
        # The solver fails on large numbers; with Σ w = 1 a constant that is added to y changes nothing.
        self._y.value = _within_reach(y, np.sort(y)[_anchor(self.cap, len(y))], self.cap)
        try:
            self._problem.solve(solver="CLARABEL", **self.SETTINGS)
        except SolverError as error:
            raise RunFailed(f"cvxpy found no aggregation weights ({error}); use the solver 'projection'.") from error
        if self._w.value is None:
            status = self._problem.status
            raise RunFailed(f"cvxpy found no aggregation weights ({status}); use the solver 'projection'.")
        weights = np.clip(self._w.value, 0.0, self.cap)
        return weights / weights.sum()


def checked_cap(cap: float | None, count: int) -> float:
    """The cap on each of `count` weights as a number, 1 for none.

    Raises:
        ValueError: weights of at most the cap cannot sum to 1, or the cap is above 1.
    """
    if cap is None:
        return 1.0
    # 1/n times n may round to a little less than 1.
    if not (cap * count >= 1.0 - 1e-12 and cap <= 1.0):
        raise ValueError(f"A cap on each of {count} weights must lie between 1/{count} and 1, not be {cap}.")
    return float(cap)
