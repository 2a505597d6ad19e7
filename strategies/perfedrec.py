"""PerFedRec: global, cluster and local models (Luo et al., CIKM 2022).

Round t on the server, over the users u of the round, who all started from the global arrays G and trained them to Q_u:
    clusters         k-means of users by their profiles; the round's users are drawn from all of them
    global model     G ← the mean of all Q_u
    cluster model    G_c = the mean of the Q_u of the users in cluster c

What a device makes of G, G_c and its own Q_u stands in `client_app.personalization.perfedrec`.

G_c is kept and sent as what sets it apart from the mean of the round's tables, D_c = mean_c Δ_u - mean Δ_u, of item
tables alone, as the server's optimiser may step further than to that mean. With `server-optimizer = "sgd"` and rate 1
G + D_c is G_c. A cluster without users in the round has D_c = 0 until the next one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Arrays, Specs
from bouquet.methods.perfedrec import PerFedRecOptions
from bouquet.needs import bytes_of
from bouquet.picked import PerUser, Picked
from bouquet.wire import TrainReply, Update
from strategies.clustered import ClusteredUsers, Drawing
from strategies.federation.base import Extra
from strategies.federation.needs import reply_bytes

Sums = dict[str, NDArray[np.float64]]


def cluster_sum(shared: Arrays, replies: list[TrainReply], mine: list[NDArray[np.bool_]]) -> tuple[Sums, int]:
    """Σ Δ_u over some of the users of each reply, in float64, and how many these are."""
    total = {name: np.zeros(values.shape) for name, values in shared.items()}
    for reply, chosen in zip(replies, mine, strict=True):
        places = np.flatnonzero(chosen)
        for name, values in total.items():
            for place in places.tolist():
                rows, change = reply.rows[name].of_user(place)
                values[rows] += change
    return total, sum(int(chosen.sum()) for chosen in mine)


class PerFedRec(ClusteredUsers):
    """The mean of all users' changes, and of each cluster's."""

    options: PerFedRecOptions
    update: Update = "rows"

    @property
    def clusters(self) -> int:
        return self.options.perfedrec_clusters

    @property
    def drawing(self) -> Drawing:
        return self.options.perfedrec_sampling

    @property
    def asks(self) -> bool:
        return super().asks or self.options.perfedrec_cluster_share > 0

    def tables(self) -> Specs:
        """The arrays of which clusters have their own: item tables."""
        return {name: spec for name, spec in self.traveling(self.roster.specs).items() if spec.by_item}

    def prepare(self) -> None:
        super().prepare()
        # One more for those whose profile is not known, and one for those who came after the round.
        count = self.clusters + 2
        self.apart = {name: np.zeros((count, *spec.shape), np.float32) for name, spec in self.tables().items()}

    def personal(self, users: NDArray[np.int64]) -> PerUser:
        """D_c of each user's cluster; only a plug-in reads it in training."""
        return self._of_cluster(users) if self.config.personalization != "none" else {}

    def personal_to_evaluate(self, users: NDArray[np.int64]) -> PerUser:
        return self._of_cluster(users)

    def aggregate(
        self, server_round: int, shared: Arrays, replies: list[TrainReply], users: list[NDArray[np.int64]]
    ) -> Arrays:
        for reply, members in zip(replies, users, strict=True):
            self._learn(reply.reports, members)
        trained = np.concatenate(users)
        mean = {name: np.zeros(values.shape) for name, values in shared.items()}
        of_cluster = {}
        for label in np.unique(self.labels[trained]).tolist():
            total, count = cluster_sum(shared, replies, [self.labels[members] == label for members in users])
            for name, values in total.items():
                mean[name] += values / len(trained)
            of_cluster[label] = {name: total[name] / count for name in self.apart}
        for name, kept in self.apart.items():
            kept[:] = 0
            for label, found in of_cluster.items():
                kept[label] = self.options.perfedrec_cluster_rate * (found[name] - mean[name])
        self.note(perfedrec=self._choice)
        return self.optimizer.step(server_round, shared, mean)

    def personal_bytes(self) -> int:
        return bytes_of(self.tables()) if self.options.perfedrec_cluster_share > 0 else 0

    def kept_bytes(self) -> int:
        return super().kept_bytes() + (self.clusters + 2) * bytes_of(self.tables())

    def working_bytes(self) -> float:
        """The means of clusters and of all in float64, and of one node's users what they sent, weighed."""
        return (
            super().working_bytes()
            + (2 + 2 * self.clusters) * bytes_of(self.tables())
            + 2 * reply_bytes(self) / self.roster.nodes
        )

    def extra_arrays(self) -> Extra:
        return super().extra_arrays() | {f"apart/{name}": values for name, values in self.apart.items()}

    def restore_extra(self, arrays: Extra) -> None:
        super().restore_extra(arrays)
        self.apart = {name: arrays[f"apart/{name}"] for name in self.apart}

    def _of_cluster(self, users: NDArray[np.int64]) -> PerUser:
        if self.options.perfedrec_cluster_share == 0:
            return {}
        return {name: Picked.among(values, self.labels[users]) for name, values in self.apart.items()}
