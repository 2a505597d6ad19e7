"""From rows of events to numbered histories."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bouquet.errors import ConfigError, DataError
from bouquet.randomness import user_key
from data_partition import from_table, stats
from data_partition.interactions import natural_order
from tests.data_partition.tables import interactions, raw_histories

EVENTS = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 8), st.integers(0, 4)),
    min_size=1,
    max_size=60,
)


def test_oldest_first_and_numbered_in_order():
    """Gaps between ids close; 10 comes after 9; equal times keep the order of the rows."""
    made = interactions((10, 500, 7), (9, 3, 5), (10, 40, 6), (10, 3, 7))
    assert made.user_ids.tolist() == ["9", "10"]
    assert made.item_ids.tolist() == ["3", "40", "500"]
    assert raw_histories(made) == {"9": ["3"], "10": ["40", "500", "3"]}
    assert made.has_time
    assert (made.num_users, made.num_items, made.num_interactions) == (2, 3, 4)


def test_without_time_the_rows_decide():
    made = interactions((1, 9), (2, 9), (1, 4))
    assert raw_histories(made) == {"1": ["9", "4"], "2": ["9"]}
    assert not made.has_time
    assert interactions((1, 9), (2, 9), (1, 4), in_order=True).has_time


def test_of_repeated_pairs_the_oldest_stays():
    """Item 4 is met at time 2 and again at 8: with the later one dropped it comes before item 5."""
    rows = [(1, 4, 8), (1, 5, 3), (1, 4, 2)]
    made = interactions(*rows)
    assert raw_histories(made) == {"1": ["4", "5"]}
    assert (made.rows, made.duplicates) == (3, 1)
    kept = interactions(*rows, repeats="keep")
    assert raw_histories(kept) == {"1": ["4", "5", "4"]}
    assert (kept.rows, kept.duplicates, kept.num_interactions) == (3, 1, 3)
    with pytest.raises(ConfigError, match="'drop' or 'keep'"):
        interactions(*rows, repeats="some")


def test_short_users_are_dropped_with_the_items_that_only_they_had():
    """User 2 has two rows but one distinct item; item 8 disappears with the user."""
    rows = [(1, 3, 1), (1, 4, 2), (2, 8, 1), (2, 8, 2)]
    for repeats in ("drop", "keep"):
        made = interactions(*rows, min_interactions=2, repeats=repeats)
        assert made.user_ids.tolist() == ["1"]
        assert made.item_ids.tolist() == ["3", "4"]
        assert (made.dropped_users, made.duplicates) == (1, 1)
    with pytest.raises(DataError, match="tiny: none of the 2 users has 3 or more distinct items"):
        interactions(*rows, min_interactions=3)


def test_missing_values_are_refused_with_their_row():
    table = pd.DataFrame({"user": ["a", "b"], "item": ["x", None], "time": [1.0, 2.0]})
    with pytest.raises(DataError, match="mine, row 2: no value in column 'item'"):
        from_table("mine", table)
    with pytest.raises(DataError, match="mine has no rows"):
        from_table("mine", table[:0])


def test_text_ids_are_kept_as_they_stand():
    made = interactions(("7", "b"), ("007", "a"), ("NA", "b"))
    assert made.user_ids.tolist() == ["007", "7", "NA"]
    assert made.user_keys.tolist() == [user_key(user) for user in ("007", "7", "NA")]
    assert made.user_keys is made.user_keys


def test_titles_follow_the_items():
    made = interactions((1, 20), (1, 3), titles={"20": "twenty", "99": "nobody's"})
    assert made.titles == ("", "twenty")


@pytest.mark.parametrize(
    ("ids", "expected"),
    [(["10", "9", "-1"], [2, 1, 0]), (["10", "9", "b"], [0, 1, 2]), (["7", "07"], [1, 0]), (["²", "1"], [1, 0])],
)
def test_natural_order(ids, expected):
    assert natural_order(ids) == expected


@given(EVENTS, st.randoms())
def test_the_order_of_users_in_the_file_has_no_say(events, random):
    """Rows may be mixed in any way that keeps each user's own rows in order."""
    users = [user for user, _, _ in events]
    random.shuffle(users)
    queues = {user: iter([event for event in events if event[0] == user]) for user in users}
    mixed = [next(queues[user]) for user in users]
    first, second = interactions(*events), interactions(*mixed)
    assert raw_histories(first) == raw_histories(second)
    assert first.item_ids.tolist() == second.item_ids.tolist()


@given(EVENTS)
def test_every_pair_once_and_nothing_else(events):
    made = interactions(*events)
    pairs = {(user, item) for user, items in raw_histories(made).items() for item in items}
    assert pairs == {(str(user), str(item)) for user, item, _ in events}
    assert made.num_interactions == len(pairs)
    assert made.rows == made.num_interactions + made.duplicates
    assert made.histories.values.dtype == np.int32


def test_stats_by_hand():
    """Lengths 3 and 1; 4 of 2 * 3 pairs."""
    made = interactions((1, 1), (1, 2), (1, 3), (2, 3), (2, 3))
    numbers = stats(made)
    assert numbers["average"] == 2
    assert numbers["median"] == 2
    assert (numbers["min"], numbers["max"]) == (1, 3)
    assert numbers["density"] == pytest.approx(4 / 6)
    assert numbers["sparsity"] == pytest.approx(2 / 6)
    assert (numbers["rows"], numbers["duplicates"], numbers["dropped_users"]) == (5, 1, 0)
