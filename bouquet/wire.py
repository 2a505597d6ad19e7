"""Every message between server and node: names, types and shapes, encoded and decoded in one place.

A node hosts one user or many. One message per node and round carries the shared arrays once and the users that
take part. What comes back about the model is a *weighted sum* over the node's users (when the strategy knows the
weights before training), *packed rows per user* (when it decides afterwards), or *cells*: sums over the node's users of
sparse matrices, which no training comes before. Rows that training did not touch do not travel, nor do empty cells.

Server and node both keep something of a user: the server what it made of the user's updates, the node the user's
private arrays. A reply can be lost, late or refused, and then the node is ahead. So every request names the version
that it goes on from, by user: the round of the last update that the server has. The node takes up its private arrays
of exactly that round, and what it learned in a round that the server does not have has never happened.

A user whose training diverged is left out of its node's reply, with the reason; the node's other users stay.

Whatever is not named here does not leave a node. Decoding checks names, types, shapes and finiteness, and a
message that fails is refused with `WireError`; it never reaches a strategy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, cast, get_args

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from numpy.typing import NDArray

from bouquet.arrays import Arrays, Specs, dump_specs, load_specs
from bouquet.catalogue import Catalogue
from bouquet.cells import Cells, CellSpec
from bouquet.errors import WireError
from bouquet.evaluation.metrics import CANDIDATE_SETS, METRICS, PARTS
from bouquet.packed import PackedArray, PackedRows, by_entry
from bouquet.randomness import Words
from bouquet.records import (
    LONGEST_REASON,
    Report,
    lend,
    pack,
    read_array,
    read_cells,
    read_config,
    read_left_out,
    read_packed_array,
    read_packed_rows,
    read_personal,
    read_raw,
    read_record,
    read_reports,
    read_scalar,
    read_shared,
    read_users,
    read_words,
    words_to_array,
)

PROTOCOL = 2

# How the reason begins of a user whose training left numbers that are not finite.
DIVERGED = "training diverged"

ROSTER, TRAIN, EVALUATE = "query.roster", "train", "evaluate"

# Arrays about users that a node may send beside its update of the shared arrays; a test holds every reply against it.
ROSTER_ARRAYS = frozenset({"user", "size", "forgotten"})
TRAIN_ARRAYS = frozenset({"user", "loss", "upload_bytes", "size", "left_out", "reasons"})
EVALUATE_ARRAYS = frozenset({"user", "metrics", "left_out", "reasons"})

# What single users may tell the server beside their update, where a strategy asks for it.
REPORTS = frozenset({"features", "performance", "representation", "seconds", "exposure", "training", "within"})
WITHIN = "within"
"""Whether the norm of a user's change was within the limit, in private runs whose limit follows a quantile."""

# Item numbers are 32-bit; counts have to be exact in float64; a fingerprint has 16 digits.
MOST_ITEMS, MOST_COUNT, LONGEST_FINGERPRINT = 2**31 - 1, 2**53, 64
MOST_PARTITIONS = 2**20
# Digits of the number of a round.
_LONGEST_ROUND = 9
# Where repeats are kept, a history may have so many times as many entries as the catalogue has items.
_MOST_REPEATS = 1000

Update = Literal["sum", "rows", "cells"]
Weighting = Literal["uniform", "size"]
Reports = Mapping[str, Report]


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
        return cls(series, edition, catalogue, _read_update(config), gone, _read_wanted(config))


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
            content[f"{_WITHDRAWN}{version}"] = pack(_parts(cells))
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


@dataclass(frozen=True)
class TrainRequest:
    """Train these users from these arrays.

    Attributes:
        series: the run and everything that resumes it; names the private state on the node.
        round: the server round, starting from 1.
        users: [k] user keys.
        versions: [k] the round of each user's last update that the server has; 0: none. Training goes on from there.
        kept: [k] the same in the server's last checkpoint, which it can come back to: a node keeps that version too.
        shared: the shared arrays.
        personal: per-user arrays [k, …] of strategies that treat every user differently.
        update: what the reply carries.
        weights: [k] weights of the users in a "sum" reply.
        reports: what each user shall tell beside its update, names in `REPORTS`.
        clip: L2 norm of what a user may change, in private runs whose limit follows a quantile; 0 in others.
        addressed: [j] places among the users of those that `personal` is for, ascending: it is [j, …] then. None: all.
        telling: [t] places of those who shall tell what `reports` names, ascending; zeros stand for what the others
            would. None: all.
    """

    series: str
    round: int
    users: Words
    versions: NDArray[np.int64]
    kept: NDArray[np.int64]
    shared: Arrays
    personal: Arrays = field(default_factory=dict)
    update: Update = "sum"
    weights: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    reports: tuple[str, ...] = ()
    clip: float = 0.0
    addressed: NDArray[np.int64] | None = None
    telling: NDArray[np.int64] | None = None

    def encode(self) -> RecordDict:
        config: dict[str, Any] = {
            "series": self.series,
            "round": self.round,
            "update": self.update,
            "reports": ",".join(self.reports),
        }
        if self.clip:
            config["clip"] = self.clip
        users = {"user": self.users, "version": self.versions, "kept": self.kept, "weight": self.weights}
        users |= _some("addressed", self.addressed) | _some("telling", self.telling)
        return RecordDict(
            {
                "shared": pack(self.shared),
                "personal": lend(self.personal),
                "users": pack(users),
                "config": ConfigRecord(config),
            }
        )

    @classmethod
    def decode(cls, content: RecordDict, specs: Specs) -> TrainRequest:
        config, users = read_config(content), read_users(content)
        addressed = _read_some(content, "addressed", users)
        weights = read_array(content, "users", "weight", np.float64, users.shape)
        if not (np.isfinite(weights) & (weights >= 0)).all():
            raise WireError("a user has a weight that is not finite or below 0")
        return cls(
            series=read_scalar(config, "series", str),
            round=read_scalar(config, "round", int),
            users=users,
            versions=_read_versions(content, "version", users),
            kept=_read_versions(content, "kept", users),
            shared=read_shared(content, specs),
            personal=read_personal(content, len(users if addressed is None else addressed)),
            addressed=addressed,
            update=_read_update(config),
            weights=weights,
            reports=_read_wanted(config),
            clip=_read_clip(config),
            telling=_read_some(content, "telling", users),
        )


@dataclass(frozen=True)
class TrainReply:
    """What a node gives back after training.

    Attributes:
        users: [k] the users that trained.
        loss: [k] float32, mean training loss of the last local epoch; NaN for a user without samples.
        upload_bytes: [k] int64, what each user's update takes when it travels alone.
        sums: the changes summed with the request's weights, by array ("sum" replies). Of a node that was asked for a
            single user they are that user's, unweighted, so that its float32 change travels unrounded.
        rows: the changes of each user, by array ("rows" replies).
        cells: what is to be added to the server's sums, by matrix ("cells" replies): of a user with version 0 all that
            it gives, else what has changed since that version.
        sizes: [k] int64, training interactions that each user's cells are made of ("cells" replies).
        reports: what each user tells beside its update, by a name in `REPORTS`: [k, …] each.
        left_out: users that were asked for and are not in the reply, by key, with the reason.
        seconds: wall time of training on the node.
        series, round: of the request that this answers.
        factor, weight: do not travel. The server sets them from the weights that it asked for: the reply's part of the
            weighted sum is `factor * sums`, and `weight` the sum of its users' weights.
    """

    users: Words
    loss: NDArray[np.float32]
    upload_bytes: NDArray[np.int64]
    sums: dict[str, PackedArray] = field(default_factory=dict)
    rows: dict[str, PackedRows] = field(default_factory=dict)
    cells: dict[str, Cells] = field(default_factory=dict)
    sizes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    reports: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    left_out: Mapping[int, str] = field(default_factory=dict)
    seconds: float = 0.0
    series: str = ""
    round: int = 0
    factor: float = 1.0
    weight: float = 0.0

    def encode(self) -> RecordDict:
        update: dict[str, NDArray[Any]] = {}
        for name, packed in (self.sums | self.rows).items():
            parts = {"indptr": getattr(packed, "indptr", None), "rows": packed.rows, "values": packed.values}
            update |= {f"{name}/{part}": value for part, value in parts.items() if value is not None}
        update |= _parts(self.cells)
        users = {"user": self.users, "loss": self.loss, "upload_bytes": self.upload_bytes, **_left_out(self.left_out)}
        if self.cells:
            users["size"] = self.sizes
        config: dict[str, Any] = {"seconds": self.seconds, "series": self.series, "round": self.round}
        records: dict[str, Any] = {"update": lend(update), "users": pack(users), "config": ConfigRecord(config)}
        if self.reports:
            records["reports"] = pack(self.reports)
        return RecordDict(records)

    @classmethod
    def decode(
        cls,
        content: RecordDict,
        asked: Words,
        specs: Specs,
        update: Update,
        reports: Reports | None = None,
        cells: Mapping[str, CellSpec] | None = None,
    ) -> TrainReply:
        """The reply to a request for the users `asked`.

        Args:
            specs: of the arrays whose changes come back.
            cells: of the matrices that are summed instead.
        Raises:
            WireError: it is malformed. What is wrong with single users of a "rows" reply leaves out these alone.
        """
        config, users = read_config(content), read_users(content)
        left_out = _read_left_out(content, users, asked)
        cells = cells or {}
        declared = {f"{name}/{part}" for name in specs for part in ("indptr", "rows", "values")}
        declared |= {f"{name}/{part.name}" for name in cells for part in fields(Cells)}
        for name in read_record(content, "update"):
            if name not in declared:
                raise WireError(f"the update has an array '{name}' that is not shared")
        told, wrong = read_reports(content, users, reports or {})
        loss = read_array(content, "users", "loss", np.float32, users.shape)
        upload_bytes = read_array(content, "users", "upload_bytes", np.int64, users.shape)
        most = most_train_bytes(specs, update if cells else "sum", 1, reports, cells)
        for at in np.flatnonzero(np.isinf(loss) | (upload_bytes < 0) | (upload_bytes > most)):
            wrong[int(users[at])] = "its loss or the size of its update is impossible"
        sums: dict[str, PackedArray] = {}
        rows: dict[str, PackedRows] = {}
        if update == "sum":
            sums = {name: read_packed_array(content, name, spec.shape, spec.by_item) for name, spec in specs.items()}
            if wrong:  # what this user changed is in the sum with all others
                raise WireError(_cannot_be_counted(wrong))
        for name, spec in specs.items() if update == "rows" else ():
            rows[name] = read_packed_rows(content, name, spec.shape, users)
            for at in np.flatnonzero(~rows[name].finite(len(users))):
                wrong[int(users[at])] = f"it sent values of '{name}' that are not finite"
        sizes = upload_bytes[:0]
        found = {name: read_cells(content, name, spec) for name, spec in cells.items()}
        if found:
            sizes = read_array(content, "users", "size", np.int64, users.shape)
            if wrong:
                raise WireError(_cannot_be_counted(wrong))
        reply = cls(users, loss, upload_bytes, sums, rows, found, sizes, told, left_out, _read_seconds(config))
        return reply.without(wrong) if wrong else reply

    def take(self, kept: NDArray[np.int64]) -> TrainReply:
        """A "rows" reply with some of its users only, ascending places."""
        return replace(
            self,
            users=self.users[kept],
            loss=self.loss[kept],
            upload_bytes=self.upload_bytes[kept],
            rows={name: packed.take(kept) for name, packed in self.rows.items()},
            reports={name: values[kept] for name, values in self.reports.items()},
        )

    def without(self, wrong: Mapping[int, str]) -> TrainReply:
        """A "rows" reply without some users, which are left out for these reasons."""
        reply = self.take(np.flatnonzero(~np.isin(self.users, np.array(list(wrong), dtype=np.uint64))))
        return replace(reply, left_out={**self.left_out, **wrong})


@dataclass(frozen=True)
class EvaluateRequest:
    """Evaluate these users with these arrays; fields as in `TrainRequest`."""

    series: str
    round: int
    users: Words
    versions: NDArray[np.int64]
    shared: Arrays
    personal: Arrays = field(default_factory=dict)
    reports: tuple[str, ...] = ()
    addressed: NDArray[np.int64] | None = None

    def encode(self) -> RecordDict:
        config: dict[str, Any] = {"series": self.series, "round": self.round, "reports": ",".join(self.reports)}
        return RecordDict(
            {
                "shared": pack(self.shared),
                "personal": lend(self.personal),
                "users": pack({"user": self.users, "version": self.versions, **_some("addressed", self.addressed)}),
                "config": ConfigRecord(config),
            }
        )

    @classmethod
    def decode(cls, content: RecordDict, specs: Specs) -> EvaluateRequest:
        config, users = read_config(content), read_users(content)
        addressed = _read_some(content, "addressed", users)
        return cls(
            series=read_scalar(config, "series", str),
            round=read_scalar(config, "round", int),
            users=users,
            versions=_read_versions(content, "version", users),
            shared=read_shared(content, specs),
            personal=read_personal(content, len(users if addressed is None else addressed)),
            addressed=addressed,
            reports=_read_wanted(config),
        )


METRIC_SHAPE = (len(PARTS), len(CANDIDATE_SETS), len(METRICS))


@dataclass(frozen=True)
class EvaluateReply:
    """Per-user metrics.

    Attributes:
        users: [k].
        metrics: [k, parts, candidate sets, metrics] float32; NaN where a user has nothing held out.
        seconds: wall time of evaluation on the node.
        reports, left_out, series, round: as in `TrainReply`.
    """

    users: Words
    metrics: NDArray[np.float32]
    seconds: float = 0.0
    reports: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    left_out: Mapping[int, str] = field(default_factory=dict)
    series: str = ""
    round: int = 0

    def encode(self) -> RecordDict:
        users = {"user": self.users, "metrics": self.metrics, **_left_out(self.left_out)}
        config: dict[str, Any] = {"seconds": self.seconds, "series": self.series, "round": self.round}
        records: dict[str, Any] = {"users": pack(users), "config": ConfigRecord(config)}
        if self.reports:
            records["reports"] = pack(self.reports)
        return RecordDict(records)

    @classmethod
    def decode(cls, content: RecordDict, asked: Words, reports: Reports | None = None) -> EvaluateReply:
        """The reply to a request for the users `asked`; users whose metrics or reports are impossible are left out."""
        users = read_users(content)
        left_out = _read_left_out(content, users, asked)
        metrics = read_array(content, "users", "metrics", np.float32, (len(users), *METRIC_SHAPE))
        told, wrong = read_reports(content, users, reports or {})
        inside = (metrics >= 0) & (metrics <= 1) | np.isnan(metrics)
        for at in np.flatnonzero(~by_entry(inside)):
            wrong[int(users[at])] = "it reports a metric outside 0 to 1"
        reply = cls(users, metrics, _read_seconds(read_config(content)), told, left_out)
        return reply.without(wrong) if wrong else reply

    def without(self, wrong: Mapping[int, str]) -> EvaluateReply:
        """The reply without some users, which are left out for these reasons."""
        kept = np.flatnonzero(~np.isin(self.users, np.array(list(wrong), dtype=np.uint64)))
        return replace(
            self,
            users=self.users[kept],
            metrics=self.metrics[kept],
            reports={name: values[kept] for name, values in self.reports.items()},
            left_out={**self.left_out, **wrong},
        )


# Records of what somebody had given, by round.
_WITHDRAWN = "withdrawn/"


def _parts(cells: Mapping[str, Cells]) -> dict[str, NDArray[Any]]:
    """Cells as they travel."""
    return {f"{name}/{part}": value for name, found in cells.items() for part, value in vars(found).items()}


def _read_withdrawn(content: RecordDict, specs: Mapping[str, CellSpec]) -> dict[int, dict[str, Cells]]:
    found = {}
    for record in content.array_records:
        version = record.removeprefix(_WITHDRAWN)
        if version != record and version.isdecimal() and len(version) <= _LONGEST_ROUND:
            found[int(version)] = {name: read_cells(content, name, spec, record) for name, spec in specs.items()}
    return found


def _cannot_be_counted(wrong: Mapping[int, str]) -> str:
    user, reason = next(iter(wrong.items()))
    return f"user {user:016x} cannot be counted: {reason}"


def refuse_other_round(content: RecordDict, series: str, round_: int) -> None:
    """A reply is to what was asked now, and not one that was good some rounds ago.

    Raises:
        WireError: it is of another round or series, or does not say.
    """
    config = read_config(content)
    if read_scalar(config, "series", str) != series:
        raise WireError("the reply is to a request of another run")
    if (found := read_scalar(config, "round", int)) != round_:
        raise WireError(f"the reply is to round {found} and not to round {round_}")


def _left_out(users: Mapping[int, str]) -> dict[str, NDArray[Any]]:
    """The two arrays that say who is left out and why; none where nobody is."""
    if not users:
        return {}
    reasons = tuple(" ".join(reason.split())[:LONGEST_REASON] for reason in users.values())
    return {"left_out": np.array(list(users), dtype=np.uint64), "reasons": words_to_array(reasons)}


def _read_left_out(content: RecordDict, users: Words, asked: Words) -> dict[int, str]:
    """The inverse; refuses a reply that is not about the users that were asked for, each in it or left out."""
    left_out = read_left_out(content)
    expected = asked[~np.isin(asked, np.array(list(left_out), dtype=np.uint64))]
    if not np.array_equal(users, expected) or len(users) + len(left_out) != len(asked):
        raise WireError("the reply is about other users than those asked for")
    return left_out


def _read_update(config: ConfigRecord) -> Update:
    update = read_scalar(config, "update", str)
    if update not in get_args(Update):
        raise WireError(f"unknown kind of update '{update}'")
    return cast(Update, update)


def _read_count(config: ConfigRecord, name: str, most: int) -> int:
    count = int(read_scalar(config, name, int))
    if not 0 <= count <= most:
        raise WireError(f"'{name}' should be a number from 0 to {most}, not {count}")
    return count


def _read_versions(content: RecordDict, name: str, users: Words) -> NDArray[np.int64]:
    versions = read_array(content, "users", name, np.int64, users.shape)
    if (versions < 0).any():
        raise WireError(f"the array '{name}' has a round below 0")
    return versions


def _some(name: str, places: NDArray[np.int64] | None) -> dict[str, NDArray[np.int64]]:
    """The array that says which of the users are meant; none where all are."""
    return {} if places is None else {name: places}


def _read_some(content: RecordDict, name: str, users: Words) -> NDArray[np.int64] | None:
    if name not in read_record(content, "users"):
        return None
    places = read_raw(content, "users", name)
    good = places.dtype == np.int64 and places.ndim == 1
    if not good or (np.diff(places, prepend=-1) <= 0).any() or (places >= len(users)).any():
        raise WireError(f"'{name}' should be ascending places among {len(users)} users")
    return places


def _read_wanted(config: ConfigRecord) -> tuple[str, ...]:
    wanted = tuple(filter(None, read_scalar(config, "reports", str).split(",")))
    if not set(wanted) <= REPORTS:
        raise WireError(f"the server asks for reports {wanted}, and this node knows {', '.join(sorted(REPORTS))}")
    return wanted


def _read_clip(config: ConfigRecord) -> float:
    clip = float(read_scalar(config, "clip", float)) if "clip" in config else 0.0
    if not 0 <= clip < math.inf:
        raise WireError(f"a limit of {clip} is impossible")
    return clip


def _read_seconds(config: ConfigRecord) -> float:
    seconds = float(read_scalar(config, "seconds", float))
    if not 0 <= seconds < math.inf:
        raise WireError(f"the node's {seconds} seconds are impossible")
    return seconds


# What a message takes beside its arrays' values: names, shapes, item numbers, text.
_OVERHEAD = 64 * 1024
# Its key, loss and size, or the reason why it is left out.
_PER_USER = 64 + LONGEST_REASON


# Of a cell its column and its value, and its row and that row's length where it is the only one in it.
_PER_CELL = 20


def most_train_bytes(
    specs: Specs,
    update: Update,
    users: int,
    reports: Reports | None = None,
    cells: Mapping[str, CellSpec] | None = None,
) -> int:
    """The largest training reply that makes sense: every row touched, with item numbers, in float64.

    A report of any size has at most one entry per item.
    """
    whole = sum(12 * spec.size for spec in specs.values())
    whole += sum(_PER_CELL * spec.size for spec in (cells or {}).values())
    items = max((spec.shape[0] for spec in specs.values() if spec.by_item), default=0)
    told = sum(
        4 * math.prod(items if size < 0 else size for size in report.shape) for report in (reports or {}).values()
    )
    return _OVERHEAD + (_PER_USER + told) * users + whole * (users if update == "rows" else 1)


# Keys and sizes of some millions of users.
MOST_ROSTER_BYTES = 64 * 2**20


def most_evaluate_bytes(users: int, reports: Reports | None = None) -> int:
    """The largest evaluation reply that makes sense."""
    told = sum(4 * math.prod(report.shape) for report in (reports or {}).values())
    return _OVERHEAD + users * (_PER_USER + told + 4 * int(np.prod(METRIC_SHAPE)))
