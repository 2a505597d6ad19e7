"""Where a held-out item stands among its candidates, ties counted evenly.

    rank = 1 + #(candidates scoring higher) + #(other candidates scoring equal) / 2

A constant scorer therefore puts every held-out item in the middle: no order in which ties happen to be broken
can turn into a hit. Scores must be finite. NaN compares false with everything and would rank first; an infinite
score is how scorers hide items, and which items are candidates is decided here and by nobody else.

The held-out items of one user are candidates of each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.errors import BouquetError
from bouquet.packed import surely_finite
from bouquet.ragged import Ragged, positions

Scores = NDArray[np.floating[Any]]
Counts = NDArray[np.int64]

# Up to this many held-out items per user, one comparison pass per item is cheaper than sorting every row.
_FEW = 3


@dataclass(frozen=True)
class Ranks:
    """The places of the held-out items of k users.

    Attributes:
        indptr: [k + 1] int64, as in the `held_out` that was ranked.
        higher: [nnz] candidates that score higher than the held-out item.
        equal: [nnz] other candidates that score the same.
    """

    indptr: NDArray[np.int64]
    higher: Counts
    equal: Counts

    @property
    def values(self) -> NDArray[np.float64]:
        """[nnz] rank of every held-out item, >= 1; halves occur where it is tied."""
        return 1.0 + self.higher + self.equal / 2.0

    @property
    def lengths(self) -> NDArray[np.int64]:
        """[k] number of held-out items per user."""
        return np.diff(self.indptr)


def rank_full(scores: Scores, held_out: Ragged, excluded: Ragged, *, first_row: int = 0) -> Ranks:
    """Rank held-out items among all items that are not excluded.

    Args:
        scores: [k, m] float32 or float64; higher is better. Not changed.
        held_out: k rows of distinct items.
        excluded: k rows; items that are no candidates of this user (what it is known to have had before).
        first_row: number of the first row in error messages.
    Raises:
        BouquetError: a score is not finite, or an item is both held out and excluded; the message names the user.
        ValueError: shapes or types do not fit.
    """
    _check_shapes(scores, held_out, excluded)
    _refuse_non_finite(scores, first_row)
    # Finite scores are all above -inf, so a masked item is never counted as higher or equal.
    candidates = scores.copy()
    candidates[excluded.row_of_value, excluded.values] = -np.inf
    own = candidates[held_out.row_of_value, held_out.values]
    if np.isneginf(own).any():
        at = int(np.flatnonzero(np.isneginf(own))[0])
        row = first_row + int(held_out.row_of_value[at])
        raise BouquetError(f"user row {row}: item {held_out.values[at]} is held out and excluded at the same time.")
    return _count(candidates, own, held_out.indptr)


def rank_sampled(scores: Scores, held_out: Ragged, candidates: Ragged, *, first_row: int = 0) -> Ranks:
    """Rank held-out items among themselves and the given negatives of their user.

    Args:
        scores: [k, m] float32 or float64; higher is better. Only scores of candidates are read.
        held_out: k rows of distinct items.
        candidates: k rows of distinct negatives.
        first_row: number of the first row in error messages.
    Raises:
        BouquetError: a score that is read is not finite, or a held-out item is among its own negatives; the message
            names the user.
        ValueError: shapes or types do not fit.
    """
    _check_shapes(scores, held_out, candidates)
    num_users, num_items = scores.shape
    _refuse_overlap(held_out, candidates, num_items, first_row)
    held_rows, held_lengths = held_out.row_of_value, held_out.lengths
    own = scores[held_rows, held_out.values]
    width = int((held_lengths + candidates.lengths).max(initial=0))
    table = np.full((num_users, width), -np.inf, dtype=scores.dtype)
    table[held_rows, positions(held_lengths)] = own
    columns = positions(candidates.lengths) + np.repeat(held_lengths, candidates.lengths)
    table[candidates.row_of_value, columns] = scores[candidates.row_of_value, candidates.values]
    _refuse_non_finite(table, first_row, padded=held_lengths + candidates.lengths)
    return _count(table, own, held_out.indptr)


def _count(table: Scores, own: Scores, indptr: NDArray[np.int64]) -> Ranks:
    """Count the entries of each row above and equal to the row's own scores.

    Args:
        table: [k, c] scores of the candidates, held-out items included, -inf where there is none. May be sorted
            in place.
        own: [nnz] scores of the held-out items, row by row.
        indptr: [k + 1].
    """
    if int(np.diff(indptr).max(initial=0)) <= _FEW:
        above, same = _count_by_comparison(table, own, indptr)
    else:
        above, same = _count_by_sorting(table, own, indptr)
    return Ranks(indptr, above, same - 1)


def _count_by_comparison(table: Scores, own: Scores, indptr: NDArray[np.int64]) -> tuple[Counts, Counts]:
    """One pass over the table per held-out item of the user that has most."""
    above, same = np.zeros(len(own), dtype=np.int64), np.zeros(len(own), dtype=np.int64)
    lengths = np.diff(indptr)
    for place in range(int(lengths.max(initial=0))):
        rows = np.flatnonzero(lengths > place)
        at = indptr[rows] + place
        compared = table if len(rows) == len(table) else table[rows]
        threshold = own[at, None]
        # The sum of a narrow type takes a third of the time of `count_nonzero` along an axis.
        above[at] = (compared > threshold).sum(axis=1, dtype=np.int32)
        same[at] = (compared == threshold).sum(axis=1, dtype=np.int32)
    return above, same


def _count_by_sorting(table: Scores, own: Scores, indptr: NDArray[np.int64]) -> tuple[Counts, Counts]:
    """Sort each row once, then search it for all of its held-out scores."""
    table.sort(axis=1)
    rows = np.repeat(np.arange(len(table)), np.diff(indptr))
    below = _search(table, rows, own, inclusive=False)
    up_to = _search(table, rows, own, inclusive=True)
    return table.shape[1] - up_to, up_to - below


def _search(table: Scores, rows: NDArray[np.int64], wanted: Scores, *, inclusive: bool) -> Counts:
    """[nnz] how many entries of row `rows[j]` are < wanted[j] (<= if inclusive): all binary searches in step."""
    low = np.zeros(len(wanted), dtype=np.int64)
    high = np.full(len(wanted), table.shape[1], dtype=np.int64)
    for _ in range(table.shape[1].bit_length()):
        middle = (low + high) // 2
        seen = table[rows, np.minimum(middle, table.shape[1] - 1)]
        right = (seen <= wanted) if inclusive else (seen < wanted)
        right &= low < high
        low = np.where(right, middle + 1, low)
        high = np.where(right, high, middle)
    return low


def _check_shapes(scores: Scores, held_out: Ragged, other: Ragged) -> None:
    if scores.ndim != 2 or scores.dtype.kind != "f":
        raise ValueError(f"scores must be a float array [k, m], not {scores.dtype} {list(scores.shape)}")
    if not len(scores) == len(held_out) == len(other):
        raise ValueError(f"{len(scores)} rows of scores, but {len(held_out)} and {len(other)} rows of items")


def _refuse_non_finite(scores: Scores, first_row: int, padded: NDArray[np.int64] | None = None) -> None:
    """Refuse NaN and infinities; with `padded` [k], only the first padded[r] entries of row r count."""
    if padded is None and surely_finite(scores):
        return
    finite = np.isfinite(scores)
    if padded is not None:
        finite |= np.arange(scores.shape[1]) >= padded[:, None]
    if finite.all():
        return
    row, column = (int(index) for index in np.argwhere(~finite)[0])
    raise BouquetError(
        f"user row {first_row + row}: the scorer returned {scores[row, column]}; only finite scores can be ranked."
    )


def _refuse_overlap(held_out: Ragged, candidates: Ragged, num_items: int, first_row: int) -> None:
    # A table of flags is ten times faster than set operations on (user, item) keys.
    held = np.zeros((len(held_out), num_items), dtype=np.bool_)
    held[held_out.row_of_value, held_out.values] = True
    both = held[candidates.row_of_value, candidates.values]
    if both.any():
        at = int(np.flatnonzero(both)[0])
        row = first_row + int(candidates.row_of_value[at])
        item = candidates.values[at]
        raise BouquetError(f"user row {row}: the held-out item {item} is among its own negatives.")
