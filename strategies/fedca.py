"""FedCA: composite aggregation (Zhang et al., TOIS 44(2), 2026).

Every user u has an item table of its own, Q_u. Round t on the server, over the n users of the round:
    similarity          eq. 6    how alike two users' item tables are
    complementarity     eq. 7    how two users' items span the embedding space
    composite weights   eq. 5    a quadratic programme per user, solved exactly; eq. 8 is its printed form
    mixing              alg. 1   every user's table from all tables
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from strategies.simplex import QuadraticProgramme, checked_cap, project_rows, refuse_non_finite

Matrix = NDArray[np.float64]
Tables = NDArray[np.floating[Any]]
Paired = Literal["index", "greedy"]
Sign = Literal["printed", "orthogonal"]
Objective = Literal["eq5", "eq8"]
Solver = Literal["projection", "cvxpy"]

# Values of one user in a block of items: long enough for BLAS to be fast, and a bound on memory.
BLOCK_VALUES = 4096
# Bytes of a tile of pairs of users: it stays in a core's own cache.
TILE_BYTES = 2**19
# Squared norms may exceed squared distances by this factor before float32 loses the sixth digit of a similarity.
CANCELLATION = 3.0


def similarity_matrix(tables: Tables) -> Matrix:
    """s_uv = 1 / (1 + ‖Q_u − Q_v‖²), with the squared Frobenius norm (eq. 6).

    The distances come from Gram products, ‖a‖² + ‖b‖² − 2 a·b, of blocks of items. Float32 tables are multiplied in
    float32 and summed over blocks in float64; where tables lie so much closer to each other than to the mean table
    that digits would cancel, all is done again in float64.

    Args:
        tables: Q, [n, m, d], float32 or float64; a memory map is read block by block.
    Returns:
        s, [n, n], float64, symmetric, in (0, 1], with ones on the diagonal.
    Raises:
        ValueError: tables has other axes or is empty, or a value is not finite (names the first bad user).
    """
    _refuse_shape("tables", tables, "[users, items, embedding size]")
    if tables.dtype == np.float32:
        with np.errstate(over="ignore", invalid="ignore"):
            similarity, exact = _similarity(_centred_gram(tables, np.float32))
        if exact:
            return similarity
    for start in range(len(tables)):
        refuse_non_finite(tables[start : start + 1], "The table of user {}", start)
    similarity, _ = _similarity(_centred_gram(tables, np.float64))
    return similarity


def _centred_gram(tables: Tables, dtype: type[np.floating[Any]]) -> Matrix:
    """Inner products of the users' tables less their mean, [n, n], multiplied in `dtype`."""
    count, items, size = tables.shape
    gram = np.zeros((count, count))
    step = max(1, BLOCK_VALUES // size)
    for start in range(0, items, step):
        block = tables[:, start : start + step].reshape(count, -1)
        # Centre on a shared base first: float32 Gram products of raw tables lose three digits here.
        centred = np.subtract(block, block.mean(axis=0, dtype=dtype), dtype=dtype)
        gram += centred @ centred.T
    return gram


def _similarity(gram: Matrix) -> tuple[Matrix, bool]:
    """Eq. 6 in place of the inner products, and whether float32 products were exact enough for it."""
    norms = np.diagonal(gram).copy()
    exact = bool(np.isfinite(norms).all())
    rows = max(1, TILE_BYTES // (8 * len(gram)))
    for start in range(0, len(gram), rows):
        block = gram[start : start + rows]
        both = norms[start : start + rows, None] + norms
        own = np.arange(len(block))
        both[own, start + own] = 0.0  # a user is at distance 0 from itself, whatever rounding says
        block *= -2.0
        block += both
        np.maximum(block, 0.0, out=block)
        block += 1.0
        exact = exact and not (both > CANCELLATION * block).any()
        np.reciprocal(block, out=block)
    return gram, exact


def complementarity_matrix(features: NDArray[Any], *, paired: Paired = "index", sign: Sign = "printed") -> Matrix:
    """c_uv = cos φ_uv, φ_uv = (1/k) Σ_l arccos |x_u^l · x_v^l| (eq. 7).

    Singular vectors have no sign, so cosines are taken without it, and φ lies in [0, π/2]. A zero vector stands for
    one that a user does not have; its angle to any vector is π/2, so that c_uu < 1 for a user with such padding.
    Other vectors are scaled to length 1 in float64, because float32 on the wire and noise change lengths and arccos
    near 1 turns an error of 1e-7 into one of 4e-4.

    Args:
        features: X, [n, k, d], the k singular vectors of every user, zero where there are fewer.
        paired: "index" compares the l-th vectors of both users; "greedy" matches, of all pairs left, the pair with
            the largest |cosine|, k times.
        sign: "printed" is eq. 7, which rewards aligned subspaces; "orthogonal" is 1 − cos φ, which rewards
            orthogonal ones, as the paper's words say.
    Returns:
        c, [n, n], float64, symmetric, in [0, 1].
    Raises:
        ValueError: features has other axes or is empty, a value is not finite (names the first bad user), or an
            option is unknown.
    """
    _refuse_shape("features", features, "[users, vectors, dimensions]")
    _refuse_option("paired", paired, Paired)
    _refuse_option("sign", sign, Sign)
    refuse_non_finite(features, "The features of user {}")
    count, k, _ = features.shape
    lengths = np.linalg.norm(features.astype(np.float64), axis=2, keepdims=True)
    unit = np.divide(features, lengths, out=np.zeros(features.shape), where=lengths > 0)
    by_vector = np.ascontiguousarray(unit.transpose(1, 0, 2))
    angle = _mean_angle_by_index if paired == "index" else _mean_angle_greedy
    complementarity = np.empty((count, count))
    side = max(1, int((TILE_BYTES / (8 * (k if paired == "index" else k * k))) ** 0.5))
    for u in range(0, count, side):
        for v in range(u, count, side):
            tile = np.cos(angle(by_vector[:, u : u + side], by_vector[:, v : v + side]))
            complementarity[u : u + side, v : v + side] = tile
            complementarity[v : v + side, u : u + side] = tile.T
    return complementarity if sign == "printed" else 1.0 - complementarity


def _mean_angle_by_index(left: Matrix, right: Matrix) -> Matrix:
    """φ between users [k, a, d] and users [k, b, d], the l-th vector against the l-th: [a, b]."""
    return _angles(np.abs(left @ right.transpose(0, 2, 1))).mean(axis=0)


def _mean_angle_greedy(left: Matrix, right: Matrix) -> Matrix:
    """φ between users [k, a, d] and users [k, b, d], vectors matched by largest |cosine| first: [a, b]."""
    k = len(left)
    cosines = np.abs(left[:, None] @ right[None].transpose(0, 1, 3, 2))
    flat = cosines.reshape(k * k, *cosines.shape[2:])
    total = np.zeros(flat.shape[1:])
    for _ in range(k):
        best = flat.argmax(axis=0).astype(np.int16)
        total += _angles(flat.max(axis=0))
        row, column = best // k, best % k
        for vector in range(k):
            # A matched vector is out of the race: less than any |cosine|.
            np.copyto(cosines[vector], -1.0, where=row == vector)
            np.copyto(cosines[:, vector], -1.0, where=column == vector)
    return total / k


def _angles(cosines: Matrix) -> Matrix:
    """arccos in place, of cosines that rounding may have put above 1."""
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
    With α = β = 0 every row is p itself, bit for bit: FedAvg, or FCF with equal sizes.

    Args:
        similarity: s, [n, n], in (0, 1]; may be None where alpha is 0.
        complementarity: c, [n, n], in [0, 1]; may be None where beta is 0.
        sizes: training interactions per user, [n], > 0; p is their share of the sum.
        alpha, beta: weights of similarity and complementarity, >= 0.
        objective: "eq5", or "eq8" for the programme as printed.
        solver: "projection" for all users at once, or "cvxpy" for one quadratic programme after another.
        cap: the most that any single weight may be, in [1/n, 1]; None for no bound.
    Returns:
        w, [n, n], float64; row u sums to 1 and is non-negative.
    Raises:
        ValueError: shapes disagree, a value is not finite (names the first bad user), or an option is impossible.
        RunFailed: cvxpy found no solution.
    """
    _refuse_option("objective", objective, Objective)
    _refuse_option("solver", solver, Solver)
    share = _shares(sizes)
    count = len(share)
    bound = checked_cap(cap, count)
    target = np.tile(share, (count, 1))
    target += _term("similarity", similarity, count, "alpha", alpha) * alpha
    target += _term("complementarity", complementarity, count, "beta", beta) * (beta / 2)
    if alpha == beta == 0 and share.max() <= bound:
        return target  # on the simplex already; a projection would only round it
    if objective == "eq5":
        target /= 1 + alpha
    if solver == "projection":
        return project_rows(target, cap)
    programme = QuadraticProgramme(count, cap)
    return np.stack([programme.solve(row) for row in target])


def _shares(sizes: NDArray[Any]) -> Matrix:
    """p, [n]: every user's share of all training interactions."""
    sizes = np.asarray(sizes, dtype=np.float64)
    if sizes.ndim != 1 or len(sizes) == 0:
        raise ValueError(f"sizes must have one entry per user, shape [users], not {sizes.shape}.")
    good = np.isfinite(sizes) & (sizes > 0)
    if not good.all():
        bad = int(np.argmin(good))
        raise ValueError(f"The size of user {bad} must be a positive number, not {sizes[bad]}.")
    return sizes / sizes.sum()


def _term(name: str, values: Matrix | None, count: int, letter: str, factor: float) -> Matrix | float:
    """A matrix of the objective after checking, 0 where its factor is."""
    if not (np.isfinite(factor) and factor >= 0):
        raise ValueError(f"{letter} must be a number of at least 0, not {factor}.")
    if values is None:
        if factor > 0:
            raise ValueError(f"With {letter} = {factor} the {name} matrix is needed; only with 0 may it be left out.")
        return 0.0
    if values.shape != (count, count):
        raise ValueError(f"{name} must have shape {(count, count)} for {count} sizes, not {values.shape}.")
    refuse_non_finite(values, f"The {name} of user {{}}")
    return values if factor > 0 else 0.0


def mix(weights: NDArray[Any], tables: Tables, out: Tables | None = None) -> Tables:
    """Q_u = Σ_v w_uv Q_v for r users u over all n users v (algorithm 1, line 3).

    Items are mixed in blocks, each from all users at once and of no other item, so that little memory is needed
    beside `tables` and `out`, and `out` may be `tables` itself.

    Args:
        weights: w, [r, n].
        tables: Q, [n, m, d], float32 (float64 stays so); a memory map is read block by block.
        out: where to put the result, [r, m, d], of the same type; `tables` or its first r users will do.
    Returns:
        The mixed tables, [r, m, d]: `out` if it was given.
    Raises:
        ValueError: shapes or types disagree, a weight is not finite (names the first bad user), or `out` overlaps
            `tables` in another way.
    """
    count, items, size = _refuse_shape("tables", tables, "[users, items, embedding size]")
    if weights.ndim != 2 or weights.shape[1] != count:
        raise ValueError(f"weights must have shape [any, {count}] for {count} tables, not {weights.shape}.")
    refuse_non_finite(weights, "The weights of user {}")
    shape = (len(weights), items, size)
    if out is None:
        out = np.empty(shape, tables.dtype)
    elif out.shape != shape or out.dtype != tables.dtype:
        raise ValueError(f"out must be {tables.dtype} of shape {shape}, not {out.dtype} of shape {out.shape}.")
    elif np.may_share_memory(out, tables) and (_address(out), out.strides) != (_address(tables), tables.strides):
        raise ValueError(
            "out overlaps tables with other rows or items; only tables itself or its first users may be out."
        )
    weights = weights.astype(tables.dtype)
    step = max(1, BLOCK_VALUES // size)
    for start in range(0, items, step):
        block = tables[:, start : start + step]
        mixed = weights @ block.reshape(count, -1)
        out[:, start : start + step] = mixed.reshape(len(weights), *block.shape[1:])
    return out


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _refuse_shape(name: str, array: NDArray[Any], axes: str) -> tuple[int, ...]:
    if array.ndim != 3 or array.size == 0:
        raise ValueError(f"{name} must have the axes {axes}, none of them empty, not shape {array.shape}.")
    return array.shape


def _refuse_option(name: str, value: str, allowed: Any) -> None:
    if value not in get_args(allowed):
        raise ValueError(f"{name} must be one of {', '.join(get_args(allowed))}, not '{value}'.")
