"""The users that live on this node: their models, their histories, and where their private state is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import ArraySpec, initial_private_rows, initial_shared
from bouquet.config import RunConfig, Scalar, Settings, parsed
from bouquet.errors import ConfigError
from bouquet.evaluation.evaluate import ScoreBlock
from bouquet.methods import METHODS
from bouquet.needs import expected_rows
from bouquet.ragged import Ragged
from bouquet.randomness import Draws, SeededDraws, Words
from bouquet.sealing import Seal
from bouquet.secret_draws import SecretDraws
from client_app.node.groups import Model, models_of
from client_app.node.histories import Histories, with_decoys
from client_app.node.lists import Watch, watched
from client_app.node.place import Place, place_of
from client_app.personalization import check_order
from client_app.personalization.base import Personalization
from client_app.state.folders import StateFolders
from client_app.state.private import PrivateState
from client_app.training.drawn import drawn_private
from client_app.training.threads import spread
from models import Backbone

# Private tables are kept by rows where those of all users would take more than this, and a round touches a smaller
# share of their rows than that. Others are kept whole: they are read as they are, and nothing of them is drawn again.
WHOLE_BYTES, FEW_ROWS = 4e9, 0.05


@dataclass(frozen=True)
class Host:
    """One node of one configuration: histories, backbone, private state.

    Attributes:
        config: the run's settings.
        place: who lives here, and where what is private is kept.
        backbone: the model.
        methods: what stands between the arrays that travel and the backbone, plug-ins first.
        on_scores: told what users would recommend with, whenever they are evaluated.
        for_show: whether the histories hold decoys, and this is the node that the server sees; see `shown`.
        groups: the model of each group where users have models of different sizes; `backbone` is the largest then.
    """

    config: RunConfig
    place: Place
    backbone: Backbone
    methods: tuple[Personalization, ...]
    on_scores: Watch | None = None
    groups: tuple[Model, ...] = ()
    for_show: bool = False

    @property
    def histories(self) -> Histories:
        """The hosted users' data."""
        return self.place.histories

    @property
    def seal(self) -> Seal | None:
        """What encrypts private state."""
        return self.place.seal

    @cached_property
    def by_group(self) -> tuple[Host, ...]:
        """The same node as it is for the users of each group."""
        return tuple(replace(self, backbone=m.backbone, methods=m.methods, groups=()) for m in self.groups)

    @cached_property
    def draws(self) -> Draws:
        """Where negatives, batches, dropout, decoys and noise come from: the run's seed, or a secret of this node.

        Raises:
            ConfigError: it shall be a secret, and this node has none.
        """
        if not self.config.secret_draws:
            return SeededDraws(self.config.seed)
        if self.seal is None:
            raise ConfigError(
                "secret-draws needs a secret on every node: give it a state key. Nodes of a simulation have none."
            )
        return SecretDraws(self.seal.subkey("draws"))

    def watched(self, scorer: ScoreBlock, positions: NDArray[np.int64]) -> ScoreBlock:
        """A scorer of these users whose scores `on_scores` sees, but for those of users that are not finite."""
        return watched(scorer, positions, self.on_scores)

    @cached_property
    def shown(self) -> Host:
        """The node as the server sees it: where decoys are asked for, every user has them among its training items.

        It has private state of its own, so that what leaves is in every round what a node whose users did all that
        would send.
        """
        if not self.config.decoy_rows or self.for_show:
            return self
        histories = with_decoys(self.histories, self.config.decoy_rows, self.draws)
        return replace(self, place=replace(self.place, histories=histories), for_show=True, on_scores=None)

    @property
    def identities(self) -> Words:
        """As `Place.identities`."""
        return self.place.identities

    def positions(self, users: Words) -> NDArray[np.int64]:
        """As `Place.positions`."""
        return self.place.positions(users)

    @cached_property
    def shared_specs(self) -> dict[str, ArraySpec]:
        """The arrays that may travel, by the names that they have on the wire."""
        if not self.groups:
            return self.model_specs
        return {f"{g}/{name}": spec for g, model in enumerate(self.groups) for name, spec in model.shared.items()}

    @cached_property
    def model_specs(self) -> dict[str, ArraySpec]:
        """The shared arrays of the model."""
        return dict(Model(self.backbone, self.methods).shared)

    @cached_property
    def kept(self) -> frozenset[str]:
        """The shared arrays of which every user keeps a version of its own."""
        return frozenset().union(*(method.kept for method in self.methods))

    @cached_property
    def tuned(self) -> dict[str, ArraySpec]:
        """The common tables that every user trains from and recommends with as its own training left them."""
        names = frozenset[str]().union(*(method.tuned for method in self.methods)) - self.kept
        return {name: self.model_specs[name] for name in sorted(names)}

    def private_specs(self, shared: Mapping[str, object]) -> dict[str, ArraySpec]:
        """The arrays that are kept here when only `shared` ones travel to all users alike."""
        specs = dict(self.backbone.private)
        for method in self.methods:
            specs |= method.private
        own = {name: spec for name, spec in self.model_specs.items() if name not in shared or name in self.kept}
        return {**specs, **own}

    def by_rows(self, shared: Mapping[str, object]) -> frozenset[str]:
        """The private tables of which the rows that training has touched are kept; as `private_specs`."""
        if self.groups or len(self.methods) > 1 or self.config.weight_decay > 0:
            return frozenset()
        specs = {name: spec for name, spec in self.private_specs(shared).items() if spec.by_item}
        if self.methods:
            specs = {name: spec for name, spec in specs.items() if name in self.methods[0].by_rows}
        histories, negatives = self.histories, self.config.negatives_per_positive
        everyone = len(histories.users) * (1 if self.place.durable else histories.num_partitions)
        if everyone * sum(4 * spec.size for spec in specs.values()) <= WHOLE_BYTES:
            return frozenset()
        touched = expected_rows(histories.train.lengths, histories.num_items, negatives, self.config)
        return frozenset(specs) if touched.mean() < FEW_ROWS * histories.num_items else frozenset()

    @cached_property
    def folders(self) -> StateFolders:
        """Where the private state of the hosted users is."""
        return self.place.folders("-shown" * self.for_show)

    def state(self, series: str, shared: Mapping[str, object]) -> PrivateState:
        """The private state of the hosted users in one run series."""
        specs, seed = self.private_specs(shared), self.config.seed

        @cache
        def alike(name: str) -> NDArray[np.float32]:
            return initial_shared({name: self.model_specs[name]}, seed)[name]

        def initial(name: str, positions: NDArray[np.int64]) -> NDArray[np.float32]:
            if name in self.model_specs:  # all users start alike
                return alike(name)[None]
            users = self.histories.users[positions]
            values = np.empty((len(users), *specs[name].shape), np.float32)

            def work(begin: int, end: int) -> None:
                drawn_private(name, specs[name], seed, users[begin:end], values[begin:end])

            spread(work, np.arange(len(users) + 1))
            return values

        def initial_rows(name: str, positions: NDArray[np.int64], rows: Ragged) -> NDArray[np.float32]:
            if name in self.model_specs:
                return alike(name)[rows.values]
            return initial_private_rows(name, specs[name], seed, self.histories.users[positions], rows)

        return PrivateState(
            self.folders.of_node(series),
            series,
            self.histories.users,
            specs,
            initial,
            self.place.durable,
            self.seal,
            self.tuned,
            self.by_rows(shared),
            initial_rows,
        )


def host_of(run_config: Mapping[str, Scalar], node_config: Mapping[str, Scalar]) -> Host:
    """The host that a node's settings describe.

    Raises:
        ConfigError, DataError: the configuration or the data cannot be used.
    """
    settings = parsed(dict(run_config))
    return host_at(settings, place_of(settings.run, node_config))


def host_at(settings: Settings, place: Place) -> Host:
    """A host whose users have one model, or one by group.

    Raises:
        ConfigError: a setting cannot be used, or something reads an order that the histories do not have.
    """
    config = settings.run
    check_order(settings, place.histories.in_time)
    models = models_of(settings, place.histories.num_items)
    largest = models[-1]
    groups = models if METHODS[config.strategy].sizes else ()
    return Host(config, place, largest.backbone, largest.methods, groups=groups)
