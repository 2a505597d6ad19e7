from __future__ import annotations

import numpy as np
import pytest

from bouquet.errors import BouquetError
from bouquet.evaluation import rank_full, rank_sampled
from bouquet.evaluation.ranks import _count_by_comparison, _count_by_sorting
from bouquet.ragged import Ragged


def ragged(*rows: list[int]) -> Ragged:
    return Ragged.from_lengths([len(row) for row in rows], [value for row in rows for value in row])


def test_full_ranks_by_hand():
    """User 0: scores .9 .5 .7 .5 .1, item 0 excluded, item 1 held out.

    Candidates are 1..4. Above .5: item 2. Equal: item 3. Rank 1 + 1 + 1/2 = 2.5.
    User 1: nothing excluded, items 4 and 0 held out with scores .3 and .2 over 0 0 .1 in between:
    item 4 ranks 1, and item 0 ranks 2 because item 4 competes with it.
    """
    scores = np.array([[0.9, 0.5, 0.7, 0.5, 0.1], [0.2, 0.0, 0.0, 0.1, 0.3]], dtype=np.float32)
    ranks = rank_full(scores, ragged([1], [4, 0]), ragged([0], []))
    assert ranks.values.tolist() == [2.5, 1.0, 2.0]
    assert ranks.higher.tolist() == [1, 0, 1]
    assert ranks.equal.tolist() == [1, 0, 0]


def test_sampled_ranks_by_hand():
    """User 0 holds out items 0 (.5) and 1 (.4), negatives 2 (.5), 3 (.6); item 4 (.9) is not asked.

    Item 0: above it item 3, equal item 2: 1 + 1 + 1/2 = 2.5. Item 1: above it 0, 2, 3: rank 4.
    User 1 holds out item 3 (.6) against item 0 (.5): rank 1.
    """
    row = [0.5, 0.4, 0.5, 0.6, 0.9]
    scores = np.array([row, row])
    ranks = rank_sampled(scores, ragged([0, 1], [3]), ragged([2, 3], [0]))
    assert ranks.values.tolist() == [2.5, 4.0, 1.0]


def test_a_constant_scorer_gets_the_middle():
    """10 items, 3 excluded: 7 candidates, all equal, so the rank is 1 + 6/2 = 4. Of 1 + 4 sampled ones: 3."""
    scores = np.zeros((1, 10), dtype=np.float32)
    assert rank_full(scores, ragged([5]), ragged([0, 1, 2])).values.tolist() == [4.0]
    assert rank_sampled(scores, ragged([5]), ragged([0, 1, 2, 3])).values.tolist() == [3.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scores_that_are_not_finite_are_refused_by_user(bad):
    scores = np.zeros((3, 6))
    scores[1, 2] = bad
    with pytest.raises(BouquetError, match="user row 41:"):
        rank_full(scores, ragged([0], [0], [0]), ragged([], [], []), first_row=40)
    with pytest.raises(BouquetError, match="user row 1:"):
        rank_sampled(scores, ragged([0], [0], [0]), ragged([1], [1, 2], [1]))
    with pytest.raises(BouquetError, match="user row 1:"):
        rank_sampled(scores, ragged([0], [2], [0]), ragged([1], [1], [1]))


def test_only_scores_of_candidates_are_read_for_sampled_ranks():
    scores = np.array([[1.0, 0.0, np.nan]])
    assert rank_sampled(scores, ragged([0]), ragged([1])).values.tolist() == [1.0]


def test_contradictory_histories_are_refused_by_user():
    scores = np.zeros((2, 4))
    with pytest.raises(BouquetError, match="user row 1: item 3 is held out and excluded"):
        rank_full(scores, ragged([0], [3]), ragged([1], [3]))
    with pytest.raises(BouquetError, match="user row 1: the held-out item 3 is among its own negatives"):
        rank_sampled(scores, ragged([0], [3]), ragged([1], [3]))


def test_shapes_and_types_are_checked():
    with pytest.raises(ValueError, match="2 rows of scores, but 1 and 2"):
        rank_full(np.zeros((2, 4)), ragged([0]), ragged([], []))
    with pytest.raises(ValueError, match="float array"):
        rank_full(np.zeros((1, 4), dtype=np.int64), ragged([0]), ragged([]))


def test_scores_are_left_as_they_were():
    scores = np.random.default_rng(0).normal(size=(4, 30))
    before = scores.copy()
    many = ragged(*[list(range(8))] * 4)
    rank_full(scores, many, ragged(*[[20, 21]] * 4))
    rank_sampled(scores, many, ragged(*[[20, 21]] * 4))
    assert np.array_equal(scores, before)


def test_comparison_and_sorting_count_the_same():
    """Few distinct values, -inf as padding, users without held-out items, one to seven held-out items."""
    generator = np.random.default_rng(1)
    for width in (1, 2, 3, 7, 8, 9, 64):
        table = generator.integers(0, 4, size=(20, width)).astype(np.float32)
        table[generator.random(table.shape) < 0.2] = -np.inf
        lengths = generator.integers(0, min(width, 7) + 1, size=20)
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        own = np.concatenate([table[row, :length] for row, length in enumerate(lengths)])
        compared = _count_by_comparison(table, own, indptr)
        searched = _count_by_sorting(table.copy(), own, indptr)
        assert np.array_equal(compared, searched)
