"""What a method needs on the server: shared arrays, what it keeps of users, messages, replies, and one aggregation.

Of the moments of a round the largest counts:
    aggregation   what is kept + what was sent + what came back + what the method works with
    evaluation    what is kept + what the users of its largest part are sent
    checkpoint    what is kept + what was sent + the file, which is put together in memory

On the disk there are its checkpoints, and what it keeps of users in files.
"""

from __future__ import annotations

import math

import numpy as np

from bouquet.needs import bytes_of, expected_rows, refuse_disk, refuse_memory, update_bytes
from strategies.federation.hooks import Hooks
from strategies.federation.robust import robust_bytes

# The model as a record, as arrays, the same of the next round, and a record of the best one.
_COPIES = 5

# As they came, and decoded.
_REPLY_COPIES = 2

# safetensors takes every array as bytes, puts the file together, and hands it to Python.
_CHECKPOINT_COPIES = 3


def memory_needed(strategy: Hooks) -> float:
    """Bytes that a run takes on the server, its roster known and nothing prepared."""
    roster, config = strategy.roster, strategy.config
    chosen, evaluated = strategy.users_per_round(), strategy.evaluation_bytes()
    shared, own, kept = bytes_of(strategy.traveling(roster.specs)), strategy.personal_bytes(), strategy.kept_bytes()
    sent = roster.nodes * shared
    base = kept + strategy.held_bytes() + _COPIES * shared + sent
    replies = _REPLY_COPIES * reply_bytes(strategy)
    working = strategy.working_bytes() + robust_bytes(config, chosen, reply_bytes(strategy))
    moments = [base + chosen * own + replies + working, base + evaluated]
    if config.checkpoint_every:
        moments.append(base + evaluated + _CHECKPOINT_COPIES * (kept + shared))
    return max(moments)


def message_bytes(strategy: Hooks) -> float:
    """Bytes that travel in a round, there and back."""
    shared = bytes_of(strategy.traveling(strategy.roster.specs))
    sent = strategy.roster.nodes * shared + strategy.users_per_round() * strategy.personal_bytes()
    return sent + reply_bytes(strategy)


def disk_needed(strategy: Hooks) -> float:
    """Bytes of a run's checkpoints, those that are kept and the one that is written, and of files beside them."""
    config, stored = strategy.config, strategy.stored_bytes()
    if not config.checkpoint_every:
        return stored
    size = strategy.kept_bytes() + bytes_of(strategy.traveling(strategy.roster.specs))
    files = min(config.checkpoints_kept + 1, math.ceil(config.num_server_rounds / config.checkpoint_every))
    return stored + size * files


def reply_bytes(strategy: Hooks) -> float:
    """Bytes that come back in a round: sums by node, or the rows of every user."""
    roster, config = strategy.roster, strategy.config
    specs, chosen = strategy.returning(roster.specs), strategy.users_per_round()
    touched = np.minimum(roster.sizes, roster.num_items).astype(float)
    if strategy.draws_negatives:
        touched = expected_rows(roster.sizes, roster.num_items, config.negatives_per_positive, config)
    if config.update_noise > 0 or strategy.dense_updates:
        touched = np.full(len(touched), float(roster.num_items))
    if strategy.update == "rows":
        return update_bytes(specs, touched) * chosen / len(roster.users)
    nodes = min(roster.nodes, chosen)
    missed = (1 - touched.mean() / roster.num_items) ** (chosen / nodes)  # rows that no user of a node touches
    # One user's change is float32, a sum over several float64.
    return nodes * update_bytes(specs, roster.num_items * np.array([1 - missed])) * (2 if chosen > nodes else 1)


def refuse_what_does_not_fit(strategy: Hooks) -> None:
    """Called when the roster is known, before anything is made.

    Raises:
        RunFailed: the server has too little memory, or too little room for checkpoints.
        StateError: checkpoints cannot be written.
    """
    refuse_memory(memory_needed(strategy), *about(strategy))
    advice = "keep fewer checkpoints (checkpoints-kept), make none (checkpoint-every = 0), or take another disk (out)."
    who = "The checkpoints of"
    if strategy.stored_bytes():
        who, advice = "The checkpoints and the users' tables of", f"take a smaller fraction-train, {advice}"
    refuse_disk(disk_needed(strategy), strategy.directory.checkpoints, f"{who} {about(strategy)[0]}", advice)


def about(strategy: Hooks) -> tuple[str, str]:
    """Who needs so much, and what to change."""
    roster = strategy.roster
    tables = [spec.shape for spec in roster.specs.values() if spec.by_item]
    width = f" x {max(shape[1] for shape in tables if len(shape) > 1)}" if any(len(s) > 1 for s in tables) else ""
    users = f"{len(roster.users):,} users with tables of {roster.num_items:,}{width}"
    who = f"{strategy.config.strategy} on {roster.nodes:,} nodes for {users}"
    instead = "another strategy" if strategy.personal_bytes() else "fewer nodes"
    fewer = "a smaller fraction-train, " if strategy.stored_bytes() else ""
    return who, f"take fewer users (max-users), {fewer}a smaller embedding-size, or {instead}."
