"""Arithmetic on packed changes is that of whole arrays."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bouquet.packed import PackedArray, PackedRows, surely_finite

ITEMS, WIDTH = 5, 2
changes = st.lists(st.lists(st.integers(0, ITEMS - 1), unique=True).map(sorted), min_size=1, max_size=6)


def packed_and_whole(touched, by_rows=True):
    """The changes of users that touched these rows, as they travel and as tables [k, ITEMS, WIDTH]."""
    random = np.random.default_rng(len(touched))
    whole = np.zeros((len(touched), ITEMS, WIDTH), np.float32)
    for user, rows in enumerate(touched):
        whole[user, rows] = random.normal(size=(len(rows), WIDTH))
    if not by_rows:
        return PackedRows(None, None, whole), whole
    lengths = [len(rows) for rows in touched]
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    rows = np.array([row for rows in touched for row in rows], np.int32)
    values = np.concatenate([whole[user, rows] for user, rows in enumerate(touched)])
    return PackedRows(indptr, rows, values), whole


@given(changes, st.booleans())
def test_users_one_by_one_and_their_norms(touched, by_rows):
    packed, whole = packed_and_whole(touched, by_rows)
    for user in range(len(touched)):
        table = np.zeros((ITEMS, WIDTH))
        rows, values = packed.of_user(user)
        table[rows] = values
        np.testing.assert_array_equal(table, whole[user])
    expected = np.linalg.norm(whole.reshape(len(touched), -1).astype(np.float64), axis=1)
    np.testing.assert_allclose(packed.norms(), expected, rtol=1e-12)


@given(changes, st.booleans())
def test_a_weighted_sum(touched, by_rows):
    packed, whole = packed_and_whole(touched, by_rows)
    weights = np.linspace(-1, 2, len(touched))
    expected = np.einsum("k,kij->ij", weights, whole.astype(np.float64))
    total = np.ones((ITEMS, WIDTH))
    packed.add_weighted(total, weights)
    np.testing.assert_allclose(total, 1 + expected, atol=1e-12)


@pytest.mark.parametrize("rows", [3, 40], ids=["row by row", "user by user"])
def test_a_weighted_sum_is_taken_user_by_user_in_their_order(rows):
    """To the last digit, whichever way is quicker: 40 rows of 32 values are more than 1000 of a user."""
    random, users, width = np.random.default_rng(rows), 7, 32
    packed = PackedRows(
        np.arange(users + 1) * rows,
        np.concatenate([np.sort(random.permutation(50)[:rows]) for _ in range(users)]).astype(np.int32),
        random.normal(size=(users * rows, width)).astype(np.float32),
    )
    weights, expected = random.normal(size=users), np.ones((50, width))
    for user in range(users):
        at, change = packed.of_user(user)
        for row, values in zip(at.tolist(), change, strict=True):
            expected[row] += weights[user] * values
    total = np.ones((50, width))
    packed.add_weighted(total, weights)
    np.testing.assert_array_equal(total, expected)


@given(changes, st.booleans(), st.data())
def test_users_that_follow_one_another_change_their_tables(touched, by_rows, data):
    packed, whole = packed_and_whole(touched, by_rows)
    first = data.draw(st.integers(0, len(touched)))
    users = slice(first, data.draw(st.integers(first, len(touched))))
    tables = np.zeros_like(whole[users])
    at, change = packed.where(users)
    tables[at] += change
    np.testing.assert_array_equal(tables, whole[users])


def test_a_sum_of_some_rows_is_added_to_those():
    total = np.ones((3, 1))
    PackedArray(np.array([0, 2], np.int32), np.array([[2.0], [4.0]])).add_to(total, 0.5)
    np.testing.assert_array_equal(total, [[2.0], [1.0], [3.0]])
    PackedArray(None, np.array([[1.0], [1.0], [1.0]])).add_to(total, 2.0)
    np.testing.assert_array_equal(total, [[4.0], [3.0], [5.0]])


@given(changes, st.booleans(), st.sampled_from([1.0, 2.0]), st.sampled_from([(WIDTH,), ()]), st.data())
def test_changes_are_added_to_tables_where_they_lie(touched, by_rows, factor, shape, data):
    """Of some users who follow one another; a bias has no third axis."""
    packed, whole = packed_and_whole(touched, by_rows)
    if shape == ():
        packed, whole = PackedRows(packed.indptr, packed.rows, packed.values[..., 0].copy()), whole[..., 0]
    begin = data.draw(st.integers(0, len(touched)))
    users = slice(begin, data.draw(st.integers(begin, len(touched))))
    tables = np.ones((len(touched), ITEMS, *shape), np.float32)
    part = tables[users]
    changed = packed.add_to_each(part, users, factor)
    np.testing.assert_array_equal(part, np.float32(1) + np.float32(factor) * whole[users])
    assert (tables[: users.start] == 1).all()
    assert (tables[users.stop :] == 1).all()
    assert changed.size == (part.size if not by_rows else sum(map(len, touched[users])) * (WIDTH if shape else 1))


@given(st.integers(0, 299), st.sampled_from([np.nan, np.inf, -np.inf]), st.sampled_from([np.float32, np.float64]))
def test_one_value_that_is_not_finite_is_always_seen(place, bad, dtype):
    values = np.random.default_rng(0).normal(size=(20, 15)).astype(dtype)
    assert surely_finite(values)
    assert surely_finite(values[:0])
    values[0, 0] = np.finfo(dtype).max  # is finite, and not surely
    assert not surely_finite(values)
    values.reshape(-1)[place] = bad
    assert not surely_finite(values)
