"""FedCA: composite aggregation (Zhang et al., TOIS 44(2), 2026).

Every user u has an item table of its own, Q_u. Round t on the server, over the n users of the round:
    similarity          eq. 6    how alike two users' item tables are
    complementarity     eq. 7    how two users' items span the embedding space
    composite weights   eq. 5    a quadratic programme per user, solved exactly; eq. 8 is its printed form
    mixing              alg. 1   every user's own table from all tables
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from strategies.numerics.checks import refuse_non_finite, refuse_option, refuse_shape
from strategies.numerics.distances import squared_distances
from strategies.numerics.simplex import QuadraticProgramme, checked_cap, project_rows

Matrix = NDArray[np.float64]
Tables = NDArray[np.floating[Any]]
Paired = Literal["index", "greedy"]
Sign = Literal["printed", "orthogonal"]
Objective = Literal["eq5", "eq8"]
Solver = Literal["projection", "cvxpy"]

# Values of one user in a block of items: long enough for BLAS to be fast, short enough to bound memory.
BLOCK_VALUES = 4096
# Share of weights above which a dense product is faster, and values of one user in a block where it is not.
MANY_WEIGHTS = 0.1
SPARSE_BLOCK_VALUES = 128
# Bytes of a tile of pairs of users: its few arrays stay in a core's own cache.
TILE_BYTES = 2**19


def similarity_matrix(tables: Tables) -> Matrix:
    """s_uv = 1 / (1 + ‖Q_u − Q_v‖²), with the squared Frobenius norm (eq. 6).

    Args:
        tables: Q, [n, m, d], float32 or float64; a memory map is read block by block.
    Returns:
        s, [n, n], float64, symmetric, in (0, 1], with ones on the diagonal.
    Raises:
        ValueError: tables has other axes or is empty, or a value is not finite (names the first bad user).
    """
    distances = squared_distances(tables)
    distances += 1.0
    return np.reciprocal(distances, out=distances)


def complementarity_matrix(features: NDArray[Any], *, paired: Paired = "index", sign: Sign = "printed") -> Matrix:
    """c_uv = cos φ_uv, φ_uv = (1/k) Σ_l arccos |x_u^l · x_v^l| (eq. 7).

    Singular vectors have no sign, so cosines are taken without theirs, and φ lies in [0, π/2]. A zero vector stands
    for one that a user does not have: its angle to any vector is π/2, so c_uu < 1 for such a user. All others are
    scaled to length 1 in float64, because rounding to float32 and noise change lengths, and near 1 arccos makes an
    error of 1e-7 one of 4e-4.

    Args:
        features: X, [n, k, d], the k singular vectors of every user, zeros where a user has fewer.
        paired: "index" compares the l-th vectors of both users; "greedy" matches, among the vectors left, the two
            with the largest |cosine|, k times.
        sign: "printed" is eq. 7, which rewards aligned subspaces; "orthogonal" is 1 − cos φ, which rewards
            orthogonal ones, as the paper's words have it.
    Returns:
        c, [n, n], float64, symmetric, in [0, 1].
    Raises:
        ValueError: features has other axes or is empty, a value is not finite (names the first bad user), or an
            option is unknown.
    """
    count, k, _ = refuse_shape("features", features, "[users, vectors, dimensions]")
    refuse_option("paired", paired, get_args(Paired))
    refuse_option("sign", sign, get_args(Sign))
    refuse_non_finite(features, "the features of user {}")
    lengths = np.linalg.norm(features.astype(np.float64), axis=2, keepdims=True)
    unit = np.divide(features, lengths, out=np.zeros(features.shape), where=lengths > 0)
    unit = np.ascontiguousarray(unit.transpose(1, 0, 2))
    angle, planes = (_angle_by_index, k) if paired == "index" else (_angle_greedy, k * k)
    complementarity = np.empty((count, count))
    side = max(1, int((TILE_BYTES / (8 * planes)) ** 0.5))
    for u in range(0, count, side):
        for v in range(u, count, side):
            tile = np.cos(angle(unit[:, u : u + side], unit[:, v : v + side]))
            if u == v:  # symmetric whatever the order in which BLAS sums and ties are matched
                tile = np.triu(tile) + np.triu(tile, 1).T
            complementarity[u : u + side, v : v + side] = tile
            complementarity[v : v + side, u : u + side] = tile.T
    return complementarity if sign == "printed" else np.subtract(1.0, complementarity, out=complementarity)


def _angle_by_index(left: Matrix, right: Matrix) -> Matrix:
    """φ between users [k, a, d] and users [k, b, d], the l-th vectors with each other: [a, b]."""
    return _arccos(np.abs(left @ right.transpose(0, 2, 1))).mean(axis=0)


def _angle_greedy(left: Matrix, right: Matrix) -> Matrix:
    """φ between users [k, a, d] and users [k, b, d], vectors matched by largest |cosine| first: [a, b]."""
    k = len(left)
    cosines = np.abs(left[:, None] @ right[None].transpose(0, 1, 3, 2))
    pairs = cosines.reshape(k * k, *cosines.shape[2:])
    total = np.zeros(pairs.shape[1:])
    for _ in range(k):
        total += _arccos(pairs.max(axis=0))
        ours, theirs = np.divmod(pairs.argmax(axis=0).astype(np.int16), np.int16(k))
        for vector in range(k):
            # Matched vectors count as orthogonal: they come up again only when zeros are all that is left.
            cosines[vector] *= (ours != vector).astype(np.float64)
            cosines[:, vector] *= (theirs != vector).astype(np.float64)
    return total / k


def _arccos(cosines: Matrix) -> Matrix:
    """In place; rounding may have put a cosine above 1."""
    return np.arccos(np.minimum(cosines, 1.0, out=cosines), out=cosines)


def composite_weights(
    similarity: Matrix | None,
    complementarity: Matrix | None,
    sizes: NDArray[Any],
    alpha: float,
    beta: float,
    *,
    objective: Objective = "eq5",
    solver: Solver = "projection",
    cap: float | None = None,
) -> Matrix:
    """Aggregation weights w_uv of every user u over users v (eq. 5).

    The minimiser of Σ_v (w_v − p_v)² + α (w_v − s_v)² − β w_v c_v over the simplex is the projection of
    (2p + 2α s + β c) / (2 (1 + α)). Eq. 8 as printed leaves out the factor 1 + α; `objective="eq8"` reproduces it.
    With α = β = 0 every row is p, bit for bit: FedAvg's weights, or FCF's where all sizes are equal.

    Args:
        similarity: s, [n, n], in (0, 1]; may be None where alpha is 0.
        complementarity: c, [n, n], in [0, 1]; may be None where beta is 0.
        sizes: training interactions per user, [n], > 0; p is their share of the sum.
        alpha, beta: weights of similarity and complementarity, >= 0.
        objective: "eq5", or "eq8" for the programme as printed.
        solver: "projection" for all users at once, or "cvxpy" for one programme after the other.
        cap: the most that any single weight may be, in [1/n, 1]; None for no bound.
    Returns:
        w, [n, n], float64; row u sums to 1 and is non-negative.
    Raises:
        ValueError: shapes disagree, a value is not finite (names the first bad user), or an option is impossible.
        RunFailed: cvxpy found no solution.
    """
    refuse_option("objective", objective, get_args(Objective))
    refuse_option("solver", solver, get_args(Solver))
    share = _shares(sizes)
    count = len(share)
    bound = checked_cap(cap, count)
    target = np.tile(share, (count, 1))
    _add_term(target, "similarity", similarity, "alpha", alpha, alpha)
    _add_term(target, "complementarity", complementarity, "beta", beta, beta / 2)
    if alpha == beta == 0 and share.max() <= bound:
        return target  # a point of the simplex already: projecting it would only round it
    if objective == "eq5":
        target /= 1.0 + alpha
    if solver == "projection":
        return project_rows(target, cap)
    programme = QuadraticProgramme(count, cap)
    return np.stack([programme.solve(row) for row in target])


def _shares(sizes: NDArray[Any]) -> Matrix:
    """p, [n]: every user's share of all training interactions."""
    sizes = np.asarray(sizes, dtype=np.float64)
    if sizes.ndim != 1 or sizes.size == 0:
        raise ValueError(f"sizes must have one entry for each of at least one user, not shape {sizes.shape}.")
    good = np.isfinite(sizes) & (sizes > 0)
    if not good.all():
        bad = int(np.argmin(good))
        raise ValueError(f"The size of user {bad} must be a positive number, not {sizes[bad]}.")
    return sizes / sizes.sum()


def _add_term(target: Matrix, name: str, values: Matrix | None, letter: str, factor: float, scale: float) -> None:
    """Add scale · values to the target, after checking them and the factor of the objective that scale comes from."""
    if not (np.isfinite(factor) and factor >= 0):
        raise ValueError(f"{letter} must be a number of at least 0, not {factor}.")
    if values is None:
        if factor > 0:
            raise ValueError(f"{name} may be left out only where {letter} is 0; here it is {factor}.")
        return
    if values.shape != target.shape:
        raise ValueError(f"{name} must have shape {target.shape} for {len(target)} sizes, not {values.shape}.")
    refuse_non_finite(values, f"the {name} of user {{}}")
    if factor > 0:
        target += scale * values


def mix(weights: NDArray[Any], tables: Tables, out: Tables | None = None) -> Tables:
    """Q_u = Σ_v w_uv Q_v for r users u over all n users v (algorithm 1, line 3).

    A block of items of all users depends on no other item, so little memory is needed beside `tables` and `out`,
    and `out` may be `tables` itself.

    Args:
        weights: w, [r, n].
        tables: Q, [n, m, d], float32 or float64; a memory map is read block by block.
        out: where to put the result, [r, m, d], of the tables' type; `tables` or its first r users will do.
    Returns:
        The mixed tables, [r, m, d]: `out` if it was given.
    Raises:
        ValueError: shapes or types disagree, a weight is not finite (names the first bad user), or `out` overlaps
            `tables` in another way.
    """
    count, items, size = refuse_shape("tables", tables, "[users, items, embedding size]")
    if tables.dtype not in (np.float32, np.float64):
        raise ValueError(f"tables must be float32 or float64, not {tables.dtype}.")
    if weights.ndim != 2 or weights.shape[1] != count:
        raise ValueError(f"weights must have one column for each of {count} tables, not shape {weights.shape}.")
    refuse_non_finite(weights, "the weights of user {}")
    shape = (len(weights), items, size)
    if out is None:
        out = np.empty(shape, tables.dtype)
    if out.shape != shape or out.dtype != tables.dtype or not out.flags.c_contiguous:
        raise ValueError(f"out must be contiguous {tables.dtype} of shape {shape}, not {out.dtype} of {out.shape}.")
    if np.may_share_memory(out, tables) and (_place(out) != _place(tables)):
        raise ValueError("out overlaps tables, but is neither tables itself nor its first users.")
    weights = weights.astype(tables.dtype)
    flat = out.reshape(len(out), -1)
    if np.count_nonzero(weights) < MANY_WEIGHTS * weights.size:
        few, step = sparse.csr_array(weights), max(1, SPARSE_BLOCK_VALUES // size)
        for start in range(0, items, step):
            block = np.ascontiguousarray(tables[:, start : start + step]).reshape(count, -1)
            flat[:, start * size : (start + step) * size] = few @ block
        return out
    step = max(1, BLOCK_VALUES // size)
    # Users with the same weights have the same table: a product's rows may be rounded by where they stand in it.
    place_of: dict[bytes, int] = {}
    alike = [place_of.setdefault(row.tobytes(), len(place_of)) for row in weights]
    several = len(place_of) < len(weights)
    if several:
        weights = weights[np.unique(alike, return_index=True)[1]]
    for start in range(0, items, step):
        block = tables[:, start : start + step].reshape(count, -1)
        target = flat[:, start * size : (start + step) * size]
        if several:
            target[:] = (weights @ block)[alike]
        else:
            np.matmul(weights, block, out=target)
    return out


def _place(array: NDArray[Any]) -> tuple[int, tuple[int, ...]]:
    """Where an array lies: its address and strides."""
    return array.__array_interface__["data"][0], array.strides
