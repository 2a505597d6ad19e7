from __future__ import annotations

from math import log2

import numpy as np
import pytest

from bouquet.evaluation import METRICS, Ranks, user_metrics


def metrics(*users: list[tuple[int, int]]) -> list[dict[str, float]]:
    """The metrics of users given as lists of (higher, equal), one pair per held-out item."""
    flat = [pair for user in users for pair in user]
    indptr = np.concatenate([[0], np.cumsum([len(user) for user in users])])
    ranks = Ranks(indptr, *(np.array([pair[part] for pair in flat], dtype=np.int64) for part in (0, 1)))
    return [dict(zip(METRICS, row, strict=True)) for row in user_metrics(ranks).tolist()]


def test_names():
    assert (
        *("HR@5", "NDCG@5", "Recall@5"),
        *("HR@10", "NDCG@10", "Recall@10"),
        *("HR@20", "NDCG@20", "Recall@20"),
        "MRR",
    ) == METRICS


def test_one_held_out_item_without_ties():
    """Six candidates score higher: rank 7. A miss at 5, a hit at 10 worth 1 / log2(8) = 1/3."""
    (user,) = metrics([(6, 0)])
    assert (user["HR@5"], user["NDCG@5"], user["Recall@5"]) == (0, 0, 0)
    assert (user["HR@10"], user["Recall@10"]) == (1, 1)
    assert user["NDCG@10"] == pytest.approx(1 / 3)
    assert user["MRR"] == pytest.approx(1 / 7)


def test_a_tie_takes_the_mean_discount_of_its_positions():
    """None higher, two equal: rank 2, positions 1, 2, 3, discounts 1, 1/log2(3), 1/2."""
    (user,) = metrics([(0, 2)])
    assert user["NDCG@5"] == pytest.approx((1 + 1 / log2(3) + 1 / 2) / 3)
    assert user["MRR"] == 1 / 2


def test_a_tie_across_the_cutoff():
    """Three higher, four equal: rank 6, positions 4..8. At 5 the rank is outside: no hit, no gain, although two
    of the five tie orders lie inside. At 10 all positions count.

    Three higher, two equal: rank 5 is a hit at 5; positions 4, 5, 6, of which 6 gives nothing.
    """
    outside, inside = metrics([(3, 4)], [(3, 2)])
    assert (outside["HR@5"], outside["NDCG@5"]) == (0, 0)
    assert outside["NDCG@10"] == pytest.approx(sum(1 / log2(p + 1) for p in range(4, 9)) / 5)
    assert inside["HR@5"] == 1
    assert inside["NDCG@5"] == pytest.approx((1 / log2(5) + 1 / log2(6)) / 3)


def test_several_held_out_items():
    """Ranks 1, 4 and 12 of three held-out items.

    At 5: two of three found, DCG = 1 + 1/log2(5), IDCG = 1 + 1/log2(3) + 1/2. At 20 all are found.
    """
    (user,) = metrics([(0, 0), (3, 0), (11, 0)])
    ideal = 1 + 1 / log2(3) + 1 / 2
    assert user["HR@5"] == 1
    assert user["Recall@5"] == pytest.approx(2 / 3)
    assert user["NDCG@5"] == pytest.approx((1 + 1 / log2(5)) / ideal)
    assert user["Recall@20"] == 1
    assert user["NDCG@20"] == pytest.approx((1 + 1 / log2(5) + 1 / log2(13)) / ideal)
    assert user["MRR"] == 1


def test_two_held_out_items_tied_with_each_other_lose_nothing():
    """Both rank 1.5 and take positions 1 and 2 in either order: each is worth (1 + 1/log2(3)) / 2, so DCG = IDCG."""
    (user,) = metrics([(0, 1), (0, 1)])
    assert user["NDCG@5"] == pytest.approx(1)
    assert user["MRR"] == pytest.approx(1 / 1.5)


def test_more_held_out_items_than_places():
    """Seven held-out items at ranks 1 to 7: five of seven at 5, and a perfect NDCG@5, as IDCG has five terms."""
    (user,) = metrics([(higher, 0) for higher in range(7)])
    assert user["Recall@5"] == pytest.approx(5 / 7)
    assert user["NDCG@5"] == pytest.approx(1)


def test_a_user_without_a_held_out_item_is_not_evaluated():
    nobody, somebody = metrics([], [(0, 0)])
    assert all(np.isnan(value) for value in nobody.values())
    assert set(somebody.values()) == {1.0}


def test_no_users():
    assert user_metrics(Ranks(np.zeros(1, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))).shape == (0, 10)
