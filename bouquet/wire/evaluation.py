"""Evaluation of users on their nodes: with which arrays, and their metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from numpy.typing import NDArray

from bouquet.arrays import Arrays, Specs
from bouquet.packed import by_entry
from bouquet.picked import PerUser
from bouquet.randomness import Words
from bouquet.records import (
    pack,
    read_array,
    read_config,
    read_reports,
    read_scalar,
    read_shared,
    read_users,
)
from bouquet.wire.declared import METRIC_SHAPE, Reports
from bouquet.wire.parts import (
    left_out_arrays,
    read_places,
    read_seconds,
    read_versions,
    read_wanted,
    read_who_is_left_out,
    some,
)
from bouquet.wire.personal import lend_personal, read_personal


@dataclass(frozen=True)
class EvaluateRequest:
    """Evaluate these users with these arrays; fields as in `TrainRequest`."""

    series: str
    round: int
    users: Words
    versions: NDArray[np.int64]
    shared: Arrays
    personal: PerUser = field(default_factory=dict)
    reports: tuple[str, ...] = ()
    addressed: NDArray[np.int64] | None = None

    def encode(self) -> RecordDict:
        config: dict[str, Any] = {"series": self.series, "round": self.round, "reports": ",".join(self.reports)}
        return RecordDict(
            {
                "shared": pack(self.shared),
                "personal": lend_personal(self.personal),
                "users": pack({"user": self.users, "version": self.versions, **some("addressed", self.addressed)}),
                "config": ConfigRecord(config),
            }
        )

    @classmethod
    def decode(cls, content: RecordDict, specs: Specs) -> EvaluateRequest:
        config, users = read_config(content), read_users(content)
        addressed = read_places(content, "addressed", users)
        return cls(
            series=read_scalar(config, "series", str),
            round=read_scalar(config, "round", int),
            users=users,
            versions=read_versions(content, "version", users),
            shared=read_shared(content, specs),
            personal=read_personal(content, len(users if addressed is None else addressed)),
            addressed=addressed,
            reports=read_wanted(config),
        )


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
        users = {"user": self.users, "metrics": self.metrics, **left_out_arrays(self.left_out)}
        config: dict[str, Any] = {"seconds": self.seconds, "series": self.series, "round": self.round}
        records: dict[str, Any] = {"users": pack(users), "config": ConfigRecord(config)}
        if self.reports:
            records["reports"] = pack(self.reports)
        return RecordDict(records)

    @classmethod
    def decode(cls, content: RecordDict, asked: Words, reports: Reports | None = None) -> EvaluateReply:
        """The reply to a request for the users `asked`; users whose metrics or reports are impossible are left out."""
        users = read_users(content)
        left_out = read_who_is_left_out(content, users, asked)
        metrics = read_array(content, "users", "metrics", np.float32, (len(users), *METRIC_SHAPE))
        told, wrong = read_reports(content, users, reports or {})
        inside = (metrics >= 0) & (metrics <= 1) | np.isnan(metrics)
        for at in np.flatnonzero(~by_entry(inside)):
            wrong[int(users[at])] = "it reports a metric outside 0 to 1"
        reply = cls(users, metrics, read_seconds(read_config(content)), told, left_out)
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
