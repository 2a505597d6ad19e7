"""From single changes to one update: sums by hand, and the compiled sum against the plain one."""

import numpy as np
import pytest

from bouquet.ragged import Ragged
from client_app.node import updates


@pytest.fixture(params=["compiled", "plain"])
def either(request, monkeypatch):
    """Runs a test with the kernels and without."""
    if request.param == "plain":
        monkeypatch.setattr(updates, "row_kernels", lambda: None)
    return request.param


def test_weighted_sum_by_hand(either):
    """User 0 (weight 2) changes rows 0 and 2 by 1 and 3; user 2 (weight 10) changes row 2 by 0.5; user 1 nothing.

    Row 0: 2 * 1 = 2. Row 2: 2 * 3 + 10 * 0.5 = 11.
    """
    table = np.zeros((3, 1))
    rows = Ragged.from_lengths([2, 0, 1], [0, 2, 2])
    values = np.array([[1.0], [3.0], [0.5]], dtype=np.float32)
    updates.add_rows(table, rows, values, np.array([2.0, 7.0, 10.0]))
    np.testing.assert_array_equal(table, [[2], [0], [11]])


def test_nothing_to_add(either):
    table = np.ones((3, 2))
    updates.add_rows(table, Ragged.from_lengths([0], []), np.zeros((0, 2), np.float32), np.ones(1))
    assert (table == 1).all()


def test_many_users_against_a_dense_sum(either):
    random = np.random.default_rng(0)
    lengths = random.integers(0, 9, 30)
    rows = Ragged.from_lengths(lengths, np.concatenate([random.choice(20, n, replace=False) for n in lengths]))
    values, weights = random.normal(size=(len(rows.values), 4)).astype(np.float32), random.uniform(size=30)
    expected = np.zeros((20, 4))
    for user in range(30):
        part = slice(rows.indptr[user], rows.indptr[user + 1])
        expected[rows.values[part]] += weights[user] * values[part]
    table = np.zeros((20, 4))
    updates.add_rows(table, rows, values, weights)
    np.testing.assert_allclose(table, expected, rtol=1e-12)


def test_whole_arrays_of_many_users(either):
    """More values than are added up at once, of a part of wider arrays."""
    random = np.random.default_rng(1)
    values, weights = random.normal(size=(7, 50, 80)).astype(np.float32)[:, :, :45], random.uniform(size=7)
    total = np.ones((50, 45))
    updates.add_whole(total, values, weights)
    np.testing.assert_allclose(total, 1 + np.einsum("u,uab->ab", weights, values.astype(np.float64)), rtol=1e-13)


def test_whole_arrays_of_nobody(either):
    total = np.ones((2, 3))
    updates.add_whole(total, np.zeros((0, 2, 3), np.float32), np.zeros(0))
    assert (total == 1).all()
