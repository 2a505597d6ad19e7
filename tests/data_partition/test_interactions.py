"""From rows of events to numbered histories."""

from __future__ import annotations

from operator import attrgetter

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
    """Gaps between ids close; 10 comes after 9."""
    made = interactions((10, 500, 7), (9, 3, 5), (10, 40, 6), (10, 3, 8))
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


def same(first, second):
    """Whether two Interactions are equal in everything."""
    arrays = ("user_ids", "item_ids", "histories.indptr", "histories.values")
    return all(np.array_equal(attrgetter(name)(first), attrgetter(name)(second)) for name in arrays) and all(
        getattr(first, name) == getattr(second, name)
        for name in ("name", "has_time", "titles", "rows", "duplicates", "dropped_users", "repeats")
    )


@given(EVENTS, st.randoms(), st.sampled_from(["drop", "keep"]), st.integers(0, 3))
def test_with_times_the_order_of_the_rows_has_no_say(events, random, repeats, least):
    """Most of these events have the time of another one of the same user, some also its item."""
    rows = [*events, (7, 0, 0), (7, 1, 0), (7, 2, 0)]
    mixed = random.sample(rows, len(rows))
    options = {"repeats": repeats, "min_interactions": least}
    assert same(interactions(*rows, **options), interactions(*mixed, **options))


@given(EVENTS, EVENTS)
def test_other_users_and_their_items_have_no_say_in_a_users_order(events, others):
    """Also not in the numbers of its items, which move when others bring items of their own."""
    alone = raw_histories(interactions(*events))
    everybody = raw_histories(interactions(*events, *((user + 100, item * 3 - 7, time) for user, item, time in others)))
    assert {user: everybody[user] for user in alone} == alone


@given(EVENTS)
def test_times_go_before_the_draw(events):
    """Of two items of a user the earlier first met is the older one, and times may be of any type."""
    made = raw_histories(interactions(*events))
    met: dict[tuple[str, str], int] = {}
    for user, item, time in events:
        met[str(user), str(item)] = min(time, met.get((str(user), str(item)), time))
    for user, items in made.items():
        times = [met[user, item] for item in items]
        assert times == sorted(times)
    dated = interactions(*((user, item, pd.Timestamp("2026-01-01") + pd.Timedelta(days=t)) for user, item, t in events))
    assert raw_histories(dated) == made


def test_equal_times_do_not_tell_which_item_is_last():
    """2,000 users with 5 items of one time each, in a file that ascends by item: the largest id is last in a fifth of
    them, give or take 3.5 standard errors sqrt(.2 * .8 / 2,000), and so is the smallest; every place is as likely."""
    users, each = 2000, 5
    items = np.sort(np.random.default_rng(0).permuted(np.tile(np.arange(300), (users, 1)), axis=1)[:, :each])
    table = pd.DataFrame({"user": np.repeat(np.arange(users), each), "item": items.ravel(), "time": 1})
    made = from_table("ascending", table)
    place = made.histories.values.reshape(users, each).argsort(axis=1)
    for column in range(each):
        shares = np.bincount(place[:, column], minlength=each) / users
        assert np.abs(shares - 0.2).max() < 3.5 * np.sqrt(0.2 * 0.8 / users)


def test_the_draw_between_equal_times_is_one_of_identities():
    """The same user and items in another set, with other numbers and as text: the same order."""
    few = interactions(("u", "5", 1), ("u", "30", 1), ("u", "200", 1), ("u", "7", 1))
    more = interactions((1, 6, 0), *((2, item, 9) for item in range(300)))
    table = pd.DataFrame([("u", item, 4) for item in (200, 7, 30, 5)], columns=["user", "item", "time"])
    whole_numbers = from_table("ints", pd.concat([table, table.assign(user="v", item=table["item"] - 1)]))
    assert raw_histories(whole_numbers)["u"] == raw_histories(few)["u"]
    order = raw_histories(more)["2"]
    assert sorted(["5", "30", "200", "7"], key=order.index) == raw_histories(interactions(
        (2, 7, 0), (2, 200, 0), (2, 5, 0), (2, 30, 0)
    ))["2"]  # fmt: skip


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
