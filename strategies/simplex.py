"""Euclidean projection onto the probability simplex, and the quadratic programme that it solves.

    w = argmin ‖w − y‖²  subject to  Σ w = 1,  w ≥ 0  (and w ≤ cap)

is w = clip(y − τ, 0, cap) for the one τ at which the weights sum to 1 (Held, Wolfe and Crowder, 1974). `project_rows`
finds τ exactly for all rows at once. `QuadraticProgramme` hands the same problem to a convex solver, as FedCA's paper
does; it is the reference for the projection and the place for constraints of one's own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.errors import RunFailed

Matrix = NDArray[np.float64]

# Rows of one block, in bytes: the few arrays of a block stay in a core's own cache.
BLOCK_BYTES = 2**18


def project_rows(y: NDArray[Any], cap: float | None = None) -> Matrix:
    """The nearest point of the probability simplex to every row.

    Only differences within a row matter, so rows of any size give sums of 1 within rounding. O(n log n) a row.

    Args:
        y: the points, [r, n], finite.
        cap: the most that any single weight may be, in [1/n, 1]; None for no bound.
    Returns:
        w, [r, n], float64; every row is non-negative and sums to 1.
    Raises:
        ValueError: y is empty, no matrix or not finite (names the first bad row), or the cap is impossible.
    """
    y = np.asarray(y)
    if y.ndim != 2 or y.size == 0:
        raise ValueError(f"y must be a matrix with at least one row and one column, not of shape {y.shape}.")
    count = y.shape[1]
    bound = checked_cap(cap, count)
    # Weights at the cap are at least this many where all weight is taken: τ lies within a cap below that value.
    leaders = min(int(np.ceil(1.0 / bound - 1e-9)), count)
    weights = np.empty(y.shape)
    rows = max(1, BLOCK_BYTES // (8 * count))
    for start in range(0, len(y), rows):
        block = y[start : start + rows].astype(np.float64)
        refuse_non_finite(block, "Row {} of y", start)
        ordered = np.sort(block, axis=1)
        base = ordered[:, count - leaders, None].copy()
        with np.errstate(over="ignore"):  # infinite differences are cut to the cap like all large ones
            np.clip(ordered - base, -2 * bound, bound, out=ordered)
            np.clip(block - base, -2 * bound, bound, out=block)
        tau = _threshold(ordered) if cap is None else _capped_threshold(ordered, bound)
        weights[start : start + rows] = _weights(block, tau, bound)
    return weights


def _threshold(ordered: Matrix) -> Matrix:
    """τ of rows in ascending order whose largest value is 0, without a cap: (Σ of the ρ largest − 1) / ρ.

    ρ, the number of positive weights, is the number of values with j·y_(j) > Σ of the j largest − 1.
    """
    descending = ordered[:, ::-1]
    sums = np.cumsum(descending, axis=1)
    sums -= 1.0
    positive = np.count_nonzero(descending * np.arange(1.0, ordered.shape[1] + 1) > sums, axis=1)
    return np.take_along_axis(sums, positive[:, None] - 1, axis=1) / positive[:, None]


def _capped_threshold(ordered: Matrix, cap: float) -> Matrix:
    """τ with a cap, from the breakpoints of f(τ) = Σ clip(y − τ, 0, cap), which falls in straight pieces from n·cap to 0.

    A value leaves the cap at τ = y − cap and reaches 0 at τ = y; between breakpoints the slope of f is minus the
    number of values between both.
    """
    count = ordered.shape[1]
    breakpoints = np.concatenate([ordered - cap, ordered], axis=1)
    order = np.argsort(breakpoints, axis=1, kind="stable")
    breakpoints = np.take_along_axis(breakpoints, order, axis=1)
    between = np.cumsum(np.where(order < count, 1.0, -1.0), axis=1)
    fallen = np.cumsum(between[:, :-1] * np.diff(breakpoints, axis=1), axis=1)
    value = count * cap - np.concatenate([np.zeros((len(ordered), 1)), fallen], axis=1)
    last = np.maximum(np.count_nonzero(value >= 1.0, axis=1)[:, None] - 1, 0)
    begin, at, slope = (np.take_along_axis(array, last, axis=1) for array in (breakpoints, value, between))
    return begin + (at - 1.0) / np.maximum(slope, 1.0)


def _weights(block: Matrix, tau: Matrix, cap: float) -> Matrix:
    """clip(y − τ, 0, cap), with one Newton step on τ that takes the rounding of long sums away."""
    for _ in range(2):
        weights = np.clip(block - tau, 0.0, cap)
        free = np.count_nonzero((weights > 0) & (weights < cap), axis=1)[:, None]
        tau = tau + (weights.sum(axis=1, keepdims=True) - 1.0) / np.maximum(free, 1)
    return weights


class QuadraticProgramme:
    """min wᵀw − 2 yᵀw over the simplex, with cvxpy: compiled once, solved for many y.

    Args:
        size: n, the number of weights.
        cap: the most that any single weight may be, in [1/n, 1]; None for no bound.
    Raises:
        ValueError: the cap is impossible.
    """

    def __init__(self, size: int, cap: float | None = None) -> None:
        # Importing cvxpy takes about a second and only this reference needs it.
        import cvxpy

        self.cap = checked_cap(cap, size)
        self._target = cvxpy.Parameter(size)
        self._weights = cvxpy.Variable(size, nonneg=True)
        constraints = [cvxpy.sum(self._weights) == 1]
        if self.cap < 1:
            constraints.append(self._weights <= self.cap)
        objective = cvxpy.sum_squares(self._weights) - 2 * self._target @ self._weights
        self.problem = cvxpy.Problem(cvxpy.Minimize(objective), constraints)

    def solve(self, y: NDArray[Any]) -> Matrix:
        """The weights for one y, [n], non-negative and summing to 1 (the solver's own slack of about 1e-8 is removed).

        Raises:
            ValueError: y has another length or is not finite.
            RunFailed: the solver found no solution.
        """
        y = np.asarray(y, dtype=np.float64)
        if y.shape != self._target.shape:
            raise ValueError(f"y must have shape {self._target.shape}, not {y.shape}.")
        refuse_non_finite(y[None], "Row {} of y")
        # With Σ w = 1 a constant added to y changes nothing but the solver's rounding.
        self._target.value = y - y.max()
        self.problem.solve(solver="CLARABEL")
        if self.problem.status != "optimal":
            raise RunFailed(f"cvxpy found no aggregation weights: the solver ended with '{self.problem.status}'.")
        weights = np.clip(self._weights.value, 0.0, self.cap)
        return weights / weights.sum()


def checked_cap(cap: float | None, count: int) -> float:
    """The cap as a number, 1 for none.

    Raises:
        ValueError: `count` weights of at most `cap` cannot sum to 1, or the cap is above 1.
    """
    if cap is None:
        return 1.0
    if not 1.0 - 1e-12 <= cap * count or not cap <= 1.0:
        raise ValueError(f"A cap on each of {count} weights must lie between 1/{count} and 1, not be {cap}.")
    return float(cap)


def refuse_non_finite(rows: NDArray[Any], where: str, start: int = 0) -> None:
    """Refuse rows with NaN or infinite values.

    Args:
        rows: [r, …].
        where: what a row is, with {} for its number.
        start: the number of the first row.
    Raises:
        ValueError: names the first bad row.
    """
    finite = np.isfinite(rows).reshape(len(rows), -1).all(axis=1)
    if not finite.all():
        raise ValueError(f"{where.format(start + int(np.argmin(finite)))} holds a value that is not finite.")
