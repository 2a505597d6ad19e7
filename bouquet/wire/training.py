"""A round's training: which users from which arrays, and what a node gives back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from numpy.typing import NDArray

from bouquet.arrays import Arrays, Specs
from bouquet.cells import Cells, CellSpec
from bouquet.errors import WireError
from bouquet.packed import PackedArray, PackedRows
from bouquet.picked import PerUser
from bouquet.randomness import Words
from bouquet.records import (
    lend,
    pack,
    read_array,
    read_cells,
    read_config,
    read_packed_array,
    read_packed_rows,
    read_record,
    read_reports,
    read_scalar,
    read_shared,
    read_users,
)
from bouquet.wire.declared import Reports, Update
from bouquet.wire.limits import most_train_bytes
from bouquet.wire.parts import (
    cell_arrays,
    left_out_arrays,
    read_places,
    read_seconds,
    read_update,
    read_versions,
    read_wanted,
    read_who_is_left_out,
    some,
)
from bouquet.wire.personal import lend_personal, read_personal


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
    personal: PerUser = field(default_factory=dict)
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
        users |= some("addressed", self.addressed) | some("telling", self.telling)
        return RecordDict(
            {
                "shared": pack(self.shared),
                "personal": lend_personal(self.personal),
                "users": pack(users),
                "config": ConfigRecord(config),
            }
        )

    @classmethod
    def decode(cls, content: RecordDict, specs: Specs) -> TrainRequest:
        config, users = read_config(content), read_users(content)
        addressed = read_places(content, "addressed", users)
        weights = read_array(content, "users", "weight", np.float64, users.shape)
        if not (np.isfinite(weights) & (weights >= 0)).all():
            raise WireError("a user has a weight that is not finite or below 0")
        return cls(
            series=read_scalar(config, "series", str),
            round=read_scalar(config, "round", int),
            users=users,
            versions=read_versions(content, "version", users),
            kept=read_versions(content, "kept", users),
            shared=read_shared(content, specs),
            personal=read_personal(content, len(users if addressed is None else addressed)),
            addressed=addressed,
            update=read_update(config),
            weights=weights,
            reports=read_wanted(config),
            clip=_read_clip(config),
            telling=read_places(content, "telling", users),
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
        update |= cell_arrays(self.cells)
        users = {
            "user": self.users,
            "loss": self.loss,
            "upload_bytes": self.upload_bytes,
            **left_out_arrays(self.left_out),
        }
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
        left_out = read_who_is_left_out(content, users, asked)
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
        reply = cls(users, loss, upload_bytes, sums, rows, found, sizes, told, left_out, read_seconds(config))
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


def _cannot_be_counted(wrong: Mapping[int, str]) -> str:
    user, reason = next(iter(wrong.items()))
    return f"user {user:016x} cannot be counted: {reason}"


def _read_clip(config: ConfigRecord) -> float:
    clip = float(read_scalar(config, "clip", float)) if "clip" in config else 0.0
    if not 0 <= clip < math.inf:
        raise WireError(f"a limit of {clip} is impossible")
    return clip
