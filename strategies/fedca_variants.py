"""What FedCA's authors' code does where their text says something else, and variants of the weights that we tried."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]

# Tables are centred for this many values at once.
_BLOCK_VALUES = 2**24


def component_similarity(tables: NDArray[np.floating]) -> Matrix:
    """s_uv = 1 / (1 + ‖a_u - a_v‖), where a_u [m] are the scores of Q_u's rows on its own first principal component.

    This is the similarity of the authors' code. The components are fitted for each user alone, so their signs and
    directions have nothing in common, distances are large, and s is nearly the identity.

    Args:
        tables: Q, [n, m, d].
    Returns:
        s, [n, n], float64.
    """
    count, items, size = tables.shape
    scores = np.empty((count, items))
    step = max(1, _BLOCK_VALUES // (items * size))
    for start in range(0, count, step):
        block = tables[start : start + step].astype(np.float64)
        block -= block.mean(axis=1, keepdims=True)
        component = np.linalg.eigh(block.transpose(0, 2, 1) @ block)[1][:, :, -1]
        # A library's components have a rule for signs, by the entry of largest size; so have these.
        largest = np.take_along_axis(component, np.abs(component).argmax(axis=1)[:, None], axis=1)
        component = component * np.where(largest < 0, -1.0, 1.0)
        scores[start : start + step] = (block @ component[:, :, None])[:, :, 0]
    norms = (scores**2).sum(axis=1)
    squared = np.maximum(norms[:, None] + norms - 2 * scores @ scores.T, 0.0)
    np.fill_diagonal(squared, 0.0)
    return np.asarray(1.0 / (1.0 + np.sqrt(squared)))


def largest_weights(weights: Matrix, count: int) -> Matrix:
    """The `count` largest weights of every user and its own, scaled to sum to 1.

    Args:
        weights: w, [n, n].
    Returns:
        [n, n]; a row that loses everything keeps itself alone.
    """
    n = len(weights)
    if count >= n:
        return weights
    kept = np.argpartition(weights, n - count, axis=1)[:, n - count :]
    sparse = np.zeros_like(weights)
    np.put_along_axis(sparse, kept, np.take_along_axis(weights, kept, axis=1), axis=1)
    np.fill_diagonal(sparse, np.diagonal(weights))
    sums = sparse.sum(axis=1, keepdims=True)
    np.fill_diagonal(sparse, np.where(sums[:, 0] > 0, np.diagonal(sparse), 1.0))
    return np.asarray(sparse / np.where(sums > 0, sums, 1.0))
