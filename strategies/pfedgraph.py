"""pFedGraph: personalised aggregation along an inferred collaboration graph (Ye et al., ICML 2023).

Every user u has a model of its own, Q_u. Round t on the server, over the n users of the round:
    similarity    s_uv = cos(Q_u - Q_0, Q_v - Q_0)                     Q_0: the initial model
    graph         w_u = argmin Σ_v (w_uv - p_v)² - α w_uv s_uv         over the simplex: Σ_v w_uv = 1, w_uv >= 0
    aggregation   Q_u ← Σ_v w_uv Q_v                                   where the user starts in the next round

The programme of a user is min ‖w - (p + α s / 2)‖² up to a constant, so its minimiser is the Euclidean projection of
p + α s / 2 onto the simplex, for all users at once. With α = 0 that is p, and all users get FedAvg's mean.

Who is not in a round keeps the model that was last mixed for it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Array, Arrays, Specs, exchanged, initial_shared
from bouquet.methods import only_embeddings
from bouquet.methods.pfedgraph import PFedGraphOptions
from bouquet.needs import bytes_of
from bouquet.wire import TrainReply, Update
from strategies.fedca import mix, similarity_matrix
from strategies.federation.base import BaseStrategy, Extra
from strategies.gpfedrec import cosine_similarity, inner_products
from strategies.numerics.simplex import project_rows

Matrix = NDArray[np.float64]

# Changes of so many users are added at once.
USERS_AT_ONCE = 32


def collaboration_graph(similarity: Matrix, shares: NDArray[np.float64], alpha: float) -> Matrix:
    """w, [n, n]: row u is the minimiser of Σ_v (w_v - p_v)² - α w_v s_uv over the simplex.

    Args:
        similarity: s, [n, n].
        shares: p, [n], which sum to 1.
        alpha: >= 0; with 0 every row is p, bit for bit.
    """
    if alpha == 0:
        return np.tile(shares, (len(shares), 1))
    return project_rows(shares + alpha / 2 * similarity)


class PFedGraph(BaseStrategy):
    """Every user has a model of its own on the server: the one that was mixed for it."""

    options: PFedGraphOptions
    update: Update = "rows"

    def traveling(self, specs: Specs) -> Specs:
        return {}

    def returning(self, specs: Specs) -> Specs:
        return exchanged(specs, only_embeddings(self.config))

    def prepare(self) -> None:
        self.origin = initial_shared(self.returning(self.roster.specs), self.config.seed)
        count = len(self.roster.users)
        self.models = {name: np.repeat(values[None], count, axis=0) for name, values in self.origin.items()}

    def personal(self, users: NDArray[np.int64]) -> Arrays:
        everyone = np.array_equal(users, np.arange(len(self.roster.users)))  # then nothing has to be copied
        return {name: values if everyone else values[users] for name, values in self.models.items()}

    def personal_to_evaluate(self, users: NDArray[np.int64]) -> Arrays:
        return self.personal(users) if self.options.pfedgraph_evaluate == "mixed" else {}

    def aggregate(
        self, server_round: int, shared: Arrays, replies: list[TrainReply], users: list[NDArray[np.int64]]
    ) -> Arrays:
        for reply, members in zip(replies, users, strict=True):
            for name, packed in reply.rows.items():
                for begin in range(0, len(members), USERS_AT_ONCE):
                    block = slice(begin, min(begin + USERS_AT_ONCE, len(members)))
                    some = self.models[name][members[block]]
                    at, change = packed.where(block)
                    some[at] += change
                    self.models[name][members[block]] = some
        trained = np.sort(np.concatenate(users))  # in an order that no layout of nodes changes
        models = {name: values[trained] for name, values in self.models.items()}
        weights = self._weights(models, trained)
        for name, values in models.items():
            flat = values.reshape(len(trained), len(values[0]), -1)  # a view: a bias has no third axis
            mix(weights, flat, out=flat)
            self.models[name][trained] = values
        heard = (weights > 0).sum(axis=1)
        self.note(pfedgraph={"heard": float(heard.mean()), "own_weight": float(np.diagonal(weights).mean())})
        return shared

    def _weights(self, models: Arrays, users: NDArray[np.int64]) -> Matrix:
        sizes = self.roster.sizes[users] if self.options.pfedgraph_prior == "size" else np.ones(len(users))
        shares = sizes / sizes.sum() if sizes.sum() > 0 else np.full(len(users), 1 / len(users))
        if self.options.pfedgraph_alpha == 0:
            return collaboration_graph(np.zeros((len(users), len(users))), shares, 0.0)
        return collaboration_graph(self._similarity(models), shares, self.options.pfedgraph_alpha)

    def _similarity(self, models: Arrays) -> Matrix:
        """Over all arrays together."""
        if self.options.pfedgraph_similarity == "distance":
            flat = [values.reshape(len(values), -1) for values in models.values()]
            return similarity_matrix((flat[0] if len(flat) == 1 else np.concatenate(flat, axis=1))[:, :, None])
        products = [moved_products(self.origin[name], values) for name, values in models.items()]
        return cosine_similarity(sum(products[1:], start=products[0]))

    def personal_bytes(self) -> int:
        return bytes_of(self.returning(self.roster.specs))

    def kept_bytes(self) -> int:
        return len(self.roster.users) * self.personal_bytes()

    def working_bytes(self) -> float:
        """The round's models; inner products, similarity, the graph and what it is projected from."""
        count = self.users_per_round()
        return count * self.personal_bytes() + 4 * 8 * count**2

    def extra_arrays(self) -> Extra:
        return {f"model/{name}": values for name, values in self.models.items()}

    def restore_extra(self, arrays: Extra) -> None:
        self.models = {name: arrays[f"model/{name}"] for name in self.models}

    def users_joined(self, count: int) -> None:
        for name, values in self.models.items():
            self.models[name] = np.concatenate([values, np.repeat(self.origin[name][None], count, axis=0)])

    def users_forgotten(self, positions: NDArray[np.int64]) -> None:
        self.models = {name: np.delete(values, positions, axis=0) for name, values in self.models.items()}


def moved_products(origin: Array, models: Array) -> Matrix:
    """<Q_u - Q_0, Q_v - Q_0> of all pairs, in float64: [n, n]; models [n, …] in blocks of values."""
    return inner_products(-origin, models)
