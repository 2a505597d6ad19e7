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
from bouquet.history import LeftOut, read_events
from bouquet.ragged import Ragged
from bouquet.randomness import item_keys, ties, user_keys
from bouquet.reporting.events import event
from client_app.node.histories import Histories


def oldest_first(events: Sequence[tuple[float, str]], user: str) -> list[str]:
    """The distinct items of (time, item) events; events of equal time are ordered as in a data set of many people."""
    tie = ties(user_keys([user]), item_keys(item for _, item in events)).tolist()
    order = sorted(range(len(events)), key=lambda place: (events[place][0], tie[place]))
    return list(dict.fromkeys(events[place][1] for place in order))


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
        DataError: the history file is missing, or has no line that can be read.
    """
    if config.split != "leave-one-out" or config.hold_out not in ("auto", "last"):
        raise ConfigError("A device with a growing history can only hold out the last: split = 'leave-one-out'.")
    if config.training_share != 1:
        raise ConfigError(
            f"A device with a growing history learns from all of it: training-share = 1, not {config.training_share}."
        )
    if config.repeats == "keep":
        raise ConfigError("A device with a growing history counts an item once: repeats = 'drop', not 'keep'.")
    user = device.settings()["user"]
    events = read_events(history, config.item_column, config.time_column, _say)
    known = [item for item in oldest_first(events, user) if item in catalogue.rows]
    parts = split_history(known, device.trained())
    here = bool(parts[0])
    rows = [
        Ragged.from_lengths(
            np.array([len(part)] * here, np.int64), np.array([catalogue.rows[i] for i in part], np.int64)
        )
        for part in parts
    ]
    return Histories(
        users=user_keys([user][: int(here)]),
        train=rows[0],
        validation=rows[1],
        test=rows[2],
        num_items=len(catalogue.items),
        catalogue=catalogue.fingerprint,
        partition=0,
        num_partitions=0,
        dropped_users=0,
        split_seed=config.split_seed,
        in_time=True,  # without times, a growing file goes on at its end
    )


def _say(left_out: LeftOut) -> None:
    event("history lines left out", file=left_out.path, lines=left_out.count, first=left_out.line, why=left_out.reason)


def is_device(node_config: Mapping[str, Scalar]) -> bool:
    """Whether a node is one person's device."""
    return "history" in node_config
