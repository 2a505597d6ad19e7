"""GPFedRec: graph-guided personalization (Zhang et al., WWW 2024).

Round t on the server, over the users u of the round, who all started from the common table C and trained it to Q_u:
    similarity       s_uv = cos(Q_u, Q_v)                          of whole item tables
    graph            A_uv = 1 / |N_u| for v in N_u, else 0         N_u: who is above γ times the mean of all pairs
    convolution      R_u = Σ_v (A^L)_uv Q_v                        a table for each user, made by its neighbours
    common table     mean_u R_u                                    where everybody starts in the next round

What a device does with R_u stands in `client_app.personalization.gpfedrec`.

R_u is kept as C + D_u, where D_u is what sets it apart from the mean of the round's tables. The server's optimiser may
step further than to that mean, and who sits out while C goes on would be drawn back to an old R_u; so R_u moves with C.
With `server-optimizer = "sgd"`, rate 1 and all users in every round that is the paper's R_u. Who has not taken part yet
has D_u = 0: its table is the common one.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Array, Arrays, ArraySpec
from bouquet.methods.gpfedrec import GPFedRecOptions
from bouquet.needs import bytes_of
from bouquet.packed import PackedRows
from bouquet.wire import TrainReply, Update
from strategies.averaging import FCF
from strategies.fedca import mix
from strategies.federation.base import Extra
from strategies.numerics.checks import refuse_option

Matrix = NDArray[np.float64]
Graph = Literal["similarity", "distance"]

# Values of one user that are worked on at once, in float64.
BLOCK_VALUES = 4096
# Nobody is above a mean that all are at: what is closer to it than this is at it.
ROUNDING = 1e-12


def inner_products(common: Array, changes: Array) -> Matrix:
    """<Q_u, Q_v> of all pairs, Q_u = C + Δ_u, in float64: [n, n].

    Args:
        common: C, [m, …].
        changes: Δ, [n, m, …].
    """
    start, moved = common.reshape(-1), changes.reshape(len(changes), -1)
    products = np.zeros((len(changes), len(changes)))
    for begin in range(0, len(start), BLOCK_VALUES):
        part = slice(begin, begin + BLOCK_VALUES)
        tables = start[part].astype(np.float64) + moved[:, part]
        products += tables @ tables.T
    return products


def cosine_similarity(products: Matrix) -> Matrix:
    """s_uv = <Q_u, Q_v> / (‖Q_u‖ ‖Q_v‖), [n, n] with ones on the diagonal; a table of zeros is like nobody's."""
    norms = np.sqrt(np.diagonal(products))
    lengths = norms[:, None] * norms
    similarity = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
    np.fill_diagonal(similarity, norms > 0)
    return np.asarray(np.clip(similarity, -1.0, 1.0))


def neighbour_graph(similarity: Matrix, threshold: float, graph: Graph = "similarity") -> Matrix:
    """A: row u has the same weight for each of u's neighbours, and they sum to 1.

    A user is its own neighbour where it is above the threshold too, as it is by similarity unless γ is large, and as it
    never is by distance. Who has no neighbours has itself.

    Args:
        similarity: s, [n, n].
        threshold: γ, a factor on the mean over all pairs of different users.
        graph: "distance" takes 1 - s in the place of s.
    """
    refuse_option("graph", graph, get_args(Graph))
    count = len(similarity)
    if count == 1:
        return np.ones((1, 1))
    relation = similarity if graph == "similarity" else 1.0 - similarity
    mean = (relation.sum() - np.trace(relation)) / (count * (count - 1))
    near = relation > threshold * mean + ROUNDING
    np.fill_diagonal(near, near.diagonal() | ~near.any(axis=1))
    return np.asarray(near / near.sum(axis=1, keepdims=True))


class GPFedRec(FCF):
    """The common item tables, and for each user what sets its own apart from them."""

    options: GPFedRecOptions
    update: Update = "rows"

    @property
    def dense_updates(self) -> bool:  # type: ignore[override]
        return self.options.gpfedrec_lambda > 0

    def prepare(self) -> None:
        count = len(self.roster.users)
        self.apart = {
            name: np.zeros((count, *spec.shape), np.float32)
            for name, spec in self.traveling(self.roster.specs).items()
        }  # fmt: skip

    def personal(self, users: NDArray[np.int64]) -> Arrays:
        return self._apart(users) if self.options.gpfedrec_lambda > 0 else {}

    def personal_to_evaluate(self, users: NDArray[np.int64]) -> Arrays:
        return self._apart(users) if self.options.gpfedrec_evaluate == "user-specific" else {}

    def aggregate(
        self, server_round: int, shared: Arrays, replies: list[TrainReply], users: list[NDArray[np.int64]]
    ) -> Arrays:
        trained = np.sort(np.concatenate(users))  # in an order that no layout of nodes changes
        specs = self.traveling(self.roster.specs)
        changes = {name: np.zeros((len(trained), *spec.shape), np.float32) for name, spec in specs.items()}
        for reply, members in zip(replies, users, strict=True):
            places = np.searchsorted(trained, members)
            for name, spec in specs.items():
                put_changes(changes[name], places, reply.rows[name], spec)
        similarity = cosine_similarity(
            sum((inner_products(shared[name], values) for name, values in changes.items()), np.zeros(()))
        )
        adjacency = neighbour_graph(similarity, self.options.gpfedrec_threshold, self.options.gpfedrec_graph)
        # Item tables are wider than most federations have users: one product with them, and none for each layer.
        power = np.linalg.matrix_power(adjacency, self.options.gpfedrec_layers)
        mean = {}
        for name, values in changes.items():
            flat = values.reshape(len(trained), len(values[0]), -1)  # a view: a bias has no third axis
            mix(power, flat, out=flat)
            mean[name] = values.mean(axis=0, dtype=np.float64)
            values -= mean[name].astype(np.float32)
            self.apart[name][trained] = values
        return self.optimizer.step(server_round, shared, mean)

    def personal_bytes(self) -> int:
        sent = self.options.gpfedrec_lambda > 0 or self.options.gpfedrec_evaluate == "user-specific"
        return bytes_of(self.traveling(self.roster.specs)) if sent else 0

    def kept_bytes(self) -> int:
        return super().kept_bytes() + len(self.roster.users) * bytes_of(self.traveling(self.roster.specs))

    def working_bytes(self) -> float:
        """The round's tables; inner products, similarity or distance, and the graph."""
        count = self.users_per_round()
        return super().working_bytes() + count * bytes_of(self.traveling(self.roster.specs)) + 4 * 8 * count**2

    def extra_arrays(self) -> Extra:
        return super().extra_arrays() | {f"apart/{name}": values for name, values in self.apart.items()}

    def restore_extra(self, arrays: Extra) -> None:
        super().restore_extra(arrays)
        self.apart = {name: arrays[f"apart/{name}"] for name in self.apart}

    def users_joined(self, count: int) -> None:
        for name, values in self.apart.items():
            self.apart[name] = np.concatenate([values, np.zeros((count, *values.shape[1:]), np.float32)])

    def users_forgotten(self, positions: NDArray[np.int64]) -> None:
        self.apart = {name: np.delete(values, positions, axis=0) for name, values in self.apart.items()}

    def _apart(self, users: NDArray[np.int64]) -> Arrays:
        return {name: values[users] for name, values in self.apart.items()}


def put_changes(tables: Array, places: NDArray[np.int64], packed: PackedRows, spec: ArraySpec) -> None:
    """tables[places[j]] becomes the change of user j, whose untouched rows stay as they are."""
    if packed.indptr is None or packed.rows is None:
        tables[places] = packed.values.reshape(len(places), *spec.shape)
    else:
        tables[np.repeat(places, np.diff(packed.indptr)), packed.rows] = packed.values
