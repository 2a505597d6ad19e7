"""From per-user values to the figures of a table: means over users, their standard errors, their spread.

Everything here takes the array of `evaluate_users`, [k, parts, candidate sets, metrics], and counts only users
that have a held-out item in the part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.evaluation.metrics import CANDIDATE_SETS, METRICS, PARTS

Summary = dict[str, dict[str, dict[str, float]]]
"""part -> candidate set -> metric -> figure"""

FAIRNESS_METRICS = ("HR@10", "NDCG@10")


def metric_values(values: NDArray[np.float64], part: str, candidate_set: str, metric: str) -> NDArray[np.float64]:
    """[k] the values of one metric, NaN for users that are not evaluated."""
    return values[:, PARTS.index(part), CANDIDATE_SETS.index(candidate_set), METRICS.index(metric)]


def evaluated_users(values: NDArray[np.float64]) -> dict[str, int]:
    """How many users have a held-out item, by part."""
    return {part: int((~np.isnan(values[:, place, 0, 0])).sum()) for place, part in enumerate(PARTS)}


def summarise(values: NDArray[np.float64]) -> Summary:
    """Means over the evaluated users; NaN for a part in which nobody is evaluated.

    Returns:
        For example `summarise(values)["test"]["full"]["HR@10"]`.
    """
    return _by_name(values, lambda column: float(column.mean()), least=1)


def standard_error(values: NDArray[np.float64]) -> Summary:
    """Standard errors of the means of `summarise` over users: s / sqrt(n) with the n - 1 form of s; NaN if n < 2.

    They say how much another draw of users would move the mean. They say nothing about another seed.
    """
    return _by_name(values, lambda column: float(column.std(ddof=1) / np.sqrt(len(column))), least=2)


def flattened(means: Summary) -> dict[str, float]:
    """The same means as part/candidate set/metric -> value."""
    return {
        f"{part}/{kind}/{name}": value
        for part, sets in means.items()
        for kind, metrics in sets.items()
        for name, value in metrics.items()
    }


def fairness(values: NDArray[np.float64]) -> dict[str, Any]:
    """How unequally users are served: the variance over users of their performance HR@10 + NDCG@10.

    Taken at test over the evaluated users, divided by n; lower is fairer. For HR@10 of a single held-out item the
    variance is p (1 - p) and says no more than the mean p, so compare at similar means. What papers print, such as
    CF-FedSR's Figure 4, is that among sampled candidates.

    Returns:
        {"variance": …, "variance_of": {"HR@10": …, "NDCG@10": …}} over the full catalogue, and the same once more
        under the name of every other candidate set.
    """
    by_set = {kind: _spread(values, kind) for kind in CANDIDATE_SETS}
    return {**by_set.pop("full"), **by_set}


def _spread(values: NDArray[np.float64], candidate_set: str) -> dict[str, Any]:
    columns = {name: _evaluated(metric_values(values, "test", candidate_set, name)) for name in FAIRNESS_METRICS}
    performance = np.sum(list(columns.values()), axis=0)
    return {"variance": _variance(performance), "variance_of": {n: _variance(c) for n, c in columns.items()}}


def _variance(column: NDArray[np.float64]) -> float:
    return float(column.var()) if len(column) else float("nan")


def _by_name(values: NDArray[np.float64], figure: Callable[[NDArray[np.float64]], float], *, least: int) -> Summary:
    def of(part: str, candidate_set: str, metric: str) -> float:
        column = _evaluated(metric_values(values, part, candidate_set, metric))
        return figure(column) if len(column) >= least else float("nan")

    return {
        part: {chosen: {name: of(part, chosen, name) for name in METRICS} for chosen in CANDIDATE_SETS}
        for part in PARTS
    }


def _evaluated(column: NDArray[np.float64]) -> NDArray[np.float64]:
    return column[~np.isnan(column)]
