"""Who lives there: what a node says of itself before the first round, and what it is asked with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from numpy.typing import NDArray

from bouquet.arrays import Specs, dump_specs, load_specs
from bouquet.catalogue import Catalogue
from bouquet.cells import Cells, CellSpec
from bouquet.errors import WireError
from bouquet.randomness import Words
from bouquet.records import (
    pack,
    read_array,
    read_cells,
    read_config,
    read_record,
    read_scalar,
    read_users,
    read_words,
    words_to_array,
)
from bouquet.wire.declared import LONGEST_FINGERPRINT, MOST_COUNT, MOST_ITEMS, MOST_PARTITIONS, PROTOCOL, Update
from bouquet.wire.parts import cell_arrays, read_update, read_wanted

# Records of what somebody had given, by round.
_WITHDRAWN = "withdrawn/"
# Digits of the number of a round.
_LONGEST_ROUND = 9
# Where repeats are kept, a history may have so many times as many entries as the catalogue has items.
_MOST_REPEATS = 1000


@dataclass(frozen=True)
class RosterRequest:
    """Which users are you hosting?

    Attributes:
        series: the run series.
        edition: of the catalogue that the server publishes; "" where nodes know theirs.
        catalogue: that catalogue, sent to a node that has another edition.
        update: the kind of update that the run will ask for, so that a node can refuse before the first round.
        gone: [g] keys of users that this node has had forgotten, and of whom the server has nothing any more.
        tells: what users shall tell beside their updates or metrics in any round, names in `REPORTS`; likewise.
    """

    series: str
    edition: str = ""
    catalogue: Catalogue | None = None
    update: Update = "sum"
    gone: Words = field(default_factory=lambda: np.zeros(0, np.uint64), compare=False)
    tells: tuple[str, ...] = ()

    def encode(self) -> RecordDict:
        config: dict[str, Any] = {"protocol": PROTOCOL, "series": self.series, "edition": self.edition}
        config |= {"update": self.update, "reports": ",".join(self.tells)}
        content = RecordDict({"config": ConfigRecord(config)})
        if len(self.gone):
            content["users"] = pack({"gone": self.gone})
        if self.catalogue:
            content["catalogue"] = pack(
                {"items": words_to_array(self.catalogue.items), "titles": words_to_array(self.catalogue.titles)}
            )
        return content

    @classmethod
    def decode(cls, content: RecordDict) -> RosterRequest:
        config = read_config(content)
        if config.get("protocol") != PROTOCOL:
            raise WireError(f"the server speaks protocol {config.get('protocol')!r}, this node speaks {PROTOCOL}")
        catalogue = None
        if "catalogue" in content:
            items, titles = (read_words(content, "catalogue", name) for name in ("items", "titles"))
            catalogue = Catalogue(items, titles)
            if len(items) != len(titles) or len(set(items)) != len(items) or not items:
                raise WireError("the catalogue is not one title for each of different items")
        edition = read_scalar(config, "edition", str)
        if catalogue and catalogue.edition != edition:
            raise WireError("the catalogue is not of the edition that it claims")
        gone = read_users(content, "gone") if "users" in content else np.zeros(0, np.uint64)
        series = read_scalar(config, "series", str)
        return cls(series, edition, catalogue, read_update(config), gone, read_wanted(config))


@dataclass(frozen=True)
class RosterReply:
    """The users of a node and the catalogue that it knows.

    Attributes:
        users: [k] user keys.
        sizes: [k] training interactions n_u.
        interactions, dropped_users: counts of this node's data.
        num_items, catalogue: size and fingerprint of the item list; equal on all nodes of a run. 0 and "" on a node
            that first needs the catalogue that the server publishes.
        num_partitions: how many nodes the data was partitioned over; 0 where a node has data of its own.
        specs: the shared arrays of the backbone.
        forgotten: [f] keys of users that were here and that the server shall forget.
        withdrawn: what the one user of a device that asked to be forgotten had given, by round and matrix, where users
            give cells: the server subtracts that of the round that it has.
    """

    users: Words
    sizes: NDArray[np.int64]
    interactions: int
    dropped_users: int
    num_items: int
    catalogue: str
    num_partitions: int
    specs: Specs
    forgotten: Words = field(default_factory=lambda: np.zeros(0, np.uint64))
    withdrawn: Mapping[int, Mapping[str, Cells]] = field(default_factory=dict)

    def encode(self) -> RecordDict:
        config: dict[str, Any] = {
            "protocol": PROTOCOL,
            "interactions": self.interactions,
            "dropped_users": self.dropped_users,
            "num_items": self.num_items,
            "catalogue": self.catalogue,
            "num_partitions": self.num_partitions,
            "specs": dump_specs(self.specs),
        }
        users = {"user": self.users, "size": self.sizes}
        if len(self.forgotten):
            users |= {"forgotten": self.forgotten}
        content = RecordDict({"users": pack(users), "config": ConfigRecord(config)})
        for version, cells in self.withdrawn.items():
            content[f"{_WITHDRAWN}{version}"] = pack(cell_arrays(cells))
        return content

    @classmethod
    def decode(
        cls,
        content: RecordDict,
        repeats: bool = False,
        cells: Callable[[int], Mapping[str, CellSpec]] = lambda num_items: {},
    ) -> RosterReply:
        """What a node says of itself.

        Args:
            repeats: a history may have an item several times.
            cells: the matrices that users give, for a catalogue of so many items.
        Raises:
            WireError: it is malformed, or claims what no node can have.
        """
        config, users = read_config(content), read_users(content)
        if read_scalar(config, "protocol", int) != PROTOCOL:
            raise WireError(f"the node speaks protocol {config['protocol']!r}, this server speaks {PROTOCOL}")
        sizes = read_array(content, "users", "size", np.int64, users.shape)
        num_items = _read_count(config, "num_items", MOST_ITEMS)
        most = num_items * (_MOST_REPEATS if repeats else 1)
        if (sizes < 0).any() or (sizes > most).any():
            raise WireError(f"a user has a number of interactions outside 0 to {most}")
        catalogue = read_scalar(config, "catalogue", str)
        if len(catalogue) > LONGEST_FINGERPRINT:
            raise WireError("the fingerprint of the catalogue is too long")
        specs = load_specs(read_scalar(config, "specs", str))
        for name, spec in specs.items():
            if spec.by_item and spec.shape[0] != num_items:
                raise WireError(f"array '{name}' has {spec.shape[0]} rows for {num_items} items")
        return cls(
            users=users,
            sizes=sizes,
            interactions=_read_count(config, "interactions", MOST_COUNT),
            dropped_users=_read_count(config, "dropped_users", MOST_COUNT),
            num_items=num_items,
            catalogue=catalogue,
            num_partitions=_read_count(config, "num_partitions", MOST_PARTITIONS),
            specs=specs,
            forgotten=read_users(content, "forgotten") if "forgotten" in read_record(content, "users") else users[:0],
            withdrawn=_read_withdrawn(content, cells(num_items)),
        )


def _read_withdrawn(content: RecordDict, specs: Mapping[str, CellSpec]) -> dict[int, dict[str, Cells]]:
    found = {}
    for record in content.array_records:
        version = record.removeprefix(_WITHDRAWN)
        if version != record and version.isdecimal() and len(version) <= _LONGEST_ROUND:
            found[int(version)] = {name: read_cells(content, name, spec, record) for name, spec in specs.items()}
    return found


def _read_count(config: ConfigRecord, name: str, most: int) -> int:
    count = int(read_scalar(config, name, int))
    if not 0 <= count <= most:
        raise WireError(f"'{name}' should be a number from 0 to {most}, not {count}")
    return count
