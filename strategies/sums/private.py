"""A private sum of pairs: noise on the matrix of all users' pairs, and its leading eigenvectors.

Users give symmetric matrices M_u with Frobenius norm at most C. The numbers (M_ii, √2 M_ij for i < j) have the same
norm, so that N(0, (z C)²) on each of them is the Gaussian mechanism with sensitivity C: on the diagonal of the matrix
N(0, (z C)²), off it N(0, (z C)² / 2), the same above and below. What follows is made of the noisy matrix alone:

    noisy_pairs    M̃ = Σ_u M_u + N
    leading        M̂ = V_r Λ_r V_rᵀ, the r = `dp-rank` largest eigenvalues, those above 0
    factors_of     K[i, j] = f_i · f_j s_j of Λ_r and V_r, as the method has it

Published are f and s and not M̂ itself, m (r + 1) numbers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Arrays, Specs
from bouquet.cells import Cells, CellSpec
from bouquet.errors import ConfigError
from bouquet.methods.parts import PAIRS, SumsOptions, published_factors
from bouquet.reporting.events import event
from bouquet.wire import TrainReply
from strategies.federation.private import PrivateSums
from strategies.numerics.eigenvectors import leading_pairs
from strategies.sums.publishing import PublishingStrategy


class PrivatePairs(PublishingStrategy):
    """Publishes factors of the noisy sum of all users' pairs; of the sum itself nothing is kept."""

    update = "cells"
    options: SumsOptions
    privacy: PrivateSums

    @abstractmethod
    def factors_of(self, values: NDArray[np.float64], vectors: NDArray[np.float64], edge: float) -> Arrays:
        """ "factors" [m, r] and "scales" [m], of the leading eigenvalues [r] and eigenvectors [m, r].

        Args:
            edge: about the largest eigenvalue of the noise alone.
        """

    def traveling(self, specs: Specs) -> Specs:
        return published_factors(self.roster.num_items, self.config.dp_rank)

    def returning(self, specs: Specs) -> Specs:
        return {}

    def summed(self, num_items: int) -> Mapping[str, CellSpec]:
        return {PAIRS: CellSpec((num_items, num_items), symmetric=True)}

    def needed(self, shared: Arrays) -> Arrays:
        return {}

    def prepare(self) -> None:
        if self.config.num_server_rounds > 1:
            raise ConfigError(f"A private sum is told once: with {self.config.strategy} take num-server-rounds = 1.")

    def refusal(self, reply: TrainReply, users: NDArray[np.int64]) -> str:
        return too_long(reply, self.config.dp_clip)

    def aggregate(
        self, server_round: int, shared: Arrays, replies: list[TrainReply], users: list[NDArray[np.int64]]
    ) -> Arrays:
        clip, rank, m = self.config.dp_clip, self.config.dp_rank, self.roster.num_items
        pairs = noisy_pairs(self.privacy, replies, m, clip, server_round)
        # Wigner's semicircle ends at 2 √m times the standard deviation off the diagonal, σ / √2.
        edge = self.privacy.ledger.noise * clip * float(np.sqrt(2 * m))
        return self.publish(self.factors_of(*leading(pairs, rank), edge), server_round)

    def withdraw(self, user: int, given: Mapping[int, Mapping[str, Cells]]) -> None:
        if self.versions[user]:
            key = f"{int(self.roster.users[user]):016x}"
            event("not withdrawn", user=key, reason="what was published of a private sum cannot be taken back")

    def working_bytes(self) -> float:
        # The matrix, its upper half with noise and with numbers of rows and columns, and what is left of it.
        return 8.0 * 5 * self.roster.num_items**2


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
