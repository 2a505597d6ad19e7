"""A private sum of pairs: noise on the matrix of all users' pairs, and its leading eigenvectors.

Users give symmetric matrices M_u with Frobenius norm at most C. The numbers (M_ii, √2 M_ij for i < j) have the same
norm, so that N(0, (z C)²) on each of them is the Gaussian mechanism with sensitivity C: on the diagonal of the matrix
N(0, (z C)²), off it N(0, (z C)² / 2), the same above and below. What follows is made of the noisy matrix alone:

    M̃ = Σ_u M_u + N        M̂ = V_r Λ_r V_rᵀ, the r = `dp-rank` largest eigenvalues, those above 0

Published are factors and not M̂ itself, m r numbers: K[i, j] = f_i · f_j s_j.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bouquet.methods.parts import PAIRS
from bouquet.wire import TrainReply
from strategies.federation.private import PrivateSums
from strategies.numerics.eigenvectors import leading_pairs


def too_long(reply: TrainReply, clip: float) -> str:
    """Why the cells cannot be of so many users with limited matrices, or ""."""
    cells = reply.cells[PAIRS]
    rows = np.repeat(cells.rows, cells.lengths)
    values = cells.values.astype(np.float64)
    norm = np.sqrt((np.where(rows == cells.columns, 1.0, 2.0) * values**2).sum())
    if norm <= clip * len(reply.users) * (1 + 1e-6):
        return ""
    return f"the cells of '{PAIRS}' are larger than {len(reply.users)} users within dp-clip can give"


def noisy_pairs(
    privacy: PrivateSums, replies: Sequence[TrainReply], size: int, clip: float, server_round: int
) -> NDArray[np.float64]:
    """M̃ [m, m]; a release is spent.

    Args:
        replies: each with the upper halves of its users' matrices in sum.
        size: m.
    """
    upper = np.zeros((size, size))
    for reply in replies:
        cells = reply.cells[PAIRS]
        upper[np.repeat(cells.rows, cells.lengths), cells.columns] += cells.values
    at = np.triu_indices(size)
    diagonal = at[0] == at[1]
    values = upper[at]
    values[~diagonal] *= np.sqrt(2.0)
    values = privacy.noise_on(values, clip, server_round)
    values[~diagonal] /= np.sqrt(2.0)
    upper[at] = values
    upper.T[at] = values
    return upper


def leading(matrix: NDArray[np.float64], rank: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The r largest eigenvalues [r] of M̃, below 0 as 0, and their eigenvectors [m, r]."""
    values, vectors = leading_pairs(matrix, min(rank, len(matrix)))
    return np.maximum(values, 0.0), vectors
