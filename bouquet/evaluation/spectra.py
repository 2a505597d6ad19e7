"""How much of its dimensions an embedding table uses, by its singular values.

information abundance     Guo et al. (2023), PLGC eq. 5   IA(V) = Σ_j σ_j / max_j σ_j, between 1 and d
variance of the singular values of cov(V)                 HeteFedRec, Table V: 0 where all directions weigh alike
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def singular_values(table: Any) -> NDArray[np.float64]:
    """The singular values of tables, the largest first.

    Args:
        table: [..., m, d], an array or a torch tensor.
    Returns:
        [..., min(m, d)].
    """
    return np.asarray(np.linalg.svd(_array(table), compute_uv=False), dtype=np.float64)


def information_abundance(table: Any) -> float:
    """IA(V) = Σ_j σ_j / max_j σ_j of a table [m, d]; 1 for rank one, d for orthogonal columns of equal length.

    Returns:
        At least 1; 0 for a table of zeros, which has no information at all.
    """
    return float(abundance(singular_values(table)))


def abundance(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Σ_j σ_j / max_j σ_j over the last axis of singular values; 0 where all are 0."""
    largest = values.max(axis=-1)
    return np.asarray(np.where(largest > 0, values.sum(axis=-1) / np.where(largest > 0, largest, 1.0), 0.0))


def singular_value_variance(table: Any) -> NDArray[np.float64]:
    """The variance of the singular values of cov(V), for tables [..., m, d]: [...]; 0 for a single row."""
    values = _array(table)
    centred = values - values.mean(axis=-2, keepdims=True)
    return np.asarray((singular_values(centred) ** 2 / max(values.shape[-2] - 1, 1)).var(axis=-1))


def _array(table: Any) -> NDArray[np.float64]:
    if hasattr(table, "detach"):
        table = table.detach().cpu().numpy()
    return np.asarray(table, dtype=np.float64)
