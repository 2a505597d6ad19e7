"""What a node needs: room for private state, memory for a round; and whether it can do what it is asked at all."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bouquet.arrays import Specs
from bouquet.config import RunConfig
from bouquet.errors import ConfigError
from bouquet.extras import need
from bouquet.needs import bytes_of, expected_rows, refuse_disk, trained_at_least, update_bytes
from bouquet.row_files import SLOTS
from client_app.node.given import BLOCK_BYTES
from client_app.node.host import Host
from client_app.node.scoring import takes_tensors
from client_app.state.kept_rows import MOST_ROWS
from client_app.state.pieces import PIECE_BYTES

# What a file system gives out at once: a version of own rows begins and ends within such a block.
_BLOCK = 4096

# The block of users in training, its gradients, and what is made of them.
_BLOCK_COPIES = 3


def refuse_unable(host: Host) -> None:
    """Called when a node is asked who lives there: what it cannot do it says before the first round.

    Raises:
        ConfigError: the run wants torch, a GPU or a secret, and this node has none.
    """
    if uses_torch(host):
        need("torch", f"What is trained here ({_described(host)})")
    refuse_missing_device(host.config)
    _ = host.draws


def uses_torch(host: Host) -> bool:
    """Whether this node trains or scores with torch; matrix factorisation alone is computed without."""
    if host.config.device != "cpu" or host.config.backend in ("loop", "torch"):
        return True
    return any(takes_tensors(one.backbone, one.methods) for one in host.by_group or (host,))


def _described(host: Host) -> str:
    config = host.config
    words = [config.strategy, config.personalization * (config.personalization != "none"), config.backbone]
    words += [f"backend {config.backend}"] * (config.backend != "auto")
    return ", ".join(filter(None, [*words, f"on {config.device}"]))


def refuse_missing_device(config: RunConfig) -> None:
    """Refuse a GPU that is not there.

    Raises:
        ConfigError: says how many there are.
    """
    if config.device == "cpu":
        return
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (torch.device(config.device).index or 0) >= count:
        there = f"{count} GPU{'s' * (count != 1)}" if count else "no GPU that torch can use"
        raise ConfigError(f"device is '{config.device}', and where training would happen there is {there}: take 'cpu'.")


def state_bytes(host: Host, shared: Mapping[str, object]) -> float:
    """Bytes of the private state of the hosted users on the disk, when only `shared` arrays travel to all.

    Three versions of each user, or two where no checkpoint is gone back to, and none of a user who has not trained; of
    own versions of common tables only the rows that training touches, and the tables that they are from; of tables that
    are kept by rows the rows that each training has touched, in whatever versions. With decoys, as much again for what
    the server sees.
    """
    if host.shown is not host:
        return _state_bytes(host.shown, shared) + _state_bytes(host, shared)
    return _state_bytes(host, shared)


def _state_bytes(host: Host, shared: Mapping[str, object]) -> float:
    config, users = host.config, len(host.histories.users)
    rounds = config.num_server_rounds
    checkpoints = 0 < config.checkpoint_every < rounds
    versions = trained_at_least(SLOTS if checkpoints else SLOTS - 1, rounds, config.fraction_train)
    specs, by_rows = private_specs(host, shared), host.by_rows(shared)
    total = float(users * bytes_of({name: spec for name, spec in specs.items() if name not in by_rows}))
    if host.tuned:
        total += update_bytes(host.tuned, _touched(host)) + users * _BLOCK
        total += bytes_of(host.tuned)
    pieces = 0.0
    if by_rows and versions:
        times = rounds * config.fraction_train
        most = MOST_ROWS * versions[0] * _touched(host, times / versions[0])
        pieces = update_bytes({name: specs[name] for name in by_rows}, np.minimum(times * _touched(host), most))
        pieces += len(by_rows) * users * times * PIECE_BYTES
    return sum(versions) * total + pieces


def fewer_rows(host: Host, shared: Mapping[str, object]) -> str:
    """What would have training touch some rows of users' own tables and not all; as `Node.fewer_rows`."""
    found = [method.fewer_rows for method in host.methods if method.fewer_rows]
    tables = host.tuned or any(spec.by_item for spec in private_specs(host, shared).values())
    if tables and host.config.weight_decay > 0:
        found.append("weight-decay = 0")
    return "".join(f"{part}, " for part in found)


def round_bytes(host: Host, returning: Specs, rows: bool, nodes: int) -> float:
    """Bytes that training takes, beside the messages, in a process that works for one node after another.

    Args:
        host: of the users of all nodes.
        returning: the arrays whose changes are reported.
        rows: whether every user's change is kept by itself until all of a node have trained.
        nodes: that the users are partitioned over.
    """
    own = bytes_of(private_specs(host, returning))
    block = min(max(BLOCK_BYTES, own), own * len(host.histories.users))
    update = 2 * update_bytes(returning, _touched(host.shown)) / nodes if rows else 4 * bytes_of(returning)
    return _BLOCK_COPIES * block + update


def refuse_full_disk(host: Host, series: str, shared: Mapping[str, object]) -> None:
    """Refuse to train users whose state does not fit on this node's disk, before any of it is written.

    Nodes of a simulation share one disk, and each asks for all.

    Args:
        shared: what the server sends to all users alike, by name.

    Raises:
        RunFailed: there is too little room.
        StateError: the folder cannot be written.
    """
    folder = host.folders.of_series(series)
    if folder.exists():
        return
    sharing = 1 if host.place.durable else host.histories.num_partitions
    users = len(host.histories.users)
    refuse_disk(
        sharing * state_bytes(host, shared),
        folder,
        f"The private state of {users * sharing:,} users",
        f"take another disk (state-dir), fewer users on this node, {fewer_rows(host, shared)}a smaller fraction-train "
        "or embedding-size.",
    )


def private_specs(host: Host, shared: Mapping[str, object]) -> Specs:
    """What is kept of each user; where users have models of different sizes, at the largest."""
    return host.private_specs(host.model_specs if host.groups and shared else shared)


def _touched(host: Host, rounds: float = 1) -> np.ndarray:
    """[k] rows that each user has touched after so many trainings."""
    histories, config = host.histories, host.config
    if any(method.whole_table for method in host.methods):
        return np.full(len(histories.users), float(histories.num_items))
    negatives = rounds * config.negatives_per_positive
    return expected_rows(histories.train.lengths, histories.num_items, negatives, config)
