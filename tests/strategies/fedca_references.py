"""FedCA's stages by their plain definitions, and tables, features and rounds to try them on."""

from __future__ import annotations

import cvxpy
import numpy as np
from hypothesis import strategies as st

from strategies.fedca import complementarity_matrix, similarity_matrix

seeds = st.integers(0, 2**32 - 1)


def plain_similarity(tables):
    """Eq. 6 pair by pair, in float64."""
    flat = tables.reshape(len(tables), -1).astype(np.float64)
    return np.array([[1 / (1 + ((u - v) ** 2).sum()) for v in flat] for u in flat])


def plain_complementarity(features, paired="index"):
    """Eq. 7 pair by pair, in float64."""
    found = np.empty((len(features), len(features)))
    for u, ours in enumerate(features.astype(np.float64)):
        for v, theirs in enumerate(features.astype(np.float64)):
            left, angles = np.clip(np.abs(ours @ theirs.T), 0, 1), []
            if paired == "index":
                angles = np.arccos(np.diagonal(left))
            else:
                rows, columns = list(range(len(left))), list(range(len(left)))
                while rows:
                    row, column = max(((i, j) for i in rows for j in columns), key=lambda pair: left[pair])
                    angles.append(np.arccos(left[row, column]))
                    rows.remove(row)
                    columns.remove(column)
            found[u, v] = np.cos(np.mean(angles))
    return found


def random_features(source, users, k=4, size=16):
    """The k leading right singular vectors of random matrices, as a device sends them."""
    vectors = np.linalg.svd(source.normal(size=(users, 30, size)) + source.normal(size=size), full_matrices=False)[2]
    return vectors[:, :k].astype(np.float32)


def random_round(seed, users):
    """Similarity, complementarity and sizes of one round."""
    source = np.random.default_rng(seed)
    tables = source.normal(0, 0.1, (users, 20, 4)).astype(np.float32)
    return (
        similarity_matrix(tables),
        complementarity_matrix(random_features(source, users)),
        source.integers(1, 300, users),
    )


def trained_tables(users, items=800, size=16):
    """Tables that share a base and differ in the rows that each user trained."""
    source = np.random.default_rng(users)
    tables = np.tile(source.uniform(-0.1, 0.1, (items, size)).astype(np.float32), (users, 1, 1))
    for table in tables:
        touched = source.choice(items, source.integers(20, items // 2), replace=False)
        table[touched] += source.normal(0, 0.2, (len(touched), size)).astype(np.float32)
    return tables


def same(tables):
    """Everybody has the same table."""
    return np.tile(tables[:1], (len(tables), 1, 1))


def literal_eq5(p, s, c, alpha, beta):
    """Eq. 5 of one user as the paper writes it, sum of squares and all, given to a solver; and its objective."""
    w = cvxpy.Variable(len(p))
    squares = cvxpy.sum_squares(w - p) + alpha * cvxpy.sum_squares(w - s)
    cvxpy.Problem(cvxpy.Minimize(squares - beta * c @ w), [cvxpy.sum(w) == 1, w >= 0]).solve(
        "CLARABEL", tol_gap_abs=1e-13, tol_gap_rel=1e-13, tol_feas=1e-13
    )
    return w.value, lambda v: ((v - p) ** 2).sum() + alpha * ((v - s) ** 2).sum() - beta * (v @ c)


def with_value(shape, place, value):
    """Ones, but for one place."""
    array = np.ones(shape)
    array[place] = value
    return array
