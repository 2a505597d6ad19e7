"""CF-FedSR over rounds: what the server knows of users' interests, and when the stages of `cf_fedsr` run."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Arrays, Specs
from bouquet.methods.cf_fedsr import CFFedSROptions
from bouquet.randomness import Purpose, generator
from bouquet.wire import EvaluateReply, TrainReply, Update
from strategies.averaging import AveragingOptions, FedAvg
from strategies.base import Extra
from strategies.cf_fedsr import allocate, cluster, eligible, fair_weights


class CFFedSRServerOptions(CFFedSROptions, AveragingOptions):
    """Communication-efficient and fair federated sequential recommendation."""


class CFFedSR(FedAvg):
    """Users are chosen by data, patience and interests, and weighed by how well they are served."""

    options_class = CFFedSRServerOptions
    options: CFFedSRServerOptions
    update: Update = "rows"

    def reports(self, specs: Specs) -> dict[str, tuple[int, ...]]:
        performance: dict[str, tuple[int, ...]] = {"performance": (2,)} if self.options.cf_fedsr_fair else {}
        return performance | self.evaluation_reports(specs)

    def evaluation_reports(self, specs: Specs) -> dict[str, tuple[int, ...]]:
        if not self.options.cf_fedsr_selection:
            return {}
        return {"representation": (2 * next(spec.shape[1] for spec in specs.values() if spec.by_item),)}

    def prepare(self) -> None:
        shape = self.evaluation_reports(self.roster.specs).get("representation", (0,))
        self.representations = np.zeros((len(self.roster.users), *shape), np.float32)
        self.known = np.zeros(len(self.roster.users), dtype=bool)

    def select_users(self, server_round: int) -> NDArray[np.int64]:
        """As many users as a round has, from all clusters of those who may take part.

        Users whose interests nobody knows yet are a cluster of their own. If too few may take part, all of them do;
        if nobody may, everybody may.
        """
        options = self.options
        if not options.cf_fedsr_selection:
            return super().select_users(server_round)
        present = self.roster.present()
        sizes, epochs = self.roster.sizes[present], np.full(len(present), server_round)
        may = eligible(sizes, epochs, options.cf_fedsr_lambda_1, options.cf_fedsr_lambda_2)
        users = present[may] if may.any() else present
        source = generator(self.config.seed, server_round, Purpose.CLUSTERING)
        labels = np.full(len(users), -1)
        known = self.known[users]
        if known.any():
            seed = int(source.integers(2**31))
            points = self.representations[users[known]]
            labels[known] = cluster(points, options.cf_fedsr_clustering, options.cf_fedsr_clusters, seed)
        members = [users[labels == label] for label in np.unique(labels)]
        counts = allocate([len(group) for group in members], min(self.users_per_round(len(present)), len(users)))
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
        self._record["cf-fedsr"] = (self._choice if self.options.cf_fedsr_selection else {}) | served | spread
        return self.step(server_round, shared, weighted_change(shared, replies, weights))

    def extra_arrays(self) -> Extra:
        return {**super().extra_arrays(), "representations": self.representations, "known": self.known}

    def restore_extra(self, arrays: Extra) -> None:
        super().restore_extra(arrays)
        self.representations, self.known = arrays["representations"], arrays["known"]

    def users_joined(self, count: int) -> None:
        nothing = np.zeros((count, self.representations.shape[1]), np.float32)
        self.representations = np.concatenate([self.representations, nothing])
        self.known = np.concatenate([self.known, np.zeros(count, dtype=bool)])

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
        for name, packed in reply.rows.items():
            if packed.indptr is None or packed.rows is None:
                total[name] += np.tensordot(own, packed.values.astype(np.float64), axes=1)
            else:
                scale = np.repeat(own, np.diff(packed.indptr)).reshape(-1, *[1] * (packed.values.ndim - 1))
                np.add.at(total[name], packed.rows, scale * packed.values)
    return total
