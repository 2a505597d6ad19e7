"""What one user may change, by hand: norms per unit of weight, the round's median, limits for many users."""

import numpy as np
import pytest

from bouquet.arrays import ArraySpec
from bouquet.packed import PackedArray, PackedRows
from bouquet.wire import TrainReply
from strategies.federation.bounds import BEYOND_ALL, LARGEST, bounded

TABLE = {"q": ArraySpec((6, 2), by_item=True)}
NETWORK = {"b": ArraySpec((3,))}


def alone(values, rows=None, weight=1.0, name="q"):
    """The reply of a node with one user."""
    values = np.array(values, np.float32)
    rows = None if rows is None else np.array(rows, np.int32)
    return _reply(1, sums={name: PackedArray(rows, values)}, factor=weight, weight=weight)


def several(values, count, weight):
    """The reply of a node with several users, weighed already."""
    return _reply(count, sums={"q": PackedArray(None, np.array(values, np.float64))}, weight=weight)


def by_user(values, rows, indptr):
    packed = PackedRows(np.array(indptr), np.array(rows, np.int32), np.array(values, np.float32))
    return _reply(len(indptr) - 1, rows={"q": packed})


def _reply(count, **parts):
    users = np.arange(count, dtype=np.uint64)
    return TrainReply(users, np.zeros(count, np.float32), np.zeros(count, np.int64), **parts)


HONEST = [[[3.0, 4.0], [0.0, 0.0]], [[0.0, 5.0], [0.0, 0.0]], [[5.0, 0.0], [0.0, 0.0]], [[4.0, 3.0], [0.0, 0.0]]]


def test_a_blown_up_row_is_scaled_to_the_limit_and_the_others_keep_their_last_digit():
    """Four rows of norm 5 and one of norm 50: the median is 5, and with B = 2 row and whole may have norm 10."""
    replies = [alone(values, [1, 2]) for values in HONEST] + [alone([[30.0, 40.0], [0.0, 1.0]], [1, 2])]
    found = bounded(replies, TABLE, 2.0)
    assert (found.users, found.nodes, found.refused) == (1, 1, {})
    for before, after in zip(replies[:4], found.replies[:4], strict=True):
        assert after is before
    # The row comes to (6, 8); with the untouched (0, 1) the whole has norm √101, and 10 / √101 scales both.
    expected = np.array([[6.0, 8.0], [0.0, 1.0]]) * 10 / np.sqrt(101)
    np.testing.assert_allclose(found.replies[4].sums["q"].values, expected, rtol=1e-6)
    assert found.replies[4].sums["q"].values.dtype == np.float32


def test_a_longer_history_counts_for_more_and_a_made_up_one_for_little():
    """Changes of norm 5 alike; the weighed ones are 0, 5, 15, 50 and 5 w: the median is 15, and 6 · 15 is the limit."""
    for weight, scaled in ((18.0, 0), (36.0, 1)):
        replies = [alone(values, [1, 2], w) for values, w in zip(HONEST, (1.0, 10.0, 0.0, 3.0), strict=True)]
        replies.append(alone([[3.0, 4.0], [0.0, 0.0]], [1, 2], weight))
        found = bounded(replies, TABLE, 1.0)
        assert found.users == scaled
        np.testing.assert_allclose(found.replies[4].sums["q"].values[0], [3.0 / (1 + scaled), 4.0 / (1 + scaled)])


def test_a_sum_may_be_as_large_as_its_users_pull_together():
    """Five single users of norm 5. Four users whose weights sum to 8 may have 8 · 5 with B = 1, and no more."""
    singles = [alone([[0.0, 5.0]], [0])] * 5
    for size, scaled in ((40.0, 0), (80.0, 4)):
        table = np.zeros((6, 2))
        table[3, 1] = size
        found = bounded([*singles, several(table, 4, 8.0)], TABLE, 1.0)
        assert (found.users, found.nodes) == (scaled, int(scaled > 0))
        assert found.replies[-1].sums["q"].values[3, 1] == 40.0


def test_a_single_user_among_sums_is_not_held_to_their_means():
    """Means of 10 users have norm 1; one of these users alone may have had 10."""
    table = np.zeros((6, 2))
    table[0, 0] = 10.0
    sums = [several(table, 10, 10.0)] * 5
    assert bounded([*sums, alone([[10.0, 0.0]], [0])], TABLE, 1.0).users == 0
    assert bounded([*sums, alone([[11.0, 0.0]], [0])], TABLE, 1.0).users == 1


def test_each_user_of_a_rows_reply_is_held_to_the_same():
    values = [[0, 2], [0, 2], [2, 0], [0, 2], [8, 0], [0, 1]]
    found = bounded([by_user(values, [0, 1, 2, 0, 3, 5], [0, 1, 2, 3, 4, 4, 6])], TABLE, 2.0)
    assert (found.users, found.nodes) == (1, 1)
    expected = np.array([[4.0, 0.0], [0.0, 1.0]]) * 4 / np.sqrt(17)
    np.testing.assert_allclose(found.replies[0].rows["q"].values[4:], expected, rtol=1e-6)
    np.testing.assert_array_equal(found.replies[0].rows["q"].values[:4], values[:4])


def test_whole_tables_of_users_are_measured_by_row_too():
    tables = np.ones((6, 6, 2), np.float32)
    tables[5, 3] = 40.0
    found = bounded([_reply(6, rows={"q": PackedRows(None, None, tables)})], TABLE, 3.0)
    values = found.replies[0].rows["q"].values
    np.testing.assert_array_equal(values[:5], tables[:5])
    np.testing.assert_allclose(np.linalg.norm(values[5, 3]), 3 * np.sqrt(2), rtol=1e-6)


def test_an_array_without_rows_is_measured_as_a_whole():
    found = bounded([alone([0.0, 0.0, 1.0], name="b")] * 5 + [alone([0.0, 9.0, 12.0], name="b")], NETWORK, 5.0)
    np.testing.assert_allclose(found.replies[-1].sums["b"].values, [0.0, 3.0, 4.0])


def test_far_beyond_everything_is_refused():
    """A node of one user as a whole; of a node with many users whose changes are known, only this user."""
    beyond = 1.01 * BEYOND_ALL
    found = bounded([*[alone([[1.0, 0.0]], [0])] * 5, alone([[beyond, 0.0]], [0])], TABLE, 1.0)
    assert found.kept == [0, 1, 2, 3, 4]
    assert list(found.refused) == [5]
    values = [*[[1.0, 0.0]] * 5, [beyond, 0.0]]
    found = bounded([by_user(values, [0] * 6, range(7))], TABLE, 1.0)
    assert found.refused[0].keys() == {5}
    assert found.replies[0].users.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("bound", [0.0, 25.0])
def test_what_overflows_when_it_is_squared_is_refused_whatever_the_bound(bound):
    for replies in (
        [alone([[2 * LARGEST, 0.0]], [0])],
        [alone([[LARGEST / 2, 0.0]], [0], weight=10.0)],
        [several(np.full((6, 2), 1e300), 2, 2.0)],
        [by_user([[LARGEST, LARGEST]], [0], [0, 1])],
    ):
        found = bounded(replies, TABLE, bound)
        assert (found.replies, list(found.refused)) == ([], [0])


def test_without_a_bound_or_with_too_few_parts_nothing_is_scaled():
    replies = [alone([[1.0, 0.0]], [0])] * 4
    assert bounded([*replies, *replies, alone([[1e6, 0.0]], [0])], TABLE, 0.0).users == 0
    assert bounded([*replies[:3], alone([[1e6, 0.0]], [0])], TABLE, 1.0).users == 0
    # Who changed nothing is no measure.
    silent = [alone(np.zeros((0, 2)), [])] * 9
    assert bounded([*silent, alone([[1e6, 0.0]], [0])], TABLE, 1.0).users == 0
