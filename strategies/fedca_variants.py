"""What FedCA's authors' code does where their text says something else, and other weights than those of eq. 5.

component_similarity    the similarity of the authors' code
largest_weights         a variant that we tried
drawn_weights           Section 3, Fig. 3: plain averaging over s users, drawn among the most similar ones
"""

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


def drawn_weights(
    similarity: Matrix, sizes: NDArray[np.floating], nearest: int, count: int, source: np.random.Generator
) -> Matrix:
    """FedAvg's weights over every user itself and `count` others, drawn among the `nearest` most similar ones (Fig. 3).

    The nearest are shuffled and the first are taken, as in the text, so that with the same source those of a smaller
    count are among those of a larger one. The text does not say whether a user's own table is in its mean; it is here.

    Args:
        similarity: s, [n, n]; the diagonal is not read.
        sizes: [n] what the mean is weighted by, > 0.
        nearest, count: of the n - 1 others, or all of them if there are fewer.
        source: of the shuffles.
    Returns:
        w, [n, n], float64; row u sums to 1.
    """
    n = len(similarity)
    others = np.where(np.eye(n, dtype=bool), -np.inf, similarity)
    # Itself comes last, and is cut off.
    order = np.argsort(-others, axis=1, kind="stable")[:, : min(nearest, n - 1)]
    drawn = source.permuted(order, axis=1)[:, :count]
    taken = np.eye(n)
    np.put_along_axis(taken, drawn, 1.0, axis=1)
    weights = taken * sizes
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))
