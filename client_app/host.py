"""The users that live on this node: their histories, what is held out, and where their private state is."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import ArraySpec, initial_private, initial_shared
from bouquet.config import DataOptions, RunConfig, Scalar, own
from bouquet.errors import ConfigError, WireError
from bouquet.evaluation.evaluate import ScoreBlock
from bouquet.ragged import Ragged
from bouquet.randomness import Purpose, Words
from bouquet.sealing import Seal, read_seal
from client_app.groups import Model, models_of
from client_app.personalization.base import Personalization
from client_app.state import PrivateState
from data_partition import Interactions, assign, evaluation_candidates, load, make_split, read_shard
from models import Backbone

SAMPLED_CANDIDATES = 99


@dataclass(frozen=True)
class Histories:
    """What the users of one node did.

    Attributes:
        users: [k] keys.
        train, validation, test: [k] rows of items; train oldest first.
        num_items: size of the catalogue.
        catalogue: fingerprint of the item list.
        num_partitions, partition: which part of the data this is.
        dropped_users: users dropped by the minimum count, told by the first partition only.
        split_seed: seed of the candidates of sampled-99.
    """

    users: Words
    train: Ragged
    validation: Ragged
    test: Ragged
    num_items: int
    catalogue: str
    partition: int
    num_partitions: int
    dropped_users: int
    split_seed: int

    @cached_property
    def whole(self) -> Ragged:
        """Everything that each user ever touched."""
        parts = (self.train, self.validation, self.test)
        owners = np.concatenate([part.row_of_value for part in parts])
        return Ragged.from_pairs(owners, np.concatenate([part.values for part in parts]), len(self.users))

    @cached_property
    def candidates(self) -> dict[str, Ragged]:
        """The 99 never-touched items that a held-out item is ranked against, by part."""
        purposes = {"validation": Purpose.VALIDATION_CANDIDATES, "test": Purpose.TEST_CANDIDATES}
        return {
            part: evaluation_candidates(
                self.whole, self.num_items, SAMPLED_CANDIDATES, self.users, self.split_seed, purpose
            )
            for part, purpose in purposes.items()
        }


def interactions_of(options: DataOptions) -> Interactions:
    """The data set of a run."""
    return load(
        options.dataset,
        options.data_dir,
        min_interactions=options.min_interactions,
        repeats=options.repeats,
        max_users=options.max_users,
        sample_seed=options.split_seed,
        data_file=options.data_file,
        user_column=options.user_column,
        item_column=options.item_column,
        time_column=options.time_column,
    )


def histories_of(
    interactions: Interactions, options: DataOptions, partition: int = 0, num_partitions: int = 1
) -> Histories:
    """Split a data set, and take the users of one partition (by default all)."""
    homes = assign(interactions.histories.lengths, num_partitions, options.partition)
    return _histories(interactions, options, np.flatnonzero(homes == partition), partition, num_partitions)


def histories_of_shard(folder: Path, options: DataOptions) -> Histories:
    """The users of a shard, each split as in the whole data set.

    Raises:
        DataError: the folder holds no shard.
        ConfigError: the run is over other data.
    """
    shard = read_shard(folder)
    shard.check(options.to_flat(), folder)
    here = np.arange(shard.interactions.num_users)
    return _histories(shard.interactions, options, here, shard.partition, shard.num_partitions)


def _histories(
    interactions: Interactions, options: DataOptions, here: NDArray[np.int64], partition: int, num_partitions: int
) -> Histories:
    split = make_split(interactions, options.split, options.hold_out, options.split_seed)
    return Histories(
        users=interactions.user_keys[here],
        train=split.train.take(here),
        validation=split.validation.take(here),
        test=split.test.take(here),
        num_items=interactions.num_items,
        catalogue=blake2b("\n".join(interactions.item_ids).encode(), digest_size=8).hexdigest(),
        partition=partition,
        num_partitions=num_partitions,
        dropped_users=interactions.dropped_users if partition == 0 else 0,
        split_seed=options.split_seed,
    )


@dataclass(frozen=True)
class Host:
    """One node of one configuration: histories, backbone, private state.

    Attributes:
        config: the run's settings.
        histories: the hosted users' data.
        backbone: the model.
        methods: what stands between the arrays that travel and the backbone, plug-ins first.
        state_root: folder under which private state is kept, by run series.
        durable: whether state is forced to the disk.
        seal: encrypts private state; None: it is stored as it is.
        on_scores: given the scores of every evaluated block of users, [b, m].
        groups: the model of each group where users have models of different sizes; `backbone` is the largest then.
    """

    config: RunConfig
    histories: Histories
    backbone: Backbone
    methods: tuple[Personalization, ...]
    state_root: Path
    durable: bool
    seal: Seal | None = None
    on_scores: Callable[[NDArray[np.float32]], None] | None = None
    groups: tuple[Model, ...] = ()

    @cached_property
    def by_group(self) -> tuple[Host, ...]:
        """The same node as it is for the users of each group."""
        return tuple(replace(self, backbone=m.backbone, methods=m.methods, groups=()) for m in self.groups)

    @property
    def draw_seed(self) -> int:
        """The seed of negatives, batches, decoys and noise: the run's, or a secret of this node.

        Raises:
            ConfigError: it shall be a secret, and this node has none.
        """
        if not self.config.secret_draws:
            return self.config.seed
        if self.seal is None:
            raise ConfigError("secret-draws needs a secret on every node: give it a state key.")
        return self.seal.secret

    def watched(self, scorer: ScoreBlock) -> ScoreBlock:
        """A scorer whose scores `on_scores` sees."""
        if not (watch := self.on_scores):
            return scorer

        def scores(rows: NDArray[np.int64]) -> NDArray[np.float32]:
            values = scorer(rows)
            watch(values)
            return values

        return scores

    @cached_property
    def _position(self) -> dict[int, int]:
        return {int(user): index for index, user in enumerate(self.histories.users)}

    def positions(self, users: Words) -> NDArray[np.int64]:
        """Where the users with these keys are among the hosted ones: [k].

        Raises:
            WireError: a user does not live here.
        """
        try:
            return np.array([self._position[int(user)] for user in users], dtype=np.int64)
        except KeyError as error:
            raise WireError(f"user {error.args[0]:016x} does not live on this node") from None

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

    def state(self, series: str, shared: Mapping[str, object]) -> PrivateState:
        """The private state of the hosted users in one run series."""
        specs = self.private_specs(shared)

        def initial(name: str, positions: NDArray[np.int64]) -> NDArray[np.float32]:
            if name in self.model_specs:  # all users start alike
                return initial_shared({name: self.model_specs[name]}, self.config.seed)[name][None]
            return initial_private(name, specs[name], self.config.seed, self.histories.users[positions])

        node = f"node-{self.histories.partition}-of-{self.histories.num_partitions}"
        folder = self.state_root / series / node
        return PrivateState(folder, series, self.histories.users, specs, initial, self.durable, self.seal, self.tuned)


def default_state_root() -> Path:
    """Where private state is kept when nobody says so: the user's own state folder."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "bouquet"


def host_of(run_config: Mapping[str, Scalar], node_config: Mapping[str, Scalar]) -> Host:
    """The host for a message, built once per process and configuration.

    Raises:
        ConfigError, DataError: the configuration or the data cannot be used.
    """
    return _host(tuple(sorted(run_config.items())), tuple(sorted(node_config.items())))


@lru_cache(maxsize=64)
def _host(run_items: tuple[tuple[str, Scalar], ...], node_items: tuple[tuple[str, Scalar], ...]) -> Host:
    config, node = own(dict(run_items), RunConfig), dict(node_items)
    # A deployed node is told where its state is; it can lose power at any time.
    simulated = "state-dir" not in node
    data = own(dict(run_items), DataOptions)
    if "shard" in node:
        histories = histories_of_shard(Path(str(node["shard"])), data)
    else:
        partition, num_partitions = int(node.get("partition-id", 0)), int(node.get("num-partitions", 1))
        histories = histories_of(_interactions(data), data, partition, num_partitions)
    models = models_of(config, dict(run_items), histories.num_items)
    root = str(node.get("state-dir", "")) or config.state_dir
    folder = Path(root) if root else default_state_root()
    seal = read_seal(str(node.get("state-key", "")))
    return host_with(models, config, histories, folder, durable=not simulated, seal=seal)


def host_with(
    models: tuple[Model, ...],
    config: RunConfig,
    histories: Histories,
    folder: Path,
    *,
    durable: bool,
    seal: Seal | None,
) -> Host:
    """A host whose users have one model, or one by group, the largest last."""
    largest = models[-1]
    groups = models if config.strategy == "hetefedrec" else ()
    return Host(config, histories, largest.backbone, largest.methods, folder, durable, seal, groups=groups)


# All nodes that share a process read the same files once.
_interactions = lru_cache(maxsize=1)(interactions_of)
