"""Per-user metrics from ranks.

For a user with held-out items H, in terms of the rank r_h of each (see `ranks`) and the positions that its tie
spans, higher + 1 … higher + equal + 1:

    HR@K      1 if any r_h <= K
    Recall@K  #(r_h <= K) / |H|
    NDCG@K    sum over r_h <= K of E[ 1[p <= K] / log2(p + 1) ]  /  sum over p = 1 … min(|H|, K) of 1 / log2(p + 1)
    MRR       1 / min r_h

E is the mean over the positions p of the tie, so NDCG is its expected value over random tie order for every item
that counts as a hit. With one held-out item and no tie it is the usual 1 / log2(r + 1), and Recall equals HR.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bouquet.evaluation.ranks import Ranks

CUTOFFS = (5, 10, 20)
METRICS = (*(f"{name}@{cutoff}" for cutoff in CUTOFFS for name in ("HR", "NDCG", "Recall")), "MRR")
PARTS = ("validation", "test")
CANDIDATE_SETS = ("full", "sampled-99")


def user_metrics(ranks: Ranks) -> NDArray[np.float64]:
    """[k, len(METRICS)] metrics of each user, NaN in the rows of users without a held-out item."""
    lengths = ranks.lengths
    rows = np.repeat(np.arange(len(lengths)), lengths)
    rank = ranks.values
    columns: dict[str, NDArray[np.float64]] = {}
    for cutoff in CUTOFFS:
        hit = rank <= cutoff
        hits = _sum(rows, hit, len(lengths))
        gain = _sum(rows, np.where(hit, _expected_discount(ranks, cutoff), 0.0), len(lengths))
        ideal = _cumulative_discount(cutoff)[np.minimum(lengths, cutoff)]
        columns[f"HR@{cutoff}"] = (hits > 0).astype(np.float64)
        with np.errstate(invalid="ignore"):  # 0 / 0 is the NaN of a user without a held-out item
            columns[f"NDCG@{cutoff}"] = gain / ideal
            columns[f"Recall@{cutoff}"] = hits / lengths
    best = np.full(len(lengths), np.inf)
    np.minimum.at(best, rows, rank)
    columns["MRR"] = 1.0 / best
    values = np.stack([columns[name] for name in METRICS], axis=1)
    values[lengths == 0] = np.nan
    return values


def _cumulative_discount(cutoff: int) -> NDArray[np.float64]:
    """[cutoff + 1] sums of 1 / log2(p + 1) over the positions p = 1 … index."""
    return np.concatenate([[0.0], np.cumsum(1.0 / np.log2(np.arange(2, cutoff + 2)))])


def _expected_discount(ranks: Ranks, cutoff: int) -> NDArray[np.float64]:
    """[nnz] mean of 1[p <= cutoff] / log2(p + 1) over the positions p that each held-out item may take."""
    total = _cumulative_discount(cutoff)
    first = np.minimum(ranks.higher, cutoff)
    last = np.minimum(ranks.higher + ranks.equal + 1, cutoff)
    return (total[last] - total[first]) / (ranks.equal + 1)


def _sum(rows: NDArray[np.int64], values: NDArray[np.generic], num_rows: int) -> NDArray[np.float64]:
    return np.bincount(rows, weights=values, minlength=num_rows).astype(np.float64)
