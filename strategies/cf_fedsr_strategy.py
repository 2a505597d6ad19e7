"""CF-FedSR over rounds: what the server knows of users' interests, and when the stages of `cf_fedsr` run."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Arrays
from bouquet.config import RunConfig
from bouquet.extras import need
from bouquet.methods.cf_fedsr import CFFedSROptions
from bouquet.needs import bytes_of
from bouquet.randomness import Purpose, generator
from bouquet.records import Report
from bouquet.reporting.run_directory import RunDirectory
from bouquet.wire import EvaluateReply, TrainReply, Update
from strategies.cf_fedsr import allocate, cluster, eligible, fair_weights
from strategies.federation.base import BaseStrategy, Extra
from strategies.federation.needs import reply_bytes
from strategies.numerics.server_optimizer import ServerOptimizer


class CFFedSR(BaseStrategy):
    """Users are chosen by data, patience and interests, and weighed by how well they are served."""

    options: CFFedSROptions
    update: Update = "rows"

    def __init__(self, config: RunConfig, options: CFFedSROptions, directory: RunDirectory) -> None:
        super().__init__(config, options, directory)
        self.optimizer = ServerOptimizer(options)
        if self._chooses():
            need("sklearn", "Choosing users from clusters (cf-fedsr-selection)")

    def tells(self) -> tuple[str, ...]:
        fair, chosen = self.options.cf_fedsr_fair, self._chooses()
        return ("performance",) * fair + ("representation",) * chosen

    def reports(self, server_round: int, shared: Arrays) -> dict[str, Report]:
        performance = {"performance": Report((2,), 0.0, 1.0)} if self.options.cf_fedsr_fair else {}
        return performance | self.evaluation_reports(server_round, shared)

    def evaluation_reports(self, server_round: int, shared: Arrays) -> dict[str, Report]:
        """Interests, if rounds choose by them: means of rows of the table that is sent, or zeros."""
        if not self._chooses():
            return {}
        table = next(shared[name] for name, spec in self.roster.specs.items() if spec.by_item)
        low, high = np.minimum(table.min(axis=0), 0), np.maximum(table.max(axis=0), 0)
        room = 1e-5 * np.maximum(-low, high)  # the device's sums round differently
        return {"representation": Report((2 * len(low),), np.tile(low - room, 2), np.tile(high + room, 2))}

    def _chooses(self) -> bool:
        """Whether rounds draw from clusters at all: where everybody trains there is nothing to choose."""
        return self.options.cf_fedsr_selection and self.config.fraction_train < 1

    def prepare(self) -> None:
        self.representations = np.zeros((len(self.roster.users), self._width()), np.float32)
        self.known = np.zeros(len(self.roster.users), dtype=bool)

    def kept_bytes(self) -> int:
        return self.optimizer.kept_bytes(self._shared_bytes) + 4 * len(self.roster.users) * self._width()

    def working_bytes(self) -> float:
        """The changes of a node's users are weighed in float64."""
        return self.optimizer.working_bytes(self._shared_bytes) + 2 * reply_bytes(self) / self.roster.nodes

    @property
    def _shared_bytes(self) -> int:
        return bytes_of(self.traveling(self.roster.specs))

    def _width(self) -> int:
        """Of what is known of each user's interests."""
        size = next(spec.shape[1] for spec in self.roster.specs.values() if spec.by_item)
        return 2 * size if self._chooses() else 0

    def select_users(self, server_round: int) -> NDArray[np.int64]:
        """As many users as a round has, from all clusters of those who may take part.

        Users whose interests nobody knows yet are a cluster of their own. If too few may take part, all of them do;
        if nobody may, everybody may.
        """
        options = self.options
        if not options.cf_fedsr_selection:
            return super().select_users(server_round)
        sizes = self.roster.sizes
        may = eligible(sizes, np.full(len(sizes), server_round), options.cf_fedsr_lambda_1, options.cf_fedsr_lambda_2)
        present = self.roster.present()
        users = present[may[present]] if may[present].any() else present
        source = generator(self.config.seed, server_round, Purpose.CLUSTERING)
        labels = np.full(len(users), -1)
        known = self.known[users]
        if known.any():
            seed = int(source.integers(2**31))
            points = self.representations[users[known]]
            labels[known] = cluster(points, options.cf_fedsr_clustering, options.cf_fedsr_clusters, seed)
        members = [users[labels == label] for label in np.unique(labels)]
        counts = allocate([len(group) for group in members], min(self.users_per_round(), len(users)))
        chosen = [source.choice(group, count, replace=False) for group, count in zip(members, counts, strict=True)]
        self._choice = {
            "eligible": int(may.sum()),
            "clusters": [len(group) for group in members],
            "chosen": counts.tolist(),
        }
        return np.sort(np.concatenate(chosen))

    def take_evaluation(self, reply: EvaluateReply, users: NDArray[np.int64]) -> None:
        self._learn(reply.reports, users)

    def aggregate(
        self, server_round: int, shared: Arrays, replies: list[TrainReply], users: list[NDArray[np.int64]]
    ) -> Arrays:
        """Eq. 10 as a step along Σ_k o_k Δ_k / Σ o, since all users started from the same arrays."""
        for reply, members in zip(replies, users, strict=True):
            self._learn(reply.reports, members)
        sizes = self.roster.sizes[np.concatenate(users)].astype(float)
        if self.options.cf_fedsr_fair:
            performance = np.concatenate([reply.reports["performance"].sum(axis=1) for reply in replies])
            weights = fair_weights(performance, sizes, self.options.cf_fedsr_a, self.options.cf_fedsr_b)
            served = {"mean_performance": float(performance.mean())}
        else:
            weights = sizes / sizes.sum() if sizes.sum() > 0 else np.full(len(sizes), 1 / len(sizes))
            served = {}
        spread = {"least_weight": float(weights.min()), "most_weight": float(weights.max())}
        chosen = self._choice if self.options.cf_fedsr_selection else {}
        self.note(**{"cf-fedsr": chosen | served | spread})
        return self.optimizer.step(server_round, shared, weighted_change(shared, replies, weights))

    def extra_arrays(self) -> Extra:
        return {**self.optimizer.arrays(), "representations": self.representations, "known": self.known}

    def restore_extra(self, arrays: Extra) -> None:
        self.optimizer.restore(arrays)
        self.representations, self.known = arrays["representations"], arrays["known"].astype(bool)

    def users_joined(self, count: int) -> None:
        nothing = np.zeros((count, *self.representations.shape[1:]), self.representations.dtype)
        self.representations = np.concatenate([self.representations, nothing])
        self.known = np.concatenate([self.known, np.zeros(count, bool)])

    def users_forgotten(self, positions: NDArray[np.int64]) -> None:
        self.representations = np.delete(self.representations, positions, axis=0)
        self.known = np.delete(self.known, positions)

    def _learn(self, reports: Arrays, users: NDArray[np.int64]) -> None:
        if "representation" in reports:
            self.representations[users], self.known[users] = reports["representation"], True


def weighted_change(
    shared: Arrays, replies: list[TrainReply], weights: NDArray[np.float64]
) -> dict[str, NDArray[np.float64]]:
    """Σ_k weight_k Δ_k in float64, from the changes of single users; `weights` goes through the replies in order."""
    total = {name: np.zeros(values.shape) for name, values in shared.items()}
    start = 0
    for reply in replies:
        own = weights[start : start + len(reply.users)]
        start += len(reply.users)
        for name, values in total.items():
            reply.rows[name].add_weighted(values, own)
    return total
