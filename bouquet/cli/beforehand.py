"""What the command line looks at before a run on this machine starts: nodes, folders, GPU, memory and disk.

Server and nodes look at their own part once more when they start. Only here is it known that they share a machine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from bouquet.arrays import digest_of
from bouquet.catalogue import read_catalogue
from bouquet.cli.screen import remark
from bouquet.config import RunConfig, Settings
from bouquet.errors import ConfigError, StateError
from bouquet.needs import refuse_disk, refuse_memory, writable
from bouquet.ragged import Ragged
from bouquet.reporting.run_directory import RunDirectory
from bouquet.reporting.trackers import refuse_missing
from client_app.node.histories import Histories, histories_of, interactions_of
from client_app.node.needs import refuse_missing_device
from client_app.node.place import Place
from client_app.side import Node, node_at
from data_partition import Interactions, assign
from strategies import BaseStrategy, strategy_of
from strategies.federation.needs import about, disk_needed, memory_needed, message_bytes
from strategies.federation.roster import combine

# A process of a node that has done nothing yet: torch, numba and Flower are imported.
_PROCESS_BYTES = 250e6

# What libraries take when they are first used: 0.2 GB, and as much again where kernels are compiled for the first time.
FIRST_USE_BYTES = 400e6


def refuse_nodes(interactions: Interactions, config: RunConfig, nodes: int) -> None:
    """Refuse nodes that the users cannot be partitioned over, or that would have none.

    Raises:
        ConfigError: says how many users there are.
    """
    users = interactions.num_users
    if nodes > users:
        raise ConfigError(
            f"There are {users:,} users for {nodes:,} nodes: --nodes must be at most {users:,}. A few nodes with many "
            "users each give the same figures sooner."
        )
    assign(interactions.histories.lengths, nodes, config.partition)
    if config.min_nodes > nodes:
        raise ConfigError(f"min-nodes is {config.min_nodes}, and there are {nodes} nodes: the run would never start.")


def refuse_runs(runs: Mapping[str, RunConfig], nodes: int) -> None:
    """Refuse runs that could not start, which is better known before the others have run, and remark on their data.

    Args:
        runs: on the same data, by what they are called in a sentence.
    Raises:
        ConfigError: names the run.
    """
    if not runs:
        return
    interactions = interactions_of(next(iter(runs.values())))
    remark(interactions)
    for name, config in runs.items():
        try:
            refuse_nodes(interactions, config, nodes)
            refuse_missing_device(config)
            refuse_missing(config.tracker)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None


def model_digest(settings: Settings) -> str:
    """Digest of the arrays that every device shares to which this run publishes its catalogue.

    Returns:
        "" where that is not known here: there is no such file, or nothing that computes the model.
    """
    config = settings.run
    if not (config.catalogue_file and Path(config.catalogue_file).is_file()):
        return ""
    catalogue = read_catalogue(Path(config.catalogue_file))
    none = Ragged.from_lengths([], [])
    nobody = Histories(
        users=np.zeros(0, np.uint64),
        train=none,
        validation=none,
        test=none,
        num_items=len(catalogue.items),
        catalogue=catalogue.fingerprint,
        partition=0,
        num_partitions=0,
        dropped_users=0,
        split_seed=config.split_seed,
        in_time=True,
    )
    try:
        return digest_of(node_at(settings, Place(nobody, Path())).shared_specs)
    except (ConfigError, ImportError):
        return ""


def refuse_folder(path: Path) -> None:
    """Refuse a folder for results that cannot be written.

    Raises:
        ConfigError: says why.
    """
    try:
        writable(path)
    except StateError as error:
        raise ConfigError(f"The results cannot be written. {error}") from None


def refuse_too_much(
    settings: Settings, interactions: Interactions, nodes: int, engine: str, directory: RunDirectory
) -> None:
    """Refuse what the nodes cannot do, and what server and nodes together need and this machine does not have.

    Raises:
        ConfigError: a GPU or a secret is missing.
        RunFailed: memory or disk is too small.
        StateError: a folder cannot be written.
    """
    config = settings.run
    place = Place(histories_of(interactions, config), Path(config.state_dir))
    node = node_at(settings, place)
    node.refuse_unable()
    strategy = strategy_of(settings, directory)
    strategy.roster = replace(combine({1: node.roster()}), nodes=nodes)
    _refuse_memory(strategy, node, nodes, engine)
    if not config.resume:  # else most of it lies there
        _refuse_disk(strategy, node, place.root, directory)


def _refuse_memory(strategy: BaseStrategy, all_users: Node, nodes: int, engine: str) -> None:
    who, advice = about(strategy)
    node = all_users.round_bytes(strategy.returning(strategy.roster.specs), strategy.update, nodes)
    if engine == "local":
        refuse_memory(memory_needed(strategy) + node + FIRST_USE_BYTES, who, advice)
        return
    # What travels lies at the SuperLink too, and as many nodes work at once as there are cores.
    at_once = min(nodes, os.cpu_count() or 1)
    needed = memory_needed(strategy) + message_bytes(strategy) + at_once * (_PROCESS_BYTES + node)
    refuse_memory(needed, who, advice, of_process=False)


def _refuse_disk(strategy: BaseStrategy, all_users: Node, states: Path, directory: RunDirectory) -> None:
    shared = strategy.traveling(strategy.roster.specs)
    state, fewer = all_users.state_bytes(shared), all_users.fewer_rows(shared)
    needed = {directory.path: disk_needed(strategy)}
    one_disk = writable(states).stat().st_dev == writable(directory.path).stat().st_dev
    place = directory.path if one_disk else states
    needed[place] = needed.get(place, 0) + state
    for folder, count in needed.items():
        advice = (
            f"take fewer users (max-users), {fewer}a smaller fraction-train, a smaller embedding-size, or another disk "
            "(out, state-dir)."
        )
        refuse_disk(count, folder, about(strategy)[0], advice)
