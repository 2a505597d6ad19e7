"""Who lives on a node and where it keeps what is private, whatever it learns with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Specs
from bouquet.attacks import refuse_in_deployment
from bouquet.config import RunConfig, Scalar
from bouquet.errors import WireError
from bouquet.policy import Policy
from bouquet.randomness import Words
from bouquet.sealing import Seal, read_seal
from bouquet.wire import RosterReply
from client_app.node.histories import Histories, histories_of, histories_of_shard, interactions_of
from client_app.state.folders import StateFolders, default_state_root


@dataclass(frozen=True)
class Place:
    """One node.

    Attributes:
        histories: the hosted users' data.
        root: folder under which private state is kept, by run series.
        durable: whether state is forced to the disk.
        seal: encrypts private state; None: it is stored as it is.
        keep_series: of how many run series private state is kept; 0: of all.
    """

    histories: Histories
    root: Path
    durable: bool = False
    seal: Seal | None = None
    keep_series: int = 0

    @cached_property
    def identities(self) -> Words:
        """[k] the keys under which the hosted users are known outside.

        Hashes of raw ids where nodes have no key, as in a simulation. They are not what draws are keyed by, so that a
        deployment with keys and a simulation without have the same negatives, initial values and candidates.
        """
        return self.seal.pseudonyms(self.histories.users) if self.seal else self.histories.users

    @cached_property
    def _position(self) -> dict[int, int]:
        return {int(user): index for index, user in enumerate(self.identities)}

    def positions(self, users: Words) -> NDArray[np.int64]:
        """Where the users with these keys are among the hosted ones: [k].

        Raises:
            WireError: a user does not live here.
        """
        try:
            return np.array([self._position[int(user)] for user in users], dtype=np.int64)
        except KeyError as error:
            raise WireError(f"user {error.args[0]:016x} does not live on this node") from None

    def roster(self, specs: Specs) -> RosterReply:
        """Who lives here, which catalogue they know, and the arrays of their model that may travel."""
        histories = self.histories
        return RosterReply(
            users=self.identities,
            sizes=histories.train.lengths,
            interactions=len(histories.whole.values),
            dropped_users=histories.dropped_users,
            num_items=histories.num_items,
            catalogue=histories.catalogue,
            num_partitions=histories.num_partitions,
            specs=specs,
        )

    def folders(self, kind: str = "") -> StateFolders:
        """Where its private state is; `kind` tells apart what one node keeps twice."""
        node = f"node-{self.histories.partition}-of-{self.histories.num_partitions}{kind}"
        return StateFolders(self.root, node, self.keep_series)


def place_of(config: RunConfig, node: Mapping[str, Scalar]) -> Place:
    """The place that a node's settings describe.

    Raises:
        ConfigError, DataError: the configuration or the data cannot be used.
    """
    # A deployed node is told where its state is; it can lose power at any time.
    simulated = "state-dir" not in node
    if not simulated:
        refuse_in_deployment(config)
    if "shard" in node:
        histories = histories_of_shard(Path(str(node["shard"])), config)
    else:
        partition, num_partitions = int(node.get("partition-id", 0)), int(node.get("num-partitions", 1))
        histories = histories_of(interactions_of(config), config, partition, num_partitions)
    root = str(node.get("state-dir", "")) or config.state_dir
    folder = Path(root) if root else default_state_root()
    seal = read_seal(str(node.get("state-key", "")))
    # A simulation's nodes share a folder, and its runs are removed by whoever made them.
    kept = 0 if simulated else Policy.of(node).keep_series
    return Place(histories, folder, not simulated, seal, kept)
