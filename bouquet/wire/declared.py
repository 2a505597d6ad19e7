"""What may leave a node, by name: arrays about users, what they tell beside them, kinds of updates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from bouquet.evaluation.metrics import CANDIDATE_SETS, METRICS, PARTS
from bouquet.records import Report

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

Update = Literal["sum", "rows", "cells"]
Weighting = Literal["uniform", "size"]
Reports = Mapping[str, Report]

METRIC_SHAPE = (len(PARTS), len(CANDIDATE_SETS), len(METRICS))
"""Of one user's metrics: parts, candidate sets, metrics."""
