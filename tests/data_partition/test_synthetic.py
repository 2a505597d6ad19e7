"""The built-in set."""

from __future__ import annotations

import numpy as np
import pytest

from bouquet.errors import DataError
from data_partition import leave_one_out, load, synthetic


def hit_rate(scores: np.ndarray, seen: np.ndarray, test: np.ndarray) -> float:
    """HR@10 over all unseen items."""
    scores = np.where(seen > 0, -np.inf, scores)
    own = scores[np.arange(len(test)), test][:, None]
    rank = 1 + (scores > own).sum(axis=1) + ((scores == own).sum(axis=1) - 1) / 2
    return float((rank <= 10).mean())


@pytest.mark.parametrize("seed", [0, 1])
def test_there_is_something_to_learn(seed):
    """Popularity reaches about .07 and EASE (item-item ridge regression) about .15 to .18; chance is .013."""
    made = synthetic(seed=seed)
    split = leave_one_out(made)
    train = np.zeros((made.num_users, made.num_items))
    train[split.train.row_of_value, split.train.values] = 1
    seen = train.copy()
    seen[split.validation.row_of_value, split.validation.values] = 1
    inverse = np.linalg.inv(train.T @ train + 100 * np.eye(made.num_items))
    weights = -inverse / np.diag(inverse)
    np.fill_diagonal(weights, 0)
    popularity = hit_rate(np.tile(train.sum(axis=0), (len(train), 1)), seen, split.test.values)
    ease = hit_rate(train @ weights, seen, split.test.values)
    assert 0.05 < popularity < 0.1
    assert 1.7 < ease / popularity < 3


def test_the_default_set():
    made = load("synthetic")
    assert (made.num_users, made.num_items, made.num_interactions) == (600, 800, 38_254)
    assert made.has_time
    assert made.titles[0].endswith(" 1")
    lengths = made.histories.lengths
    assert lengths.min() >= 10
    assert np.median(lengths) < lengths.mean(), "numbers of interactions are skewed"
    popularity = np.sort(np.bincount(made.histories.values))[::-1]
    assert popularity[:80].sum() > 0.25 * popularity.sum(), "a tenth of the items has more than a quarter"


def test_equal_arguments_give_equal_data():
    first, second, third = synthetic(50, 100), synthetic(50, 100), synthetic(50, 100, seed=1)
    assert (first.histories.values == second.histories.values).all()
    assert not np.array_equal(first.histories.values, third.histories.values)
    loaded, made = load("synthetic"), synthetic()
    assert (loaded.histories.values == made.histories.values).all()
    assert loaded.titles == made.titles
    assert (loaded.user_keys == made.user_keys).all()


def test_no_repeats_and_the_filter_works():
    made = synthetic(200, 60)
    for row in range(made.num_users):
        assert len(set(made.histories.row(row).tolist())) == made.histories.lengths[row]
    filtered = load("synthetic", min_interactions=40)
    assert filtered.histories.lengths.min() >= 40
    assert filtered.dropped_users + filtered.num_users == 600


def test_any_size():
    """More users than fit into one block."""
    made = synthetic(9000, 500, mean_length=20)
    assert made.num_users == 9000
    assert made.histories.lengths.mean() == pytest.approx(20, abs=0.5)
    with pytest.raises(DataError, match="at least 1 user, 21 items"):
        synthetic(10, 20)
