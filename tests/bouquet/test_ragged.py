"""Ragged rows: what goes in comes out, in order."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bouquet.ragged import Ragged, one_after_another, picked, positions

rows = st.lists(st.lists(st.integers(0, 30), max_size=6), max_size=8)


def build(lists):
    return Ragged.from_lengths([len(row) for row in lists], [value for row in lists for value in row])


@given(rows)
def test_rows_come_back(lists):
    ragged = build(lists)
    assert [list(ragged.row(i)) for i in range(len(ragged))] == lists
    assert list(positions(ragged.lengths)) == [i for row in lists for i in range(len(row))]


@given(rows, st.data())
def test_take_gives_the_rows_asked_for(lists, data):
    chosen = data.draw(st.lists(st.integers(0, max(len(lists) - 1, 0)), max_size=10)) if lists else []
    taken = build(lists).take(chosen)
    assert [list(taken.row(i)) for i in range(len(taken))] == [lists[c] for c in chosen]


@given(rows, st.randoms())
def test_from_pairs_keeps_the_order_inside_a_row(lists, random):
    pairs = [(row, value) for row, values in enumerate(lists) for value in values]
    owners = [row for row, _ in pairs]
    random.shuffle(owners)  # interleave the rows, keep each row's own order
    queues = [list(values) for values in lists]
    values = [queues[row].pop(0) for row in owners]
    ragged = Ragged.from_pairs(np.array(owners, dtype=int), values, len(lists))
    assert [list(ragged.row(i)) for i in range(len(ragged))] == lists


@given(rows, st.data())
def test_between_is_a_view_of_neighbouring_rows(lists, data):
    start = data.draw(st.integers(0, len(lists)))
    stop = data.draw(st.integers(start, len(lists) + 3))
    part = build(lists).between(slice(start, stop))
    assert [list(part.row(i)) for i in range(len(part))] == lists[start:stop]


@given(st.lists(st.tuples(*[st.lists(st.integers(0, 30), max_size=6)] * 2), max_size=8))
def test_row_by_row_one_after_another(pairs):
    first, second = (build([pair[k] for pair in pairs]) for k in range(2))
    joined = one_after_another(first, second)
    assert [list(joined.row(i)) for i in range(len(pairs))] == [a + b for a, b in pairs]
    assert joined.values.dtype == np.int32


def test_neighbours_are_picked_as_a_view():
    values = np.arange(12.0).reshape(4, 3)
    for rows, view in (([1, 2, 3], True), ([3], True), ([2, 1], False), ([0, 2], False)):
        found = picked(values, np.array(rows))
        np.testing.assert_array_equal(found, values[rows])
        assert np.shares_memory(found, values) == view
