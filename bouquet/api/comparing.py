"""`bouquet.compare`: finished runs side by side, each tested against the first, user by user."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bouquet.api.result import Run
from bouquet.config import lookup
from bouquet.errors import ConfigError
from bouquet.evaluation import CANDIDATE_SETS, METRICS
from bouquet.experiments.comparison import finished, paired_tests, require_same_data
from bouquet.extras import need

if TYPE_CHECKING:
    import pandas as pd


def compare(
    runs: Sequence[Run | str | os.PathLike[str]], *, metric: str = "NDCG@10", candidates: str = "full"
) -> pd.DataFrame:
    """Runs on the same data and split, each against the first.

    Args:
        runs: of `bouquet.run` or `bouquet.load`, or folders of finished runs.
        metric: HR, NDCG or Recall at 5, 10 or 20, such as "HR@10", or "MRR".
        candidates: "full" or "sampled-99".
    Returns:
        One row per run: `run` (its folder), `strategy`, `personalization`, `backbone`, `seed`, `leaky`, `value` and
        `standard_error` of the metric at test; then, against the first run, user by user, `difference`,
        `difference_error` (standard error), `p` of a sign-flip test, adjusted for the number of tests (Holm), and the
        number of `users` in it. The first row has none of these four.
    Raises:
        ConfigError: no run is given, the metric is unknown, or the runs are on different data.
        DataError: a run is missing, unfinished or damaged.
    """
    need("pandas", "bouquet.compare")
    import pandas as pd

    lookup(dict.fromkeys(METRICS), "metric", metric)
    lookup(dict.fromkeys(CANDIDATE_SETS), "candidate set", candidates)
    if isinstance(runs, str | os.PathLike | Run) or not runs:
        raise ConfigError("bouquet.compare takes a list of runs, the first of which the others are tested against.")
    found = [finished(run.path if isinstance(run, Run) else Path(run)) for run in runs]
    for other in found[1:]:
        require_same_data(found[0], other)
    rows: list[dict[str, Any]] = [
        {
            "run": one.name,
            **{key: one.summary.get(key) for key in ("strategy", "personalization", "backbone", "seed", "leaky")},
            "value": one.summary["test"][candidates][metric],
            "standard_error": one.summary["standard_error"]["test"][candidates][metric],
        }
        for one in found
    ]
    first, *others = [one.per_user(candidates, metric) for one in found]
    for row, (difference, adjusted) in zip(rows[1:], paired_tests(first, others), strict=True):
        row |= {
            "difference": difference.mean,
            "difference_error": difference.standard_error,
            "p": adjusted,
            "users": difference.users,
        }
    columns = [*rows[0], "difference", "difference_error", "p", "users"]
    return pd.DataFrame(rows, columns=columns).astype({"users": "Int64"})
