"""`bouquet.compare`: finished runs side by side, each tested against the first over users, and seeds if there are."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bouquet.api.result import Run
from bouquet.config import lookup
from bouquet.errors import ConfigError
from bouquet.evaluation import CANDIDATE_SETS, METRICS
from bouquet.experiments.comparison import Compared, compared, differences_of, require_same_data
from bouquet.extras import need

if TYPE_CHECKING:
    import pandas as pd


Entry = Run | str | os.PathLike[str]


def compare(
    runs: Sequence[Entry | Sequence[Entry]], *, metric: str = "NDCG@10", candidates: str = "full"
) -> pd.DataFrame:
    """Runs on the same data and split, each against the first.

    Args:
        runs: of `bouquet.run` or `bouquet.load`, or folders of finished runs. In place of one a list of runs that
            differ in nothing but the seed, or a folder of folders `seed-…`, as `bouquet table` makes one for each row.
        metric: HR, NDCG or Recall at 5, 10 or 20, such as "HR@10", or "MRR".
        candidates: "full" or "sampled-99".
    Returns:
        One row per entry: `run` (its folder), `strategy`, `personalization`, `backbone`, `seed` (none if there are
        several), `seeds`, `leaky`, `value` of the metric at test and its `standard_error` over users; then, against the
        first entry, `difference`, `difference_error`, `low` and `high` of the 95 % interval, `p`, adjusted for the
        number of tests (Holm), what error, interval and p are `over`, and the number of `users`. "users and seeds":
        what another seed would change is counted. "users": one of the two has one seed, so the test (sign-flip) speaks
        of these trained models only. The first row has none of these.
    Raises:
        ConfigError: no run is given, the metric is unknown, or the runs are on different data, or of
            one method under several seeds that differ in more.
        DataError: a run is missing, unfinished or damaged.
    """
    need("pandas", "bouquet.compare")
    import pandas as pd

    lookup(dict.fromkeys(METRICS), "metric", metric)
    lookup(dict.fromkeys(CANDIDATE_SETS), "candidate set", candidates)
    if isinstance(runs, str | os.PathLike | Run) or not runs:
        raise ConfigError("bouquet.compare takes a list of runs, the first of which the others are tested against.")
    found = [_compared(entry) for entry in runs]
    for other in found[1:]:
        require_same_data(found[0].first, other.first)
    rows: list[dict[str, Any]] = [
        {
            "run": one.name,
            **{key: one.first.summary.get(key) for key in ("strategy", "personalization", "backbone")},
            "seed": one.first.summary.get("seed") if len(one.runs) == 1 else None,
            "seeds": len(one.runs),
            "leaky": one.first.summary.get("leaky"),
            "value": one.mean(candidates, metric),
            "standard_error": one.error(candidates, metric),
        }
        for one in found
    ]
    first, *others = [one.sample(candidates, metric) for one in found]
    tests = differences_of([(other, first) for other in others])
    for row, (difference, adjusted) in zip(rows[1:], tests, strict=True):
        low, high = difference.interval
        row |= {
            "difference": difference.mean,
            "difference_error": difference.standard_error,
            "low": low,
            "high": high,
            "p": adjusted,
            "over": "users and seeds" if difference.counts_seeds else "users",
            "users": difference.users,
        }
    columns = [*rows[0], "difference", "difference_error", "low", "high", "p", "over", "users"]
    return pd.DataFrame(rows, columns=columns).astype({"seed": "Int64", "users": "Int64"})


def _compared(entry: Entry | Sequence[Entry]) -> Compared:
    if isinstance(entry, Run | str | os.PathLike):
        return compared([_folder(entry)])
    if not entry:
        raise ConfigError("One of the lists of runs is empty.")
    return compared([_folder(run) for run in entry])


def _folder(run: Entry) -> Path:
    return run.path if isinstance(run, Run) else Path(run)
