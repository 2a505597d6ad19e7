"""FedCA over rounds: what the server keeps of users, and when the stages of `fedca` run.

A user who has never taken part has the tables that all start from, and nothing is kept of it. Those of the others lie
in memory where that is little, and else in files (`strategies.federation.user_rows`), with a round's users in memory.

A user whose tables were not among those mixed last goes on with its own. Its device has them, so they are not sent, and
no second copy of them is kept.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Array, Arrays, Specs, exchanged, initial_shared
from bouquet.config import RunConfig
from bouquet.errors import ConfigError
from bouquet.extras import need
from bouquet.methods import only_embeddings
from bouquet.methods.fedca import FedCAOptions, interpolate_some
from bouquet.needs import bytes_of
from bouquet.randomness import Purpose, generator
from bouquet.records import Report
from bouquet.reporting.heatmaps import write_heatmaps
from bouquet.reporting.run_directory import RunDirectory
from bouquet.wire import TrainReply, Update
from strategies.fedca import mix
from strategies.fedca_features import KeptFeatures
from strategies.fedca_weights import Weighing
from strategies.federation.base import BaseStrategy, Extra
from strategies.federation.held_rows import HeldRows
from strategies.federation.user_rows import UserRows, share_of_rows
from strategies.numerics.checks import refuse_broken_state

# Tables of so many users are taken at once: they stay in the cache until they are stored.
USERS_AT_ONCE = 32
# What was sent to them, what they had before, and what these make together.
_BLOCK_COPIES = 3

# Tables are in memory where those of all users, of either kind, take up to so much.
HELD_BYTES = 2**29

# An evaluation of more tables than this, and than a round has, is made in parts.
EVALUATED_BYTES = 2**29


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
        """Where the two kinds of tables of each user lie, and features where those of an earlier round are wanted."""
        count, options = len(self.roster.users), self.options
        features = options.fedca_mix_all_users and options.fedca_beta > 0
        index = 2 * count * (8 + 4 * len(self.returning(self.roster.specs)))
        return index + features * 4 * count * options.fedca_k * self.config.embedding_size

    def held_bytes(self) -> int:
        """Both kinds of tables of all users, where they are in memory."""
        each = len(self.roster.users) * self.personal_bytes()
        return 2 * each if each <= HELD_BYTES else 0

    def stored_bytes(self) -> float:
        """The last and the mixed table of all who have taken part, and those of the last checkpoint beside them."""
        config = self.config
        fraction = 1.0 if self.options.fedca_mix_all_users else config.fraction_train
        share = share_of_rows(config.num_server_rounds, config.checkpoint_every, fraction)
        return 2 * self.personal_bytes() * (1 + share * len(self.roster.users))

    def evaluation_bytes(self) -> float:
        sent = self.options.fedca_evaluate == "mixed"
        return sent * min(len(self.roster.users), self._evaluated_at_once()) * self.personal_bytes()

    def working_bytes(self) -> float:
        """The tables to mix, those that similarity compares, those that updates are being added to, and s, c, the
        weights and what they are projected from.
        """
        options, count = self.options, len(self.roster.users)
        pool = options.fedca_mix_fraction * (count if options.fedca_mix_all_users else self.users_per_round())
        matrices = 2 + (options.fedca_alpha > 0 or options.fedca_drawn_neighbours > 0) + (options.fedca_beta > 0)
        tables = pool * (1 if options.fedca_server_learning_rate == 1 else 2)
        taken = _BLOCK_COPIES * min(USERS_AT_ONCE, self.users_per_round())
        return (tables + taken) * self.personal_bytes() + 8 * matrices * pool**2

    def select_users(self, server_round: int) -> NDArray[np.int64]:
        """As of every method; who of them will be mixed is drawn with them, so that the others need not tell X_u."""
        chosen = super().select_users(server_round)
        self._drawn = self._draw(server_round, chosen)
        return chosen

    def telling(self, users: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Those who will be mixed; where stored tables are mixed too, anybody may be, in some later round."""
        if self.options.fedca_mix_all_users or self.options.fedca_mix_fraction == 1:
            return None
        return np.flatnonzero(np.isin(users, self._drawn))

    def prepare(self) -> None:
        self._base = initial_shared(self.returning(self.roster.specs), self.config.seed)
        folder, count = self.directory.rows_by_user, len(self.roster.users)
        kind = HeldRows if self.held_bytes() else UserRows
        self.tables = kind(folder, "table", self._base, count)
        # Of users who were mixed and have not gone on without since.
        self.aggregates = kind(folder, "aggregate", self._base, count)
        self._features = KeptFeatures(count, everybody=self.options.fedca_mix_all_users)
        self._drawn = np.zeros(0, np.int64)
        self.weighing = Weighing(self.options, self.config.seed)
        self._shown: Extra = {}

    def personal(self, users: NDArray[np.int64]) -> Arrays:
        return {name: self._aggregate(name, users) for name in self._base}

    def addressed(self, users: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Those who were mixed, and those whose devices have no tables yet."""
        sent = self._sent(users)
        return None if sent.all() else np.flatnonzero(sent)

    def personal_to_evaluate(self, users: NDArray[np.int64]) -> Arrays:
        """Nothing where nothing is kept of anybody: their devices know what all start from."""
        nothing = self.options.fedca_evaluate == "trained" or (len(users) > 0 and self._nothing_kept(users))
        return {} if nothing else self.personal(users)

    def addressed_to_evaluate(self, users: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Those who were mixed."""
        if self.options.fedca_evaluate == "trained" or self._sends_to_all or self._nothing_kept(users):
            return None
        sent = self.aggregates.there[users]
        return None if sent.all() else np.flatnonzero(sent)

    def parts_to_evaluate(self) -> list[NDArray[np.int64]]:
        everybody, at_once = np.arange(len(self.roster.users)), self._evaluated_at_once()
        if self.options.fedca_evaluate == "trained" or len(everybody) <= at_once:
            return [everybody]
        kept = self.aggregates.there
        mixed = everybody[kept]
        parts = [everybody[~kept], *(mixed[begin : begin + at_once] for begin in range(0, len(mixed), at_once))]
        return [part for part in parts if len(part)]

    def aggregate(
        self, server_round: int, shared: Arrays, replies: list[TrainReply], users: list[NDArray[np.int64]]
    ) -> Arrays:
        """Algorithm 1, lines 7 to 9 and the mixing of the next line 3."""
        trained = np.sort(np.concatenate(users))
        if self.options.fedca_mix_all_users:
            pool = self._draw(server_round, np.arange(len(self.roster.users)))
        else:
            pool = np.intersect1d(self._drawn, trained)
        mixed = self._to_mix(pool, trained)
        self._features.begin(trained)
        for reply, members in zip(replies, users, strict=True):
            self._take(server_round, reply, members, pool, mixed)
        if not len(pool):  # nobody who was drawn has answered
            return shared
        weights = self._weights(server_round, pool, mixed)
        begin = time.perf_counter()
        self._mix(server_round, weights, pool, mixed)
        seconds = self.weighing.seconds | {"mixing": time.perf_counter() - begin}
        support = (weights > 0).sum(axis=1)
        self.note(
            fedca={
                "seconds": seconds,
                "support": {"mean": float(support.mean()), "least": int(support.min()), "most": int(support.max())},
                "own_weight": float(np.diagonal(weights).mean()),
            }
        )
        return shared

    def finish(self) -> None:
        """Leave S, C and W of some users of the last round, as arrays and as pictures."""
        write_heatmaps(self.directory.path / "fedca", self._shown)
        if not self.config.checkpoint_every:  # then nobody goes on from it
            for rows in (self.tables, self.aggregates):
                rows.remove()

    def extra_arrays(self) -> Extra:
        # Matrices are of the last round; a run that is resumed after it shows them all the same.
        shown: Extra = {f"shown/{name}": values for name, values in self._shown.items()}
        return shown | self.tables.index() | self.aggregates.index() | self._features.arrays()

    def restore_extra(self, arrays: Extra) -> None:
        if "place/table" not in arrays:
            raise ConfigError("The checkpoint is of a version that kept all tables in it; start a new run.")
        for rows in (self.tables, self.aggregates):
            rows.restore(arrays)
        self._features.restore(arrays)
        self._shown = {key.removeprefix("shown/"): v for key, v in arrays.items() if key.startswith("shown/")}

    def checkpoint_due(self) -> None:
        for rows in (self.tables, self.aggregates):
            rows.checkpoint_due()

    def checkpoint_written(self) -> None:
        for rows in (self.tables, self.aggregates):
            rows.checkpoint_written()

    def users_joined(self, count: int) -> None:
        for kept in (self.tables, self.aggregates, self._features):
            kept.users_joined(count)

    def users_forgotten(self, positions: NDArray[np.int64]) -> None:
        for kept in (self.tables, self.aggregates, self._features):
            kept.users_forgotten(positions)

    def _evaluated_at_once(self) -> int:
        """How many users with tables of their own are asked at once: a round's, and more where tables are small."""
        return max(self.users_per_round(), EVALUATED_BYTES // self.personal_bytes())

    # -- stages ----------------------------------------------------------------------------------------------------

    def _to_mix(self, pool: NDArray[np.int64], trained: NDArray[np.int64]) -> Arrays:
        """[p, …] the tables of the users to mix, where those of this round are put in by `_take`."""
        others = np.flatnonzero(~np.isin(pool, trained))
        mixed = {name: self.aggregates.room(name, pool) for name in self._base}
        for name, values in mixed.items():
            for begin in range(0, len(others), USERS_AT_ONCE):
                some = others[begin : begin + USERS_AT_ONCE]
                values[some] = self.tables.read(name, pool[some])
        return mixed

    def _take(
        self, server_round: int, reply: TrainReply, members: NDArray[np.int64], pool: NDArray[np.int64], mixed: Arrays
    ) -> None:
        """Put the users' new tables in place of their old ones, and among those to mix.

        What will be mixed for others has gone η times as far, where η is the server learning rate: a mean over many
        users, of whom few touched a row, would hardly move it. Who is not mixed goes on with its own.
        """
        rate = np.float32(self.options.fedca_server_learning_rate)
        for begin in range(0, len(members), USERS_AT_ONCE):
            block = slice(begin, min(begin + USERS_AT_ONCE, len(members)))
            users = members[block]
            chosen = np.flatnonzero(np.isin(users, pool))
            places = np.searchsorted(pool, users[chosen])
            own: Arrays = {}
            for name, packed in reply.rows.items():
                own[name] = start = self._start(name, users)
                longer = start.copy() if rate != 1 else start
                # All else was finite before.
                changed = {f"table/{name}": packed.add_to_each(start, block)}
                refuse_broken_state(changed, _broken(server_round))
                if rate != 1:
                    packed.add_to_each(longer, block, rate)
                mixed[name][places] = longer[chosen]
            self.tables.write(users, own)
            self.aggregates.drop(np.delete(users, chosen))
        if "features" in reply.reports:
            self._features.take(members, reply.reports["features"])

    def _sent(self, users: NDArray[np.int64]) -> NDArray[np.bool_]:
        """[k] who is sent an aggregate to train from."""
        return self._sends_to_all | self.aggregates.there[users] | (self.versions[users] == 0)

    @property
    def _sends_to_all(self) -> bool:
        """Whether those who were not mixed are sent their own tables too.

        Where updates are bounded a device's tables need not be those that the server made of its updates.
        """
        return self.options.needs_aggregates or self.update_bound > 0

    def _nothing_kept(self, users: NDArray[np.int64]) -> bool:
        return not (self.aggregates.there[users] | (self.versions[users] > 0)).any()

    def _aggregate(self, name: str, users: NDArray[np.int64]) -> Array:
        """[k, …] Q_u^g of these users, of those who were not mixed their own tables; not to be changed."""
        found, own = self.aggregates.read(name, users), self.tables.there[users] & ~self.aggregates.there[users]
        if own.any():
            found[own] = self.tables.read(name, users[own])
        return found

    def _start(self, name: str, members: NDArray[np.int64]) -> Array:
        """What the uploaded change adds to, to be changed: where the device started, or with noise the aggregate."""
        sent = np.flatnonzero(self._sent(members))
        aggregate = self._aggregate(name, members[sent])
        start = self.tables.to_change(name, members)
        rho = 0.0 if self.options.fedca_ldp_delta > 0 else self.options.fedca_rho
        interpolate_some(start, sent, aggregate, rho, self.versions[members] == 0)
        return start

    def _draw(self, server_round: int, pool: NDArray[np.int64]) -> NDArray[np.int64]:
        size = max(1, round(self.options.fedca_mix_fraction * len(pool)))
        if size == len(pool):
            return pool
        source = generator(self.config.seed, server_round, Purpose.USER_SAMPLING, "mixing")
        return np.sort(source.choice(pool, size, replace=False))

    def _weights(self, server_round: int, pool: NDArray[np.int64], mixed: Arrays) -> NDArray[np.float64]:
        """[p, p] how much each of these users takes of each."""
        table = None
        if self.weighing.compares_tables:
            name = next(name for name, spec in self.roster.specs.items() if spec.by_item)
            # Before they are mixed, and when they have gone no further, those to mix are the users' own.
            same = self.options.fedca_server_learning_rate == 1
            table = mixed[name] if same else self.tables.read(name, pool)
        weights = self.weighing.weights(server_round, self.roster.sizes[pool], table, self._features.of(pool))
        chosen, matrices = self.weighing.shown
        self._shown = matrices | {"users": self.roster.users[pool[chosen]]}
        return weights

    def _mix(self, server_round: int, weights: NDArray[np.float64], pool: NDArray[np.int64], tables: Arrays) -> None:
        for values in tables.values():
            flat = values.reshape(len(pool), len(values[0]), -1)  # a view: a bias has no third axis
            mix(weights, flat, out=flat)
        refuse_broken_state({f"aggregate/{name}": values for name, values in tables.items()}, _broken(server_round))
        self.aggregates.write(pool, tables)


def _broken(server_round: int) -> str:
    return f"Round {server_round} broke the model"
