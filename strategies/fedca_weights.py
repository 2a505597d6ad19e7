"""FedCA's weights in a round: similarity, complementarity and eq. 5, or the variants that its settings name."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bouquet.methods.fedca import FedCAOptions
from bouquet.randomness import Purpose, generator
from strategies.fedca import complementarity_matrix, composite_weights, similarity_matrix
from strategies.fedca_variants import component_similarity, drawn_weights, largest_weights

Matrix = NDArray[np.float64]

# Users whose part of S, C and W a run leaves behind (Fig. 7).
SHOWN_USERS = 10

T = TypeVar("T")


class Weighing:
    """The weights of one round after another.

    Args:
        options: FedCA's settings.
        seed: the run's, of what is drawn.
    Attributes:
        seconds: of each stage of the last round.
        shown: of the last round, [s] places of some of its users and S, C and W of these by name, [s, s].
    """

    def __init__(self, options: FedCAOptions, seed: int) -> None:
        self._options, self._seed = options, seed
        self.seconds: dict[str, float] = {}
        self.shown: tuple[NDArray[np.int64], dict[str, NDArray[np.floating]]] = (np.zeros(0, np.int64), {})

    @property
    def compares_tables(self) -> bool:
        """Whether weights depend on the users' tables."""
        return self._options.fedca_alpha > 0 or self._options.fedca_drawn_neighbours > 0

    def weights(
        self,
        server_round: int,
        sizes: NDArray[np.int64],
        tables: NDArray[np.float32] | None,
        features: NDArray[np.float32] | None,
    ) -> Matrix:
        """w, [n, n], how much each of n users takes of each.

        Args:
            sizes: [n] training interactions.
            tables: Q, [n, m, d]; wanted where `compares_tables`.
            features: X, [n, k, d]; None where users told nothing.
        """
        options, self.seconds = self._options, {}
        prior = sizes.astype(float) if options.fedca_prior == "size" else np.ones(len(sizes))
        similar = complementary = np.zeros((len(sizes), len(sizes)))
        if self.compares_tables:
            assert tables is not None
            measure = similarity_matrix if options.fedca_similarity == "eq6" else component_similarity
            similar = self._timed("similarity", lambda: measure(tables))
        if options.fedca_beta > 0 and features is not None:
            complementary = self._timed("complementarity", lambda: self._complementarity(features))
        weights = self._timed("weights", lambda: self._of_everybody(server_round, prior, similar, complementary))
        if options.fedca_neighbours:
            weights = largest_weights(weights, options.fedca_neighbours)
        if options.fedca_global_share:
            weights = (1 - options.fedca_global_share) * weights + options.fedca_global_share * prior / prior.sum()
        self._show(similar, complementary, weights)
        return weights

    def _of_everybody(self, server_round: int, prior: NDArray[np.float64], similar: Matrix, other: Matrix) -> Matrix:
        """Weights of eq. 5 from similarity and complementarity, or what stands in their place."""
        options = self._options
        if options.fedca_drawn_neighbours:
            source = generator(self._seed, server_round, Purpose.USER_SAMPLING, "neighbours")
            return drawn_weights(similar, prior, options.fedca_nearest, options.fedca_drawn_neighbours, source)
        return composite_weights(
            similar,
            other,
            prior,
            options.fedca_alpha,
            options.fedca_beta,
            objective=options.fedca_objective,
            solver=options.fedca_solver,
            cap=max(options.fedca_weight_cap, 1 / len(prior)) if options.fedca_weight_cap else None,
        )

    def _complementarity(self, features: NDArray[np.float32]) -> Matrix:
        options = self._options
        pairing, sign = options.fedca_complementarity_pairing, options.fedca_complementarity_sign
        if options.fedca_complementarity_measure == "sin":
            cosine = complementarity_matrix(features, paired=pairing)
            sine = np.sqrt(np.clip(1 - cosine**2, 0, 1))
            return sine if sign == "printed" else 1 - sine
        return complementarity_matrix(features, paired=pairing, sign=sign)

    def _show(self, *matrices: Matrix) -> None:
        count = len(matrices[0])
        chosen = np.linspace(0, count - 1, min(SHOWN_USERS, count)).round().astype(int)
        names = ("similarity", "complementarity", "weights")
        shown = {name: matrix[np.ix_(chosen, chosen)] for name, matrix in zip(names, matrices, strict=True)}
        self.shown = chosen, shown

    def _timed(self, stage: str, work: Callable[[], T]) -> T:
        begin = time.perf_counter()
        result: Any = work()
        self.seconds[stage] = time.perf_counter() - begin
        return result
