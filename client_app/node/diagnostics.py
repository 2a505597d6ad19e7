"""What training does to item tables, looked at where the tables are; only sums over users leave.

    information abundance     PLGC, Figs. 3 and 5      of every table; of what is seen before and after local training
    singular values           PLGC, Fig. 6             of every table; HeteFedRec's Table V: variance of those of cov(V)
    map of the items          PLGC, Fig. 6             of one user who has agreed to it: principal components, no t-SNE
    RBO@50 with p = .99       Fed3CR, Fig. 6           are the items ranked alike by the common and by the own view?
    E = (C^E)ᵀ V_u / m        Fed3CR, Fig. 7           of one user who has agreed to it

Users are put into groups by how many training interactions they have. A group of fewer than `LEAST` users is not
told: its mean would be too close to single users.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bouquet.arrays import Arrays
from bouquet.errors import ConfigError
from bouquet.evaluation import on_a_plane, rank_biased_overlap, singular_value_variance, singular_values
from bouquet.evaluation.spectra import abundance
from bouquet.methods import METHODS
from bouquet.wire import TrainRequest
from client_app.node.given import blocks_of, deployed, given_to
from client_app.node.host import Host
from client_app.node.movement import LEAST
from client_app.node.tasks import local_task, training_of
from client_app.node.tensor_scoring import VIEW_BYTES, whole_catalogue
from client_app.personalization.round import PERSONAL, Given, Tensors
from models import is_sequential

# Lower ends of the groups, in training interactions.
GROUPS = (0, 20, 50, 100, 200)
DEPTH, PERSISTENCE, BINS = 50, 0.99, 20

# What items are to the one user whose map is told.
OTHER, TRAINED, HIDDEN = "other", "training", "held out"

Sums = dict[str, NDArray[np.float64]]


@dataclass
class Diagnosis:
    """Sums over users, which are added up over nodes.

    Attributes:
        users: [groups] how many users.
        sums: name -> [groups, …].
        overlaps: [bins] how many users have which overlap of the two views, from 0 to 1.
        heat: [d, d] E of the one user who has agreed.
        maps: of the same user, table -> [m, 2] items on a plane; and the share of the spread that each plane shows.
        kinds: of the same user, what each of the m items is to it.
    """

    users: NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(GROUPS), np.int64))
    sums: Sums = field(default_factory=dict)
    overlaps: NDArray[np.int64] = field(default_factory=lambda: np.zeros(BINS, np.int64))
    heat: NDArray[np.float64] | None = None
    maps: dict[str, tuple[NDArray[np.float64], float]] = field(default_factory=dict)
    kinds: list[str] = field(default_factory=list)

    def count(self, name: str, groups: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Add what single users have: values [k, …] of users in groups [k]."""
        total = self.sums.setdefault(name, np.zeros((len(GROUPS), *values.shape[1:])))
        np.add.at(total, groups, values)

    def __add__(self, other: Diagnosis) -> Diagnosis:
        names = self.sums.keys() | other.sums.keys()
        both = {name: [part.sums[name] for part in (self, other) if name in part.sums] for name in names}
        heat = self.heat if self.heat is not None else other.heat
        sums = {name: np.sum(parts, axis=0) for name, parts in both.items()}
        users, overlaps = self.users + other.users, self.overlaps + other.overlaps
        return Diagnosis(users, sums, overlaps, heat, self.maps or other.maps, self.kinds or other.kinds)

    def told(self) -> dict[str, Any]:
        """What may be shown: means over all users and over groups of at least `LEAST`, and the one heat map.

        Raises:
            ConfigError: there are too few users for any mean.
        """
        if self.users.sum() < LEAST:
            raise ConfigError(f"Means over fewer than {LEAST} users would say too much about them.")
        groups = {"all": np.arange(len(GROUPS))} | {
            label(group): np.array([group]) for group in range(len(GROUPS)) if self.users[group] >= LEAST
        }
        found: dict[str, Any] = {"users": {name: int(self.users[rows].sum()) for name, rows in groups.items()}}
        for name, total in sorted(self.sums.items()):
            found[name] = {
                group: (total[rows].sum(axis=0) / self.users[rows].sum()).tolist() for group, rows in groups.items()
            }
        if self.overlaps.any():
            found["overlap histogram"] = self.overlaps.tolist()
        if self.heat is not None:
            found["heat map"] = self.heat.tolist()
        for name, (points, share) in self.maps.items():
            found[f"map, {name} table"] = {"points": points.tolist(), "share of the spread": share}
        if self.maps:
            found["items of the map"] = self.kinds
        return found


def label(group: int) -> str:
    """What a group is called."""
    if group + 1 == len(GROUPS):
        return f"{GROUPS[group]} and more interactions"
    return f"{GROUPS[group]} to {GROUPS[group + 1] - 1} interactions"


def diagnose(
    host: Host, series: str, round_: int, shared: Arrays, versions: Mapping[int, int], consenting: int | None = None
) -> Diagnosis:
    """Look at the users of a node as they stand after a round. Nothing is written.

    Args:
        series: of the run whose private state is read.
        round_: the round that `shared` came out of.
        versions: user key -> round of the user's last update; users that are not in it are left out.
        consenting: key of the user whose E is told.
    Raises:
        ConfigError: the run has no item tables to look at.
        StateError: private state is missing or damaged.
    """
    method = METHODS[host.config.strategy]
    if is_sequential(host.backbone) or method.sizes or method.item_table == "own":
        raise ConfigError(
            "Diagnostics look at one common item table and users' own: not at sequence models, nor at "
            f"{' or '.join(sorted(n for n, m in METHODS.items() if m.sizes or m.item_table == 'own'))}."
        )
    diagnosis = Diagnosis()
    users = np.array([user for user in host.identities if int(user) in versions], dtype=np.uint64)
    if not len(users):
        return diagnosis
    state, asked = host.state(series, shared), host.positions(users)
    rounds = np.array([versions[int(user)] for user in users], dtype=np.int64)
    now = TrainRequest(series, round_, users, rounds, rounds, shared)
    size = max(1, VIEW_BYTES // (4 * sum(spec.size for spec in host.backbone.shared.values())))
    for block in blocks_of(host, shared, len(asked)):
        for first in range(block.start, block.stop, size):
            few = slice(first, min(first + size, block.stop))
            start = given_to(host, replace(now, round=round_ + 1), state, few, asked[few], "start")
            uses = deployed(host, now, state, few, asked[few])
            here = np.flatnonzero(users[few] == consenting) if consenting is not None else np.zeros(0, np.int64)
            diagnosis += _Look(host, asked[few], round_, shared).at(start, uses, here)
    return diagnosis


@dataclass(frozen=True)
class _Look:
    """At some users [k] of a node after a round."""

    host: Host
    positions: NDArray[np.int64]
    round: int
    shared: Arrays

    def at(self, start: Given, deployed: Given, consenting: NDArray[np.int64]) -> Diagnosis:
        """Add up what the users recommend with, and what one more local training does to it.

        Args:
            start, deployed: of the users.
            consenting: [0] or [1] which of them has agreed that its E is told.
        """
        diagnosis = Diagnosis()
        groups = np.searchsorted(GROUPS, self.host.histories.train.lengths[self.positions], side="right") - 1
        np.add.at(diagnosis.users, groups, 1)
        table = next(name for name, spec in self.host.backbone.shared.items() if spec.by_item)
        arrays, seen = self.seen(deployed)
        common = torch.from_numpy(self.shared[table])
        tables = {"seen": seen[table], "common": common.expand(len(groups), *common.shape)}
        if PERSONAL in arrays or table in deployed.own:
            tables["own"] = arrays[PERSONAL if PERSONAL in arrays else table]
        for name, values in tables.items():
            spectra = singular_values(values)
            diagnosis.count(f"singular values, {name} table", groups, spectra)
            diagnosis.count(f"information abundance, {name} table", groups, abundance(spectra))
            diagnosis.count(f"variance of singular values, {name} table", groups, singular_value_variance(values))
        views = (tables["common"], tables["own"]) if "own" in tables else None
        for method in self.host.methods:
            views = method.two_views(arrays, seen) or views
        if views is not None:
            first, second = (self.ranking(seen, table, view) for view in views)
            overlap = rank_biased_overlap(first, second, PERSISTENCE)
            diagnosis.count(f"RBO@{DEPTH} of the two views", groups, overlap)
            diagnosis.overlaps += np.histogram(overlap, BINS, (0, 1 + 1e-9))[0]
            for user in consenting:
                diagnosis.heat = (views[0][user].double().T @ views[1][user].double() / len(common)).numpy()
        for user in consenting:
            diagnosis.maps = {name: on_a_plane(values[user].numpy()) for name, values in tables.items()}
            diagnosis.kinds = self.kinds(int(self.positions[user]), len(common))
        for name, given in (("before", start), ("after", self.trained(start))):
            spectra = singular_values(self.seen(given)[1][table])
            diagnosis.count(f"information abundance {name} training", groups, abundance(spectra))
        return diagnosis

    def kinds(self, position: int, num_items: int) -> list[str]:
        """What each item is to a user."""
        histories, found = self.host.histories, [OTHER] * num_items
        for rows, kind in ((histories.train, TRAINED), (histories.validation, HIDDEN), (histories.test, HIDDEN)):
            for item in rows.row(position).tolist():
                found[item] = kind
        return found

    def seen(self, given: Given) -> tuple[Tensors, Tensors]:
        """What the users have, and what their models see of it: [k, …] by name."""
        k, host = len(self.positions), self.host
        methods = [method for method in host.methods if method.in_loss]
        arrays = {n: torch.from_numpy(v).expand(k, *v.shape) for n, v in (given.shared | given.frozen).items()}
        arrays |= {n: torch.from_numpy(v) for n, v in (given.own | given.anchors).items()}
        working = whole_catalogue(host.backbone, methods, host.histories.train.take(self.positions), self.round)
        seen: Tensors = arrays
        with torch.inference_mode():
            for method in methods:
                seen = method.view(seen, working)
        return arrays, seen

    def ranking(self, seen: Tensors, table: str, view: torch.Tensor) -> NDArray[np.int64]:
        """[k, DEPTH] the items as the users' own score functions rank them in a view of the item table."""
        backbone = self.host.backbone
        private = {name: seen[name] for name in backbone.private}
        with torch.inference_mode():
            scores = backbone.scores(private, {name: seen[name] for name in backbone.shared} | {table: view}).numpy()
        return np.argsort(-scores, axis=1, kind="stable")[:, :DEPTH]

    def trained(self, given: Given) -> Given:
        """What the next local training makes of what users start from; common arrays become arrays of each user."""
        given = replace(given, own={name: values.copy() for name, values in given.own.items()})
        task = local_task(self.host, given, self.positions, self.round + 1)
        own = {name: np.repeat(values[None], len(self.positions), axis=0) for name, values in given.shared.items()}
        for part in training_of(self.host)(task):
            for name in own:
                if name in part.by_item:
                    own[name][part.users[part.rows.row_of_value], part.rows.values] += part.by_item[name]
                else:
                    own[name][part.users] += part.dense[name]
        for name, values in own.items():
            given = given.with_own(name, values)
        return given
