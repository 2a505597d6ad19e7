"""How well a model ranks what it was trained on: training items in the place of the hidden item.

FedCA's Figure 3 shows it beside the test part: where the two go apart, training has raised the rows that it touched and
not the others. Each training item of a user is ranked by itself, against the candidates that the hidden item has, and a
user's value is the mean over its training items. It is measured in a simulation, and only where a run asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.config import RunConfig
from bouquet.evaluation.metrics import CANDIDATE_SETS, METRICS
from bouquet.records import Report

TRAINING = "training"
"""What users tell of their training items: metrics by candidate set; -1 for who has none."""


def training_reports(config: RunConfig) -> dict[str, Report]:
    """What users are asked to tell beside their metrics; nothing where a run does not ask."""
    return {TRAINING: Report((len(CANDIDATE_SETS), len(METRICS)), -1.0, 1.0)} if config.evaluate_training else {}


def training_means(told: NDArray[np.floating]) -> dict[str, dict[str, float]]:
    """Means over users, by candidate set and metric.

    Args:
        told: [n, candidate sets, metrics] as `TRAINING`; NaN for users who did not answer.
    """
    seen = told[(told >= 0).all(axis=(1, 2))]
    means = seen.mean(axis=0) if len(seen) else np.full(told.shape[1:], np.nan)
    return {
        kind: dict(zip(METRICS, map(float, row), strict=True)) for kind, row in zip(CANDIDATE_SETS, means, strict=True)
    }


def training_summary(rounds: Sequence[Mapping[str, Any]], best_round: int) -> dict[str, Any]:
    """What `summary.json` says of it: the means of the reported round."""
    found = {line["round"]: line[TRAINING] for line in rounds if TRAINING in line}
    return {TRAINING: found[best_round]} if best_round in found else {}
