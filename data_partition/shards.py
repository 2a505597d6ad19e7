"""A node's own part of a data set as a folder, which holds no other node's users.

interactions.csv   user, item: the users of this part, each oldest first; held_out, where the set has a split: 1 for
                   validation, 2 for test
catalogue.csv      item, title: all items of the data set, in the order of their numbers
shard.json         which part of what this is, and a digest of each of the two

A node reads it with what every device has, so without pandas. A run over shards gives the numbers of one over the whole
set: users are known by their raw ids, items by the catalogue.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bouquet.errors import ConfigError, DataError
from bouquet.files import digest_of, write_atomically
from bouquet.ragged import Ragged
from data_partition.interactions import Interactions
from data_partition.partition import assign

_FORMAT = 4
"""1: events of equal time in the order of the file; 2: in Parquet; 3: held_out says no validation."""
_INTERACTIONS, _CATALOGUE = "interactions.csv", "catalogue.csv"


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
    homes = assign(interactions.histories.lengths, num_partitions, scheme)
    written = []
    for partition in range(num_partitions):
        here = np.flatnonzero(homes == partition)
        histories = interactions.histories.take(here)
        part = folder / str(partition + 1)
        part.mkdir(parents=True, exist_ok=True)
        columns: dict[str, Sequence[object]] = {
            "user": interactions.user_ids[here][histories.row_of_value].tolist(),
            "item": interactions.item_ids[histories.values].tolist(),
        }
        if interactions.held_out is not None:
            held_out = interactions.held_out[homes[interactions.histories.row_of_value] == partition]
            columns["held_out"] = held_out.tolist()
        files = {
            _INTERACTIONS: _csv(columns),
            _CATALOGUE: _csv({"item": interactions.item_ids.tolist(), "title": interactions.titles}),
        }
        about = {
            "format": _FORMAT,
            "partition": partition,
            "num_partitions": num_partitions,
            "has_time": interactions.has_time,
            "dropped_users": interactions.dropped_users,
            "settings": {key: settings[key] for key in _of_the_data(settings)},
            "digests": {name: digest_of(content) for name, content in files.items()},
        }
        for name, content in files.items():
            write_atomically(part / name, content)
        # Last, because a folder without it is no shard.
        write_atomically(part / "shard.json", json.dumps(about, indent=2) + "\n")
        written.append(part)
    return written


def read_shard(folder: Path) -> Shard:
    """The shard in a folder.

    Raises:
        DataError: there is none, or it is damaged.
    """
    try:
        about = json.loads((folder / "shard.json").read_text())
        if about["format"] != _FORMAT:
            raise DataError(f"{folder} is a shard of another version of this program; make it anew.")
        table, catalogue = (_read(folder / name, about["digests"][name]) for name in (_INTERACTIONS, _CATALOGUE))
        items = np.array(catalogue["item"], dtype=np.str_)
        number = {item: place for place, item in enumerate(catalogue["item"])}
        # The rows of a user stand together, in the order of users.
        users = np.array(table["user"], dtype=np.str_)
        begins = np.flatnonzero(np.r_[True, users[1:] != users[:-1]]) if len(users) else np.zeros(0, np.int64)
        lengths = np.diff(np.r_[begins, len(users)])
        interactions = Interactions(
            name=str(about["settings"]["dataset"]),
            user_ids=users[begins],
            item_ids=items,
            histories=Ragged.from_lengths(lengths, np.array([number[item] for item in table["item"]], np.int32)),
            has_time=about["has_time"],
            titles=tuple(catalogue["title"]),
            rows=len(users),
            dropped_users=about["dropped_users"],
            repeats=about["settings"]["repeats"],
            held_out=np.array(table["held_out"], np.int8) if "held_out" in table else None,
        )
        return Shard(interactions, about["partition"], about["num_partitions"], about["settings"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{folder} is no shard of a data set, or it is damaged ({error}). Make shards with: bouquet data shard"
        ) from None


def _csv(columns: Mapping[str, Iterable[object]]) -> bytes:
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(columns)
    lines.writerows(zip(*columns.values(), strict=True))
    return text.getvalue().encode()


def _read(path: Path, digest: str) -> dict[str, list[str]]:
    """The columns of a file of `_csv`.

    Raises:
        ValueError: it is not the file that was written.
    """
    content = path.read_bytes()
    if digest_of(content) != digest:
        raise ValueError(f"the digest of {path.name} does not fit")
    names, *rows = csv.reader(io.StringIO(content.decode(), newline=""))
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}
