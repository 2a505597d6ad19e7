"""Histories in which items come back, and what a method of sums makes of them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bouquet.methods.parts import OwnItemsOptions
from bouquet.ragged import Ragged
from client_app.sums.own_items import each_once, with_own_items

HISTORIES = st.lists(st.lists(st.integers(0, 5), max_size=12), min_size=1, max_size=5)


def ragged(histories):
    return Ragged.from_lengths([len(h) for h in histories], [item for h in histories for item in h])


def rows(histories):
    return [histories.row(user).tolist() for user in range(len(histories))]


def test_of_an_item_that_comes_again_the_last_event_stays():
    assert rows(each_once(ragged([[2, 1, 2, 3, 1], [], [4, 4, 4], [0]]))) == [[2, 3, 1], [], [4], [0]]


@given(HISTORIES)
def test_each_once_is_what_a_loop_leaves(histories):
    expected = [[item for at, item in enumerate(h) if item not in h[at + 1 :]] for h in histories]
    once = each_once(ragged(histories))
    assert rows(once) == expected
    assert rows(each_once(once)) == expected


def test_own_items_by_hand():
    """w = 2, a = 1. User 0 had 3, then 1; its best score is 4: item 1 gets 2 · 4 = 8, item 3 half of that.

    User 1 has nothing, and user 2, for whom nothing speaks, had 0: 1 stands for its best score.
    """
    scores = np.array([[1, 2, 4, 0], [1, 2, 3, 0], [0, 0, 0, -1]], np.float32)
    found = with_own_items(scores, ragged([[3, 1], [], [0]]), OwnItemsOptions())
    np.testing.assert_allclose(found, [[1, 10, 4, 4], [1, 2, 3, 0], [2, 0, 0, -1]])
    assert found.dtype == np.float32
    np.testing.assert_array_equal(scores[0], [1, 2, 4, 0])  # the caller's own stay as they are


def test_without_weight_nothing_changes():
    scores = np.array([[1, 2, 4, 0]], np.float32)
    np.testing.assert_array_equal(with_own_items(scores, ragged([[3, 1]]), OwnItemsOptions(own_items_weight=0)), scores)


def test_scores_that_are_not_finite_stay_so():
    scores = np.array([[np.nan, 2, 4, 0]], np.float32)
    assert np.isnan(with_own_items(scores, ragged([[3, 1]]), OwnItemsOptions())[0, 0])
