"""A device of one person: its own growing history file, and what it may be evaluated on.

A held-out item must never have been trained on. A history grows while rounds go on, so "the last two" changes; and a
row can be added with an old time. Therefore every item that is trained on is written down before, and only items that
never were can be held out: the newest of them for test, the one before for validation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bouquet.catalogue import Catalogue
from bouquet.config import RunConfig, Scalar
from bouquet.device import Device
from bouquet.errors import ConfigError
from bouquet.history import read_history
from bouquet.ragged import Ragged
from bouquet.randomness import user_keys
from client_app.host import Histories


def split_history(items: Sequence[str], trained: set[str]) -> tuple[list[str], list[str], list[str]]:
    """Training, validation and test items of one history; see the module for the rule."""
    fresh = [item for item in items if item not in trained]
    if len(items) < 3 or not fresh:
        return list(items), [], []
    held_out = fresh[-2:]
    return [item for item in items if item not in held_out], held_out[:-1], held_out[-1:]


def histories_of_device(device: Device, config: RunConfig, history: Path, catalogue: Catalogue) -> Histories:
    """The one user of this device, with the items that the catalogue knows.

    Raises:
        ConfigError: the run splits histories in a way that a growing one cannot be.
        DataError: the history file is missing or broken.
    """
    if config.split != "leave-one-out" or config.hold_out not in ("auto", "last"):
        raise ConfigError("A device with a growing history can only hold out the last: split = 'leave-one-out'.")
    known = [item for item in read_history(history, config.item_column, config.time_column) if item in catalogue.rows]
    parts = split_history(known, device.trained())
    here = bool(parts[0])
    rows = [
        Ragged.from_lengths(
            np.array([len(part)] * here, np.int64), np.array([catalogue.rows[i] for i in part], np.int64)
        )
        for part in parts
    ]
    return Histories(
        users=user_keys([device.settings()["user"]][: int(here)]),
        train=rows[0],
        validation=rows[1],
        test=rows[2],
        num_items=len(catalogue.items),
        catalogue=catalogue.fingerprint,
        partition=0,
        num_partitions=0,
        dropped_users=0,
        split_seed=config.split_seed,
    )


def is_device(node_config: Mapping[str, Scalar]) -> bool:
    """Whether a node is one person's device."""
    return "history" in node_config
