"""The stages of HeteFedRec by hand and by their properties: groups, padding, distillation, collapse."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from bouquet.evaluation import singular_value_variance
from strategies.hetefedrec import (
    aggregate_padded,
    assign_groups,
    boundaries,
    distill,
    distillation_gradient,
    distillation_loss,
    group_by_size,
)

SIZES = some.lists(some.integers(0, 50), min_size=0, max_size=60)
RATIOS = some.lists(some.integers(1, 9), min_size=1, max_size=5)


# -- groups ------------------------------------------------------------------------------------------------------------


def test_groups_of_ten_users_by_hand():
    """5:3:2 of ten: the five smallest, the next three, the two largest. Of the two 7s the first is small."""
    sizes = np.array([9, 1, 7, 7, 30, 2, 3, 40, 4, 8])
    assert assign_groups(sizes).tolist() == [1, 0, 0, 1, 2, 0, 0, 2, 0, 1]


def test_groups_of_any_number():
    assert assign_groups(np.arange(4), (1, 1, 1, 1)).tolist() == [0, 1, 2, 3]
    assert assign_groups(np.arange(4), (1,)).tolist() == [0, 0, 0, 0]


@given(SIZES, RATIOS)
def test_more_data_is_never_a_smaller_model(sizes, ratio):
    sizes = np.array(sizes, dtype=np.int64)
    groups = assign_groups(sizes, ratio)
    order = np.argsort(sizes, kind="stable")
    assert (np.diff(groups[order]) >= 0).all()
    ends = np.cumsum(ratio) * len(sizes) / sum(ratio)
    counts = np.cumsum(np.bincount(groups, minlength=len(ratio)))
    assert (np.abs(counts - ends) <= 0.5 + 1e-9).all()


@given(SIZES, RATIOS)
def test_nobody_moves_without_new_data(sizes, ratio):
    """What the boundaries say of the users that they come from is never above their group."""
    sizes = np.array(sizes, dtype=np.int64)
    groups = assign_groups(sizes, ratio)
    assert (group_by_size(sizes, boundaries(sizes, groups, len(ratio))) <= groups).all()


def test_who_grows_past_a_boundary_moves_up():
    sizes = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
    bounds = boundaries(sizes, assign_groups(sizes), 3)
    assert bounds.tolist() == [5, 8]
    assert group_by_size(np.array([5, 6, 8, 9, 100, 0]), bounds).tolist() == [0, 1, 1, 2, 2, 0]


@pytest.mark.parametrize("ratio", [(), (0, 1), (1, -1)])
def test_an_impossible_ratio_is_refused(ratio):
    with pytest.raises(ValueError, match="positive shares"):
        assign_groups(np.arange(3), ratio)


# -- aggregation -------------------------------------------------------------------------------------------------------


def test_padding_by_hand():
    """Two users of width 1 (changes 1 and 3), one of width 2 (change (5, 8)): the first column is held by three users,
    the second by one. Sums (9, 8), means (3, 8)."""
    updates = [np.array([[1.0]]), np.array([[3.0]]), np.array([[5.0, 8.0]])]
    np.testing.assert_array_equal(aggregate_padded(updates, [1, 1, 2], "sum"), [[9, 8]])
    np.testing.assert_array_equal(aggregate_padded(updates, [1, 1, 2]), [[3, 8]])


def test_weights_by_hand():
    """A sum of users that weigh 4 together, (8), and one that weighs 1, (2, 6): (10 / 5, 6 / 1)."""
    updates = [np.array([[8.0]]), np.array([[2.0, 6.0]])]
    np.testing.assert_array_equal(aggregate_padded(updates, [1, 2], weights=[4, 1]), [[2, 6]])


@given(some.lists(some.integers(1, 6), min_size=1, max_size=8), some.integers(0, 2**32 - 1))
def test_a_block_is_the_mean_over_those_who_hold_it(widths, seed):
    random = np.random.default_rng(seed)
    updates = [random.normal(size=(3, width)) for width in widths]
    mean = aggregate_padded(updates, widths)
    for column in range(max(widths)):
        holders = [update[:, column] for update, width in zip(updates, widths, strict=True) if width > column]
        np.testing.assert_allclose(mean[:, column], np.mean(holders, axis=0), atol=1e-12)


def test_nobody_holds_a_block_this_time():
    updates = [np.ones((2, 1)), np.zeros((2, 3))]
    np.testing.assert_array_equal(aggregate_padded(updates, [1, 3], weights=[2.0, 0.0]), [[0.5, 0, 0]] * 2)


def test_updates_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"should have shape \[2, 3\], not \[2, 2\]"):
        aggregate_padded([np.ones((2, 2))], [3])
    with pytest.raises(ValueError, match="as many widths"):
        aggregate_padded([np.ones((2, 2))], [])


# -- distillation ------------------------------------------------------------------------------------------------------


def tables(seed=0, widths=(2, 3, 5), items=12):
    random = np.random.default_rng(seed)
    return [random.normal(size=(items, width)) for width in widths]


def test_the_loss_by_hand():
    """Two items. In the first table they point the same way (cosine 1), in the second at right angles (0). The ensemble
    says 1/2, so each table is off by 1/2 in two entries: 2 · 2 · 1/4 = 1."""
    alike, apart = np.array([[1.0], [3.0]]), np.array([[1.0, 0.0], [0.0, 2.0]])
    assert distillation_loss([alike, apart], np.array([0, 1])) == pytest.approx(1.0)


@pytest.mark.parametrize("width", [1, 2, 5])
def test_the_gradient_by_finite_differences(width):
    rows, ensemble = tables(1, (width,), 6)[0], np.full((6, 6), 0.3)

    def loss(rows):
        units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return np.square(units @ units.T - ensemble).sum()

    found, step = distillation_gradient(rows, ensemble), 1e-6
    for place in np.ndindex(rows.shape):
        moved = np.zeros_like(rows)
        moved[place] = step
        assert found[place] == pytest.approx((loss(rows + moved) - loss(rows - moved)) / (2 * step), abs=1e-6)


@given(some.integers(0, 1000), some.integers(1, 4))
def test_tables_that_agree_are_left_alone(seed, count):
    """Equal tables, and equal ones next to columns of zeros, have the same cosines."""
    (table,) = tables(seed, (4,))
    wider = np.pad(table, ((0, 0), (0, 3)))
    before = [table] * count + [wider]
    for found, expected in zip(distill(before, np.arange(8), 3, 0.1), before, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-12)


@given(some.integers(0, 1000), some.integers(1, 3))
def test_distillation_lowers_its_loss(seed, steps):
    before, items = tables(seed), np.arange(2, 12)
    after = distill(before, items, steps, 1e-4)
    assert distillation_loss(after, items) < distillation_loss(before, items)


@given(some.integers(0, 1000), some.floats(1e-3, 1e3), some.floats(1e-6, 1e3))
def test_no_step_is_too_long(seed, scale, learning_rate):
    """However short the rows are, and whatever the rate."""
    before, items = [scale * table for table in tables(seed)], np.arange(2, 12)
    after = distill(before, items, 2, learning_rate)
    assert distillation_loss(after, items) < distillation_loss(before, items)


def test_only_chosen_rows_move_and_rows_of_zeros_stay():
    before = tables()
    before[0][3] = 0
    copies = [table.copy() for table in before]
    after = distill(before, np.array([3, 5, 7]), 1, 0.01)
    for old, copy, new in zip(before, copies, after, strict=True):
        np.testing.assert_array_equal(old, copy)
        moved = (old != new).any(axis=1)
        assert not moved[[0, 1, 2, 4, 6]].any()
        assert moved[[5, 7]].all()
    assert (after[0][3] == 0).all()


# -- collapse ----------------------------------------------------------------------------------------------------------


def test_the_variance_of_singular_values_by_hand():
    """Columns (0, 2, 0, -2)·a and (2, 0, -2, 0)·b have covariance diag(8a²/3, 8b²/3): with a² = 3/8 and b = 0 the
    singular values are 1 and 0, whose variance is 1/4; with equal columns of the plane's axes it is 0."""
    first, second = np.array([0, 2, 0, -2.0]), np.array([2, 0, -2, 0.0])
    assert float(singular_value_variance(np.stack([first * np.sqrt(3 / 8), 0 * second], axis=1))) == pytest.approx(0.25)
    assert float(singular_value_variance(np.stack([first, second], axis=1))) == pytest.approx(0.0)
