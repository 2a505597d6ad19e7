"""Evaluation of many users in bounded memory: one score block serves both parts and both candidate sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from bouquet.evaluation.metrics import CANDIDATE_SETS, METRICS, PARTS, user_metrics
from bouquet.evaluation.ranks import Scores, rank_full, rank_sampled
from bouquet.ragged import Ragged, one_after_another

ScoreBlock = Callable[[NDArray[np.int64]], Scores]
"""`score_block(rows [b]) -> [b, m]` float scores of all items for these users; higher is better."""


def evaluate_users(
    score_block: ScoreBlock | Mapping[str, ScoreBlock],
    *,
    num_items: int,
    train: Ragged,
    validation: Ragged,
    test: Ragged,
    candidates: Mapping[str, Ragged],
    exclude_known: bool = True,
    block_bytes: int = 64 * 2**20,
) -> NDArray[np.float64]:
    """All metrics of k users, in both parts, on both candidate sets.

    `full` ranks among all items but the user's training positives (at test: and validation positives);
    `sampled-99` among the held-out items and the given negatives.

    Args:
        score_block: scores of the users with the given row numbers, rows of `train` and the others; or one by part,
            where what a user did before the part is an input of the model.
        num_items: m.
        train, validation, test: k rows of distinct items, disjoint for each user if known items are left out.
        candidates: the negatives of "validation" and "test", k rows each, drawn once and independently.
        exclude_known: whether `full` leaves out what the user is known to have; not where users come back to items.
        block_bytes: users are scored in blocks whose scores, taken as float64, fit into this many bytes. Three
            to four arrays of that size live at a time.
    Returns:
        [k, len(PARTS), len(CANDIDATE_SETS), len(METRICS)] float64, NaN where a user has no held-out item in a part.
    Raises:
        BouquetError: a score is not finite, or the parts of a user overlap; the message names the row.
        ValueError: shapes do not fit.
    """
    held_out = {"validation": validation, "test": test}
    _check_rows(len(train), {"validation": validation, "test": test}, candidates)
    nothing = Ragged.from_lengths(np.zeros(len(train)), [])
    known = {"validation": train, "test": one_after_another(train, validation)}
    excluded = known if exclude_known else dict.fromkeys(PARTS, nothing)
    values = np.empty((len(train), len(PARTS), len(CANDIDATE_SETS), len(METRICS)))
    block_users = max(1, block_bytes // (8 * max(num_items, 1)))
    for start in range(0, len(train), block_users):
        rows = np.arange(start, min(start + block_users, len(train)))
        for place, part in enumerate(PARTS):
            if place == 0 or isinstance(score_block, Mapping):
                scores = (score_block[part] if isinstance(score_block, Mapping) else score_block)(rows)
            if scores.shape != (len(rows), num_items):
                raise ValueError(f"the scorer returned {list(scores.shape)}, not {[len(rows), num_items]}")
            wanted = held_out[part].take(rows)
            full = rank_full(scores, wanted, excluded[part].take(rows), first_row=start)
            sampled = rank_sampled(scores, wanted, candidates[part].take(rows), first_row=start)
            values[rows, place, CANDIDATE_SETS.index("full")] = user_metrics(full)
            values[rows, place, CANDIDATE_SETS.index("sampled-99")] = user_metrics(sampled)
    return values


def _check_rows(num_users: int, held_out: Mapping[str, Ragged], candidates: Mapping[str, Ragged]) -> None:
    for part in PARTS:
        if part not in candidates:
            raise ValueError(f"no sampled candidates are given for {part}")
        lengths = {"training": num_users, part: len(held_out[part]), f"{part} candidates": len(candidates[part])}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"the numbers of users differ: {lengths}")
