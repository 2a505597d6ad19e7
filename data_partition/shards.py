"""A node's own part of a data set as a folder, which holds no other node's users.

interactions.parquet   user, item: the users of this part, each oldest first; held_out, where the set has a split
catalogue.csv          item, title: all items of the data set, in the order of their numbers
shard.json             which part of what this is

A run over shards gives the numbers of one over the whole set: users are known by their raw ids, items by the catalogue.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bouquet.errors import ConfigError, DataError
from bouquet.extras import need
from bouquet.files import write_atomically
from bouquet.ragged import Ragged
from data_partition.interactions import Interactions
from data_partition.partition import assign

_FORMAT = 2
"""1: events of equal time in the order of the file."""


def _of_the_data(settings: Mapping[str, object]) -> list[str]:
    """What decides which users and items there are; a run must agree with its shards about these."""
    names = ["dataset", "min-interactions", "max-users", "repeats"]
    return [*names, "split-seed"] if settings["max-users"] else names


@dataclass(frozen=True, eq=False)
class Shard:
    """One part.

    Attributes:
        interactions: its users, with the items of the whole data set.
        partition, num_partitions: part number `partition`, from 0, of so many.
        settings: what it was made with, as far as users and items depend on it.
    """

    interactions: Interactions
    partition: int
    num_partitions: int
    settings: Mapping[str, str | int]

    def check(self, settings: Mapping[str, object], folder: Path) -> None:
        """Refuse a run over other data.

        Raises:
            ConfigError: a value differs.
        """
        for key in self.settings:
            if settings[key] != self.settings[key]:
                raise ConfigError(
                    f"This node's shard {folder} was made with {key} = {self.settings[key]!r}, and the run has "
                    f"{settings[key]!r}. Run with the shard's value, or make the shards anew."
                )


def write_shards(
    interactions: Interactions, num_partitions: int, scheme: str, settings: Mapping[str, object], folder: Path
) -> list[Path]:
    """Divide a data set; `folder` / 1 to `folder` / N hold one part each.

    Args:
        scheme: how users are partitioned over the parts, a name in `partition.SCHEMES`.
        settings: those that `interactions` were loaded with.
    Raises:
        ConfigError: the users cannot be divided in this way.
    """
    _refuse_without_packages(f"Writing shards into {folder}")
    import pandas as pd

    homes = assign(interactions.histories.lengths, num_partitions, scheme)
    written = []
    for partition in range(num_partitions):
        here = np.flatnonzero(homes == partition)
        histories = interactions.histories.take(here)
        part = folder / str(partition + 1)
        part.mkdir(parents=True, exist_ok=True)
        table = pd.DataFrame(
            {
                "user": interactions.user_ids[here][histories.row_of_value].astype(str),
                "item": interactions.item_ids[histories.values].astype(str),
            }
        )
        if interactions.held_out is not None:
            table["held_out"] = interactions.held_out[homes[interactions.histories.row_of_value] == partition]
        catalogue = pd.DataFrame({"item": interactions.item_ids.astype(str), "title": interactions.titles})
        about = {
            "format": _FORMAT,
            "partition": partition,
            "num_partitions": num_partitions,
            "has_time": interactions.has_time,
            "dropped_users": interactions.dropped_users,
            "settings": {key: settings[key] for key in _of_the_data(settings)},
        }
        write_atomically(part / "interactions.parquet", table.to_parquet(index=False))
        write_atomically(part / "catalogue.csv", catalogue.to_csv(index=False).encode())
        # Last, because a folder without it is no shard.
        write_atomically(part / "shard.json", json.dumps(about, indent=2) + "\n")
        written.append(part)
    return written


def read_shard(folder: Path) -> Shard:
    """The shard in a folder.

    Raises:
        DataError: there is none, or it is damaged.
        ConfigError: what it is read with is not installed.
    """
    _refuse_without_packages(f"Reading the shard {folder}")
    import pandas as pd

    try:
        about = json.loads((folder / "shard.json").read_text())
        if about["format"] != _FORMAT:
            raise DataError(f"{folder} is a shard of another version of this program; make it anew.")
        catalogue = pd.read_csv(folder / "catalogue.csv", dtype=str, keep_default_na=False)
        table = pd.read_parquet(folder / "interactions.parquet")
        items = catalogue["item"].to_numpy(np.str_)
        number = pd.Series(np.arange(len(items)), index=items)
        values = number.loc[table["item"].to_numpy(np.str_)].to_numpy(np.int32)
        # The rows of a user stand together, in the order of users.
        users = table["user"].to_numpy(np.str_)
        begins = np.flatnonzero(np.r_[True, users[1:] != users[:-1]]) if len(users) else np.zeros(0, np.int64)
        lengths = np.diff(np.r_[begins, len(users)])
        interactions = Interactions(
            name=str(about["settings"]["dataset"]),
            user_ids=users[begins],
            item_ids=items,
            histories=Ragged.from_lengths(lengths, values),
            has_time=about["has_time"],
            titles=tuple(catalogue["title"]),
            rows=len(table),
            dropped_users=about["dropped_users"],
            repeats=about["settings"]["repeats"],
            held_out=table["held_out"].to_numpy(np.bool_) if "held_out" in table else None,
        )
        return Shard(interactions, about["partition"], about["num_partitions"], about["settings"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{folder} is no shard of a data set, or it is damaged ({error}). Make shards with: bouquet data shard"
        ) from None


def _refuse_without_packages(what: str) -> None:
    for module in ("pandas", "pyarrow"):
        need(module, what)
