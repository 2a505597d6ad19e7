"""Averaging over users in clusters: what FedFast and PerFedRec share.

Users tell a profile (`client_app.personalization.profiles`), in training and when they are evaluated, if anything is
done with it. Before every round those whose profile is known are clustered by k-means, and the round's users are drawn
from all clusters. Users without a known profile, as all are at first, are one cluster more.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bouquet.arrays import Arrays
from bouquet.config import RunConfig
from bouquet.extras import need
from bouquet.methods.parts import ServerOptimizerOptions
from bouquet.randomness import Purpose, generator
from bouquet.records import Report
from bouquet.reporting.run_directory import RunDirectory
from bouquet.wire import EvaluateReply, TrainReply
from strategies.averaging import FCF
from strategies.cf_fedsr import allocate, cluster
from strategies.federation.base import Extra

Drawing = Literal["equal", "proportional"]


def evenly(cluster_sizes: ArrayLike, total: int) -> NDArray[np.int64]:
    """How many users are drawn from each cluster: from all as many, as far as they have them, in turn.

    Args:
        cluster_sizes: members of each cluster, [c].
        total: users to draw, exactly.
    Returns:
        [c], no entry above the cluster's size; what is left over goes to the first clusters that have more.
    Raises:
        ValueError: the clusters hold fewer than `total` users, or a size or the total is negative.
    """
    sizes = np.asarray(cluster_sizes, dtype=np.int64)
    if total < 0 or (sizes < 0).any() or total > sizes.sum():
        raise ValueError(f"{total} users cannot be drawn from clusters of {sizes.tolist()}")
    drawn = np.zeros_like(sizes)
    while (left := total - int(drawn.sum())) > 0:
        more = np.flatnonzero(drawn < sizes)
        each = left // len(more)
        if each == 0:
            drawn[more[:left]] += 1
        else:
            drawn[more] += np.minimum(each, sizes[more] - drawn[more])
    return drawn


class ClusteredUsers(FCF):
    """A server that knows its users' profiles, and draws rounds from clusters of them.

    Attributes:
        profiles, known: [n, d] and [n], what users told and of whom it is known.
        labels: [n] the number of each user's cluster in the newest round, from 0.
    """

    def __init__(self, config: RunConfig, options: ServerOptimizerOptions, directory: RunDirectory) -> None:
        super().__init__(config, options, directory)
        if self.asks:
            need("sklearn", f"Clusters of users, as {config.strategy} has them,")

    @property
    @abstractmethod
    def clusters(self) -> int:
        """k of k-means."""

    @property
    @abstractmethod
    def drawing(self) -> Drawing:
        """How many users of a round each cluster gives: all as many, or in proportion to their sizes."""

    @property
    def asks(self) -> bool:
        """Whether anything is done with clusters: where everybody trains there is nothing to draw."""
        return self.config.fraction_train < 1

    def tells(self) -> tuple[str, ...]:
        return ("representation",) if self.asks else ()

    def reports(self, server_round: int, shared: Arrays) -> dict[str, Report]:
        return self.evaluation_reports(server_round, shared)

    def evaluation_reports(self, server_round: int, shared: Arrays) -> dict[str, Report]:
        """Profiles: means of rows of the table that is sent, or zeros."""
        if not self.asks:
            return {}
        table = next(shared[name] for name, spec in self.roster.specs.items() if spec.by_item)
        low, high = np.minimum(table.min(axis=0), 0), np.maximum(table.max(axis=0), 0)
        room = 1e-5 * np.maximum(-low, high)  # the device's sums round differently
        return {"representation": Report((len(low),), low - room, high + room)}

    def prepare(self) -> None:
        count = len(self.roster.users)
        size = next(spec.shape[1] for spec in self.roster.specs.values() if spec.by_item)
        self.profiles = np.zeros((count, size), np.float32)
        self.known = np.zeros(count, dtype=bool)
        self.labels = np.zeros(count, dtype=np.int64)

    def select_users(self, server_round: int) -> NDArray[np.int64]:
        """As many users as a round has, from all clusters of those who are there."""
        source = generator(self.config.seed, server_round, Purpose.CLUSTERING)
        seed = int(source.integers(2**31))
        self.labels[:] = 0
        self._choice: dict[str, Any] = {}
        if self.known.any():
            found = cluster(self.profiles[self.known], "k-means", self.clusters, seed)
            self.labels[self.known] = found
            self.labels[~self.known] = found.max() + 1
        present = self.roster.present()
        if not len(present):
            return present
        members = [present[self.labels[present] == label] for label in np.unique(self.labels[present])]
        sizes = [len(group) for group in members]
        counts = (evenly if self.drawing == "equal" else allocate)(sizes, self.users_per_round())
        chosen = [source.choice(group, count, replace=False) for group, count in zip(members, counts, strict=True)]
        self._choice = {"clusters": sizes, "chosen": counts.tolist()}
        return np.sort(np.concatenate(chosen))

    def take_evaluation(self, reply: EvaluateReply, users: NDArray[np.int64]) -> None:
        self._learn(reply.reports, users)

    def aggregate(
        self, server_round: int, shared: Arrays, replies: list[TrainReply], users: list[NDArray[np.int64]]
    ) -> Arrays:
        for reply, members in zip(replies, users, strict=True):
            self._learn(reply.reports, members)
        self.note(**{self.config.strategy: self._choice})
        return super().aggregate(server_round, shared, replies, users)

    def kept_bytes(self) -> int:
        return super().kept_bytes() + self.profiles_bytes()

    def profiles_bytes(self) -> int:
        """Bytes of all users' profiles."""
        return 4 * len(self.roster.users) * next(s.shape[1] for s in self.roster.specs.values() if s.by_item)

    def extra_arrays(self) -> Extra:
        return super().extra_arrays() | {"profiles": self.profiles, "known": self.known, "labels": self.labels}

    def restore_extra(self, arrays: Extra) -> None:
        super().restore_extra(arrays)
        self.profiles, self.known = arrays["profiles"], arrays["known"].astype(bool)
        self.labels = arrays["labels"]

    def users_joined(self, count: int) -> None:
        self.profiles = np.concatenate([self.profiles, np.zeros((count, self.profiles.shape[1]), np.float32)])
        self.known = np.concatenate([self.known, np.zeros(count, bool)])
        self.labels = np.concatenate([self.labels, np.full(count, self.labels.max(initial=-1) + 1)])

    def users_forgotten(self, positions: NDArray[np.int64]) -> None:
        self.profiles = np.delete(self.profiles, positions, axis=0)
        self.known = np.delete(self.known, positions)
        self.labels = np.delete(self.labels, positions)

    def _learn(self, reports: Arrays, users: NDArray[np.int64]) -> None:
        if "representation" in reports:
            self.profiles[users], self.known[users] = reports["representation"], True
