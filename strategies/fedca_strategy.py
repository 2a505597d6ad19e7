"""FedCA over rounds: what the server keeps of every user, and when the stages of `fedca` run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Array, Arrays, Specs, exchanged, initial_shared
from bouquet.config import RunConfig
from bouquet.extras import need
from bouquet.methods import only_embeddings
from bouquet.methods.fedca import FedCAOptions, interpolate
from bouquet.needs import bytes_of
from bouquet.randomness import Purpose, generator
from bouquet.records import Report
from bouquet.reporting.heatmaps import write_heatmaps
from bouquet.reporting.run_directory import RunDirectory
from bouquet.wire import TrainReply, Update
from strategies.fedca import complementarity_matrix, composite_weights, mix, similarity_matrix
from strategies.fedca_variants import component_similarity, drawn_weights, largest_weights
from strategies.federation.base import BaseStrategy, Extra

# Users whose part of S, C and W a run leaves behind (Fig. 7).
SHOWN_USERS = 10

# Tables of so many users are taken at once: they stay in the cache until they are stored.
USERS_AT_ONCE = 32

T = TypeVar("T")


class FedCA(BaseStrategy):
    """Every user has tables of its own on the server: the last that it trained, and the one mixed for it."""

    options: FedCAOptions
    update: Update = "rows"

    def traveling(self, specs: Specs) -> Specs:
        return {}

    def __init__(self, config: RunConfig, options: FedCAOptions, directory: RunDirectory) -> None:
        if options.fedca_solver == "cvxpy":
            need("cvxpy", "fedca-solver 'cvxpy'")
        super().__init__(config, options, directory)

    def returning(self, specs: Specs) -> Specs:
        return exchanged(specs, only_embeddings(self.config))

    def tells(self) -> tuple[str, ...]:
        return ("features",) if self.options.fedca_beta else ()

    def reports(self, server_round: int, shared: Arrays) -> dict[str, Report]:
        """Unit vectors, and what their protection adds: Laplace noise beyond 50 δ' comes once in 10^21 values."""
        options = self.options
        if options.fedca_beta == 0:
            return {}
        size = next(spec.shape[1] for spec in self.roster.specs.values() if spec.by_item)
        vectors = 1 if options.fedca_complementarity == "raw" else options.fedca_k
        most = 1.001 + 50 * options.fedca_ldp_delta_features
        return {"features": Report((vectors, -1 if options.fedca_complementarity == "left" else size), -most, most)}

    @property
    def dense_updates(self) -> bool:  # type: ignore[override]
        return self.options.fedca_ldp_delta > 0 or self.options.fedca_proximal > 0

    def personal_bytes(self) -> int:
        return bytes_of(self.returning(self.roster.specs))

    def kept_bytes(self) -> int:
        """Each user's last table and the one mixed for it; features are small beside them."""
        return 2 * len(self.roster.users) * self.personal_bytes()

    def working_bytes(self) -> float:
        """The tables to mix, those that similarity compares, and s, c, the weights and what they are projected from."""
        options, count = self.options, len(self.roster.users)
        pool = options.fedca_mix_fraction * (count if options.fedca_mix_all_users else self.users_per_round())
        matrices = 2 + (options.fedca_alpha > 0 or options.fedca_drawn_neighbours > 0) + (options.fedca_beta > 0)
        return 2 * pool * self.personal_bytes() + 8 * matrices * pool**2

    def prepare(self) -> None:
        base = initial_shared(self.returning(self.roster.specs), self.config.seed)
        count = len(self.roster.users)
        self.tables = {name: np.repeat(values[None], count, axis=0) for name, values in base.items()}
        self.aggregates = {name: values.copy() for name, values in self.tables.items()}
        self.features: NDArray[np.float32] | None = None
        self._stages: dict[str, float] = {}
        self._shown: dict[str, NDArray[np.floating]] = {}

    def personal(self, users: NDArray[np.int64]) -> Arrays:
        everyone = np.array_equal(users, np.arange(len(self.roster.users)))  # then nothing has to be copied
        return {name: values if everyone else values[users] for name, values in self.aggregates.items()}

    def personal_to_evaluate(self, users: NDArray[np.int64]) -> Arrays:
        return self.personal(users) if self.options.fedca_evaluate == "mixed" else {}

    def aggregate(
        self, server_round: int, shared: Arrays, replies: list[TrainReply], users: list[NDArray[np.int64]]
    ) -> Arrays:
        """Algorithm 1, lines 7 to 9 and the mixing of the next line 3."""
        self._stages = {}
        for reply, members in zip(replies, users, strict=True):
            self._take(reply, members)
        trained = np.sort(np.concatenate(users))
        pool = np.arange(len(self.roster.users)) if self.options.fedca_mix_all_users else trained
        pool = self._drawn(server_round, pool)
        mixed = {name: self._to_mix(name, pool, trained) for name in self.tables}
        if self.options.fedca_server_learning_rate != 1:
            for name, tables in self.tables.items():
                self.aggregates[name][trained] = tables[trained]  # who is not mixed goes on with its own
        weights = self._weights(server_round, pool)
        self._timed("mixing", lambda: self._mix(weights, pool, mixed))
        support = (weights > 0).sum(axis=1)
        self.note(
            fedca={
                "seconds": self._stages,
                "support": {"mean": float(support.mean()), "least": int(support.min()), "most": int(support.max())},
                "own_weight": float(np.diagonal(weights).mean()),
            }
        )
        return shared

    def finish(self) -> None:
        """Leave S, C and W of some users of the last round, as arrays and as pictures."""
        write_heatmaps(self.directory.path / "fedca", self._shown)

    def extra_arrays(self) -> Extra:
        extra: Extra = {f"table/{name}": values for name, values in self.tables.items()}
        extra |= {f"aggregate/{name}": values for name, values in self.aggregates.items()}
        # Of the last round; a run that is resumed after it shows them all the same.
        extra |= {f"shown/{name}": values for name, values in self._shown.items()}
        return extra if self.features is None else extra | {"features": self.features}

    def restore_extra(self, arrays: Extra) -> None:
        for name in self.tables:
            self.tables[name], self.aggregates[name] = arrays[f"table/{name}"], arrays[f"aggregate/{name}"]
        self.features = arrays.get("features")
        self._shown = {key.removeprefix("shown/"): v for key, v in arrays.items() if key.startswith("shown/")}

    def users_joined(self, count: int) -> None:
        base = initial_shared(self.roster.specs, self.config.seed)
        for kept in (self.tables, self.aggregates):
            for name, values in kept.items():
                kept[name] = np.concatenate([values, np.repeat(base[name][None], count, axis=0)])
        if self.features is not None:
            nothing = np.zeros((count, *self.features.shape[1:]), np.float32)
            self.features = np.concatenate([self.features, nothing])

    def users_forgotten(self, positions: NDArray[np.int64]) -> None:
        for kept in (self.tables, self.aggregates):
            for name, values in kept.items():
                kept[name] = np.delete(values, positions, axis=0)
        if self.features is not None:
            self.features = np.delete(self.features, positions, axis=0)

    # -- stages ----------------------------------------------------------------------------------------------------

    def _take(self, reply: TrainReply, members: NDArray[np.int64]) -> None:
        """Put the users' new tables in place of their old ones.

        What will be mixed for others has gone η times as far, where η is the server learning rate: a mean over many
        users, of whom few touched a row, would hardly move it.
        """
        rate = np.float32(self.options.fedca_server_learning_rate)
        for name, packed in reply.rows.items():
            for begin in range(0, len(members), USERS_AT_ONCE):
                block = slice(begin, min(begin + USERS_AT_ONCE, len(members)))
                users, start = members[block], self._start(name, members[block])
                at, change = packed.where(block)
                longer = start.copy() if rate != 1 else start
                start[at] += change
                self.tables[name][users] = start
                if rate != 1:
                    longer[at] += rate * change
                self.aggregates[name][users] = longer
        if "features" in reply.reports:
            self._keep_features(members, reply.reports["features"])

    def _start(self, name: str, members: NDArray[np.int64]) -> Array:
        """What the uploaded change adds to: where the device started, or with noise the aggregate alone."""
        sent = self.aggregates[name][members]
        if self.options.fedca_ldp_delta > 0:
            return sent
        mixed = interpolate(self.tables[name][members], sent, self.options.fedca_rho)
        first = self.versions[members] == 0
        mixed[first] = sent[first]
        return mixed

    def _drawn(self, server_round: int, pool: NDArray[np.int64]) -> NDArray[np.int64]:
        size = max(1, round(self.options.fedca_mix_fraction * len(pool)))
        if size == len(pool):
            return pool
        source = generator(self.config.seed, server_round, Purpose.USER_SAMPLING, "mixing")
        return np.sort(source.choice(pool, size, replace=False))

    def _keep_features(self, members: NDArray[np.int64], features: NDArray[np.float32]) -> None:
        width = features.shape[2]
        if self.features is None or self.features.shape[2] < width:  # left vectors grow with the longest history
            wider = np.zeros((len(self.roster.users), features.shape[1], width), np.float32)
            if self.features is not None:
                wider[:, :, : self.features.shape[2]] = self.features
            self.features = wider
        self.features[members, :, :width] = features
        self.features[members, :, width:] = 0

    def _prior(self, users: NDArray[np.int64]) -> NDArray[np.float64]:
        sizes = self.roster.sizes[users].astype(float)
        return sizes if self.options.fedca_prior == "size" else np.ones(len(users))

    def _weights(self, server_round: int, pool: NDArray[np.int64]) -> NDArray[np.float64]:
        options = self.options
        table = next(self.tables[name][pool] for name, spec in self.roster.specs.items() if spec.by_item)
        nothing = np.zeros((len(pool), len(pool)))
        similar = complementary = nothing
        if options.fedca_alpha > 0 or options.fedca_drawn_neighbours:
            measure = similarity_matrix if options.fedca_similarity == "eq6" else component_similarity
            similar = self._timed("similarity", lambda: measure(table))
        if options.fedca_beta > 0 and self.features is not None:
            features = self.features[pool]
            complementary = self._timed("complementarity", lambda: self._complementarity(features))
        weights = self._timed("weights", lambda: self._of_everybody(server_round, pool, similar, complementary))
        if options.fedca_neighbours:
            weights = largest_weights(weights, options.fedca_neighbours)
        if options.fedca_global_share:
            prior = self._prior(pool)
            weights = (1 - options.fedca_global_share) * weights + options.fedca_global_share * prior / prior.sum()
        self._show(pool, similar, complementary, weights)
        return weights

    def _of_everybody(
        self, server_round: int, pool: NDArray[np.int64], similar: NDArray[np.float64], other: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Weights of eq. 5 from similarity and complementarity, or what stands in their place."""
        options, prior = self.options, self._prior(pool)
        if options.fedca_drawn_neighbours:
            source = generator(self.config.seed, server_round, Purpose.USER_SAMPLING, "neighbours")
            return drawn_weights(similar, prior, options.fedca_nearest, options.fedca_drawn_neighbours, source)
        return composite_weights(
            similar,
            other,
            prior,
            options.fedca_alpha,
            options.fedca_beta,
            objective=options.fedca_objective,
            solver=options.fedca_solver,
            cap=max(options.fedca_weight_cap, 1 / len(pool)) if options.fedca_weight_cap else None,
        )

    def _complementarity(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        options = self.options
        pairing, sign = options.fedca_complementarity_pairing, options.fedca_complementarity_sign
        if options.fedca_complementarity_measure == "sin":
            cosine = complementarity_matrix(features, paired=pairing)
            sine = np.sqrt(np.clip(1 - cosine**2, 0, 1))
            return sine if sign == "printed" else 1 - sine
        return complementarity_matrix(features, paired=pairing, sign=sign)

    def _to_mix(self, name: str, pool: NDArray[np.int64], trained: NDArray[np.int64]) -> Array:
        """The tables of some users as others will get them; `_take` has left those of this round in `aggregates`."""
        chosen = self.tables[name][pool]
        fresh = np.isin(pool, trained)
        chosen[fresh] = self.aggregates[name][pool[fresh]]
        return chosen

    def _mix(self, weights: NDArray[np.float64], pool: NDArray[np.int64], tables: Arrays) -> None:
        for name, values in tables.items():
            flat = values.reshape(len(pool), len(values[0]), -1)  # a view: a bias has no third axis
            mix(weights, flat, out=flat)
            self.aggregates[name][pool] = values

    def _show(self, pool: NDArray[np.int64], *matrices: NDArray[np.float64]) -> None:
        chosen = np.linspace(0, len(pool) - 1, min(SHOWN_USERS, len(pool))).round().astype(int)
        names = ("similarity", "complementarity", "weights")
        self._shown = {name: matrix[np.ix_(chosen, chosen)] for name, matrix in zip(names, matrices, strict=True)}
        self._shown["users"] = self.roster.users[pool[chosen]]

    def _timed(self, stage: str, work: Callable[[], T]) -> T:
        begin = time.perf_counter()
        result: Any = work()
        self._stages[stage] = time.perf_counter() - begin
        return result
