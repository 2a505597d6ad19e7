"""Every message between server and node: names, types and shapes, encoded and decoded in one place.

A node hosts one user or many. One message per node and round carries the shared arrays once and the users that
take part. What comes back about the model is either a *weighted sum* over the node's users (when the strategy
knows the weights before training) or *packed rows per user* (when it decides afterwards). Rows that training
did not touch do not travel.

Whatever is not named here does not leave a node. Decoding checks names, types, shapes and finiteness, and a
message that fails is refused with `WireError`; it never reaches a strategy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from numpy.typing import NDArray

from bouquet.arrays import Arrays, Specs, dump_specs, load_specs
from bouquet.catalogue import Catalogue
from bouquet.errors import WireError
from bouquet.evaluation.metrics import CANDIDATE_SETS, METRICS, PARTS
from bouquet.randomness import Words
from bouquet.records import (
    PackedArray,
    PackedRows,
    pack,
    read_array,
    read_config,
    read_packed_array,
    read_packed_rows,
    read_personal,
    read_record,
    read_reports,
    read_scalar,
    read_shared,
    read_users,
    read_words,
    words_to_array,
)

PROTOCOL = 1

ROSTER, TRAIN, EVALUATE = "query.roster", "train", "evaluate"

# Arrays about users that a node may send beside its update of the shared arrays; a test holds every reply against it.
ROSTER_ARRAYS = frozenset({"user", "size", "forgotten"})
TRAIN_ARRAYS = frozenset({"user", "loss", "upload_bytes"})
EVALUATE_ARRAYS = frozenset({"user", "metrics"})

# What single users may tell the server beside their update, where a strategy asks for it.
REPORTS = frozenset({"features", "performance", "representation", "seconds"})

Update = Literal["sum", "rows"]
Weighting = Literal["uniform", "size"]


@dataclass(frozen=True)
class RosterRequest:
    """Which users are you hosting?

    Attributes:
        series: the run series.
        edition: of the catalogue that the server publishes; "" where nodes know theirs.
        catalogue: that catalogue, sent to a node that has another edition.
    """

    series: str
    edition: str = ""
    catalogue: Catalogue | None = None

    def encode(self) -> RecordDict:
        config: dict[str, Any] = {"protocol": PROTOCOL, "series": self.series, "edition": self.edition}
        content = RecordDict({"config": ConfigRecord(config)})
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
        return cls(series=read_scalar(config, "series", str), edition=edition, catalogue=catalogue)


@dataclass(frozen=True)
class RosterReply:
    """The users of a node and the catalogue that it knows.

    Attributes:
        users: [k] user keys.
        sizes: [k] training interactions n_u.
        interactions, dropped_users: counts of this node's data.
        num_items, catalogue: size and fingerprint of the item list; equal on all nodes of a run. 0 and "" on a node
            that first needs the catalogue that the server publishes.
        num_partitions: how many nodes the data was laid over; 0 where a node has data of its own.
        specs: the shared arrays of the backbone.
        forgotten: [f] keys of users that were here and that the server shall forget.
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
        return RecordDict({"users": pack(users), "config": ConfigRecord(config)})

    @classmethod
    def decode(cls, content: RecordDict) -> RosterReply:
        config, users = read_config(content), read_users(content)
        if read_scalar(config, "protocol", int) != PROTOCOL:
            raise WireError(f"the node speaks protocol {config['protocol']!r}, this server speaks {PROTOCOL}")
        sizes = read_array(content, "users", "size", np.int64, users.shape)
        if (sizes < 0).any():
            raise WireError("a user has a negative number of interactions")
        return cls(
            users=users,
            sizes=sizes,
            interactions=read_scalar(config, "interactions", int),
            dropped_users=read_scalar(config, "dropped_users", int),
            num_items=read_scalar(config, "num_items", int),
            catalogue=read_scalar(config, "catalogue", str),
            num_partitions=read_scalar(config, "num_partitions", int),
            specs=load_specs(read_scalar(config, "specs", str)),
            forgotten=read_users(content, "forgotten") if "forgotten" in read_record(content, "users") else users[:0],
        )


@dataclass(frozen=True)
class TrainRequest:
    """Train these users from these arrays.

    Attributes:
        series: the run and everything that resumes it; names the private state on the node.
        round: the server round, starting from 1.
        checkpoint_round: the last round that the server can come back to; a node keeps its state of that round.
        users: [k] user keys.
        trained: [k] whether the user has trained before in this series (so that lost state is noticed).
        shared: the shared arrays.
        personal: per-user arrays [k, …] of strategies that treat every user differently.
        update: what the reply carries.
        weighting: the user weights of a "sum" reply.
    """

    series: str
    round: int
    checkpoint_round: int
    users: Words
    trained: NDArray[np.bool_]
    shared: Arrays
    personal: Arrays = field(default_factory=dict)
    update: Update = "sum"
    weighting: Weighting = "size"

    def encode(self) -> RecordDict:
        config: dict[str, Any] = {
            "series": self.series,
            "round": self.round,
            "checkpoint_round": self.checkpoint_round,
            "update": self.update,
            "weighting": self.weighting,
        }
        return RecordDict(
            {
                "shared": pack(self.shared),
                "personal": pack(self.personal),
                "users": pack({"user": self.users, "trained": self.trained}),
                "config": ConfigRecord(config),
            }
        )

    @classmethod
    def decode(cls, content: RecordDict, specs: Specs) -> TrainRequest:
        config, users = read_config(content), read_users(content)
        update, weighting = read_scalar(config, "update", str), read_scalar(config, "weighting", str)
        if update not in ("sum", "rows") or weighting not in ("uniform", "size"):
            raise WireError(f"unknown kind of update '{update}' with weights '{weighting}'")
        return cls(
            series=read_scalar(config, "series", str),
            round=read_scalar(config, "round", int),
            checkpoint_round=read_scalar(config, "checkpoint_round", int),
            users=users,
            trained=read_array(content, "users", "trained", np.bool_, users.shape),
            shared=read_shared(content, specs),
            personal=read_personal(content, len(users)),
            update=update,
            weighting=weighting,
        )


@dataclass(frozen=True)
class TrainReply:
    """What a node gives back after training.

    Attributes:
        users: [k] the users that trained.
        loss: [k] float32, mean training loss of the last local epoch.
        upload_bytes: [k] int64, what each user's update takes when it travels alone.
        sums: weighted sum of the changes, by array ("sum" replies). The contribution is `factor * values`.
        factor: see `sums`; for one user its weight, so that its float32 change travels unrounded.
        weight: sum of the users' weights.
        rows: the changes of each user, by array ("rows" replies).
        reports: what each user tells beside its update, by a name in `REPORTS`: [k, …] each.
        seconds: wall time of training on the node.
    """

    users: Words
    loss: NDArray[np.float32]
    upload_bytes: NDArray[np.int64]
    sums: dict[str, PackedArray] = field(default_factory=dict)
    factor: float = 1.0
    weight: float = 0.0
    rows: dict[str, PackedRows] = field(default_factory=dict)
    reports: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    seconds: float = 0.0

    def encode(self) -> RecordDict:
        update: dict[str, NDArray[Any]] = {}
        for name, packed in (self.sums | self.rows).items():
            parts = {"indptr": getattr(packed, "indptr", None), "rows": packed.rows, "values": packed.values}
            update |= {f"{name}/{part}": value for part, value in parts.items() if value is not None}
        users = {"user": self.users, "loss": self.loss, "upload_bytes": self.upload_bytes}
        config: dict[str, Any] = {"factor": self.factor, "weight": self.weight, "seconds": self.seconds}
        records: dict[str, Any] = {"update": pack(update), "users": pack(users), "config": ConfigRecord(config)}
        if self.reports:
            records["reports"] = pack(self.reports)
        return RecordDict(records)

    @classmethod
    def decode(
        cls, content: RecordDict, specs: Specs, update: Update, reports: Mapping[str, tuple[int, ...]] | None = None
    ) -> TrainReply:
        config, users = read_config(content), read_users(content)
        declared = {f"{name}/{part}" for name in specs for part in ("indptr", "rows", "values")}
        for name in read_record(content, "update"):
            if name not in declared:
                raise WireError(f"the update has an array '{name}' that is not shared")
        sums: dict[str, PackedArray] = {}
        rows: dict[str, PackedRows] = {}
        if update == "sum":
            sums = {name: read_packed_array(content, name, spec.shape, spec.by_item) for name, spec in specs.items()}
        else:
            rows = {name: read_packed_rows(content, name, spec.shape, users) for name, spec in specs.items()}
        factor, weight = read_scalar(config, "factor", float), read_scalar(config, "weight", float)
        if not (np.isfinite(factor) and np.isfinite(weight) and weight >= 0):
            raise WireError(f"the weights of the reply are impossible (factor {factor}, weight {weight})")
        return cls(
            users=users,
            loss=read_array(content, "users", "loss", np.float32, users.shape),
            upload_bytes=read_array(content, "users", "upload_bytes", np.int64, users.shape),
            sums=sums,
            factor=factor,
            weight=weight,
            rows=rows,
            reports=read_reports(content, users, reports or {}),
            seconds=read_scalar(config, "seconds", float),
        )


@dataclass(frozen=True)
class EvaluateRequest:
    """Evaluate these users with these arrays; fields as in `TrainRequest`."""

    series: str
    round: int
    users: Words
    trained: NDArray[np.bool_]
    shared: Arrays
    personal: Arrays = field(default_factory=dict)

    def encode(self) -> RecordDict:
        return RecordDict(
            {
                "shared": pack(self.shared),
                "personal": pack(self.personal),
                "users": pack({"user": self.users, "trained": self.trained}),
                "config": ConfigRecord({"series": self.series, "round": self.round}),
            }
        )

    @classmethod
    def decode(cls, content: RecordDict, specs: Specs) -> EvaluateRequest:
        config, users = read_config(content), read_users(content)
        return cls(
            series=read_scalar(config, "series", str),
            round=read_scalar(config, "round", int),
            users=users,
            trained=read_array(content, "users", "trained", np.bool_, users.shape),
            shared=read_shared(content, specs),
            personal=read_personal(content, len(users)),
        )


METRIC_SHAPE = (len(PARTS), len(CANDIDATE_SETS), len(METRICS))


@dataclass(frozen=True)
class EvaluateReply:
    """Per-user metrics.

    Attributes:
        users: [k].
        metrics: [k, parts, candidate sets, metrics] float32; NaN where a user has nothing held out.
        seconds: wall time of evaluation on the node.
        reports: what each user tells beside its metrics, as in `TrainReply`.
    """

    users: Words
    metrics: NDArray[np.float32]
    seconds: float = 0.0
    reports: dict[str, NDArray[np.float32]] = field(default_factory=dict)

    def encode(self) -> RecordDict:
        users = {"user": self.users, "metrics": self.metrics}
        records: dict[str, Any] = {"users": pack(users), "config": ConfigRecord({"seconds": self.seconds})}
        if self.reports:
            records["reports"] = pack(self.reports)
        return RecordDict(records)

    @classmethod
    def decode(cls, content: RecordDict, reports: Mapping[str, tuple[int, ...]] | None = None) -> EvaluateReply:
        users = read_users(content)
        metrics = read_array(content, "users", "metrics", np.float32, (len(users), *METRIC_SHAPE))
        inside = (metrics >= 0) & (metrics <= 1) | np.isnan(metrics)
        if not inside.all():
            bad = int(users[np.flatnonzero(~inside.reshape(len(users), -1).all(axis=1))[0]])
            raise WireError(f"user {bad:016x} reports a metric outside 0 to 1")
        return cls(
            users=users,
            metrics=metrics,
            seconds=read_scalar(read_config(content), "seconds", float),
            reports=read_reports(content, users, reports or {}),
        )


# What a message takes beside its arrays' values: names, shapes, item numbers, text.
_OVERHEAD = 64 * 1024


def most_train_bytes(
    specs: Specs, update: Update, users: int, reports: Mapping[str, tuple[int, ...]] | None = None
) -> int:
    """The largest training reply that makes sense: every row touched, with item numbers, in float64.

    A report of any size has at most one entry per item.
    """
    whole = sum(12 * spec.size for spec in specs.values())
    items = max((spec.shape[0] for spec in specs.values() if spec.by_item), default=0)
    told = sum(4 * math.prod(items if size < 0 else size for size in shape) for shape in (reports or {}).values())
    return _OVERHEAD + (64 + told) * users + whole * (users if update == "rows" else 1)


def most_evaluate_bytes(users: int, reports: Mapping[str, tuple[int, ...]] | None = None) -> int:
    """The largest evaluation reply that makes sense."""
    told = sum(4 * math.prod(shape) for shape in (reports or {}).values())
    return _OVERHEAD + users * (8 + told + 4 * int(np.prod(METRIC_SHAPE)))
