"""What is held out."""

from __future__ import annotations

import math
from collections import Counter

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bouquet.errors import ConfigError
from data_partition import Interactions, Split, from_table, leave_one_out, make_split, published, ratio, sample_users
from tests.data_partition.tables import interactions

HISTORIES = st.dictionaries(
    st.integers(1, 30), st.lists(st.integers(0, 40), min_size=1, max_size=25, unique=True), min_size=1, max_size=8
)
SPLITS = {
    "last": lambda made: leave_one_out(made, hold_out="last"),
    "random": lambda made: leave_one_out(made, hold_out="random", seed=3),
    "ratio": lambda made: ratio(made, seed=3),
    "ratio-extreme": lambda made: ratio(made, test=0.9, validation=0.9, seed=3),
}


# What those who publish a set hold out, beside what they train on.
PUBLISHED = st.dictionaries(
    st.integers(1, 30),
    st.lists(st.integers(0, 60), min_size=2, max_size=40, unique=True).flatmap(
        lambda items: st.integers(1, len(items)).map(lambda at: (items[:at], items[at:]))
    ),
    min_size=1,
    max_size=8,
)


def with_split(histories: dict[int, tuple[list[int], list[int]]], **options) -> Interactions:
    rows = [(u, i, test) for u, parts in histories.items() for test in (False, True) for i in parts[test]]
    table = pd.DataFrame(rows, columns=["user", "item", "held_out"])
    return from_table("tiny", table, time=None, held_out="held_out", **options)


def timed(histories: dict[int, list[int]], **options) -> Interactions:
    return interactions(*[(u, i, t) for u, items in histories.items() for t, i in enumerate(items)], **options)


def untimed(histories: dict[int, list[int]]) -> Interactions:
    return interactions(*[(u, i) for u, items in histories.items() for i in items])


def parts_of(made: Interactions, split: Split, user: int) -> tuple[list[str], ...]:
    row = made.user_ids.tolist().index(str(user))
    parts = (split.train, split.validation, split.test)
    return tuple([str(made.item_ids[item]) for item in part.row(row)] for part in parts)


def test_last_is_test_and_the_one_before_is_validation():
    made = timed({1: [30, 10, 20, 40], 2: [10, 20, 30]})
    split = leave_one_out(made)
    assert parts_of(made, split, 1) == (["30", "10"], ["20"], ["40"])
    assert parts_of(made, split, 2) == (["10"], ["20"], ["30"])


def test_users_with_one_or_two_interactions_only_train():
    made = timed({1: [5], 2: [6, 5], 3: [5, 6, 7]})
    for hold_out in ("last", "random"):
        split = leave_one_out(made, hold_out=hold_out)
        assert parts_of(made, split, 1) == (["5"], [], [])
        assert parts_of(made, split, 2) == (["6", "5"], [], [])
        assert split.test.lengths.tolist() == [0, 0, 1]


def test_last_row_is_the_order_of_the_file():
    made = untimed({1: [30, 10, 20, 40]})
    assert parts_of(made, leave_one_out(made, hold_out="last-row"), 1) == (["30", "10"], ["20"], ["40"])


def test_auto_is_random_only_without_time():
    histories = {user: list(range(20)) for user in range(40)}
    made = timed(histories)
    assert (leave_one_out(made).test.values == leave_one_out(made, hold_out="last").test.values).all()
    made = untimed(histories)
    auto, random = leave_one_out(made, seed=1), leave_one_out(made, hold_out="random", seed=1)
    assert (auto.test.values == random.test.values).all()
    assert len(set(auto.test.values.tolist())) > 5
    assert (auto.test.values != leave_one_out(made, seed=2).test.values).any()


def test_a_rule_that_does_not_fit_the_data_is_refused():
    with pytest.raises(ConfigError, match="tiny has no times, so hold-out cannot be 'last'"):
        leave_one_out(untimed({1: [1, 2, 3]}), hold_out="last")
    with pytest.raises(ConfigError, match="tiny has times, so hold-out 'last-row' has no meaning"):
        leave_one_out(timed({1: [1, 2, 3]}), hold_out="last-row")
    with pytest.raises(ConfigError, match="There is no hold-out 'lost'. Did you mean 'last'"):
        make_split(timed({1: [1, 2, 3]}), "leave-one-out", "lost")
    with pytest.raises(ConfigError, match="There is no split 'ratios'. Did you mean 'ratio'"):
        make_split(timed({1: [1, 2, 3]}), "ratios")


def test_random_hold_out_is_fair():
    """5 items, 4,000 users: each item is held out 800 times on average, standard deviation 25."""
    made = untimed({user: [1, 2, 3, 4, 5] for user in range(4000)})
    split = make_split(made, "leave-one-out", "random", 0)
    for part in (split.test, split.validation):
        assert all(abs(count - 800) < 5 * 26 for count in Counter(part.values.tolist()).values())
    assert (split.test.values != split.validation.values).all()


def test_ratio_by_hand():
    """10 items: .2 * 10 = 2 and .1 * 8 -> 1. 3 items: .6 -> 1 and .1 * 2 -> 0. 1 item: none."""
    made = timed({1: list(range(10)), 2: [0, 1, 2], 3: [4]})
    split = make_split(made, "ratio", seed=5)
    assert split.test.lengths.tolist() == [2, 1, 0]
    assert split.validation.lengths.tolist() == [1, 0, 0]
    assert split.train.lengths.tolist() == [7, 2, 1]
    with pytest.raises(ConfigError, match="test share of a split"):
        ratio(made, test=1.0)


@pytest.mark.parametrize("name", SPLITS)
@given(histories=HISTORIES)
def test_a_split_is_a_partition_of_the_history(name, histories):
    made = timed(histories)
    split = SPLITS[name](made)
    for user, items in histories.items():
        train, validation, test = parts_of(made, split, user)
        assert sorted(train + validation + test) == sorted(map(str, items))
        assert train
        assert train == [str(item) for item in items if str(item) in train], "training items stay oldest first"


@pytest.mark.parametrize("name", SPLITS)
@given(histories=HISTORIES)
def test_a_user_is_split_alone_as_in_company(name, histories):
    """Other users, and with random choices also the order of the rows, have no say."""
    made = timed(histories)
    split = SPLITS[name](made)
    for user, items in histories.items():
        alone = timed({user: items})
        assert parts_of(alone, SPLITS[name](alone), user) == parts_of(made, split, user)
        if name != "last":
            turned = timed({user: items[::-1]})
            expected = [sorted(part) for part in parts_of(made, split, user)]
            assert [sorted(part) for part in parts_of(turned, SPLITS[name](turned), user)] == expected


def test_kept_repeats_are_events_of_their_own():
    made = timed({1: [7, 8, 7, 7]}, repeats="keep")
    assert parts_of(made, leave_one_out(made), 1) == (["7", "8"], ["7"], ["7"])
    assert sum(map(len, parts_of(made, leave_one_out(made, hold_out="random"), 1))) == 4


# -- published -------------------------------------------------------------------------------------------------------


def test_a_published_split_is_kept_and_a_tenth_of_the_rest_is_for_validation():
    """User 1 has 20 items to learn from, 2 of which are for validation; of 4, 0.1 * 4 rounds to none."""
    made = with_split({1: (list(range(20)), [30, 31]), 2: ([5, 6, 7, 8], [9])})
    split = make_split(made, "published")
    train, validation, test = parts_of(made, split, 1)
    assert (len(train), len(validation), test) == (18, 2, ["30", "31"])
    assert sorted(train + validation, key=int) == [str(item) for item in range(20)]
    assert parts_of(made, split, 2) == (["5", "6", "7", "8"], [], ["9"])
    assert published(made, seed=1).validation.values.tolist() != split.validation.values.tolist()


@given(PUBLISHED, st.sampled_from([0.0, 0.1, 0.5, 0.99]), st.integers(0, 3))
def test_what_is_published_for_test_is_for_test_and_nothing_else_is(histories, share, seed):
    made = with_split(histories)
    split = published(made, validation=share, seed=seed)
    for user, (learned, held_out) in histories.items():
        train, validation, test = parts_of(made, split, user)
        assert test == [str(item) for item in held_out]
        assert sorted(train + validation) == sorted(str(item) for item in learned)
        assert len(validation) == min(math.floor(share * len(learned) + 0.5), len(learned) - 1)
        assert [item for item in map(str, learned) if item in train] == train


@given(PUBLISHED, st.integers(0, 3))
def test_the_test_has_no_say_in_what_is_for_validation(histories, seed):
    without = {user: (learned, []) for user, (learned, _) in histories.items()}
    both = [with_split(part) for part in (histories, without)]
    one, other = (published(made, validation=0.3, seed=seed) for made in both)
    for user in histories:
        assert parts_of(both[0], one, user)[:2] == parts_of(both[1], other, user)[:2]


def test_a_published_split_is_there_for_a_sample_and_without_short_histories():
    histories = {user: (list(range(user, user + 5 * user)), [100 + user]) for user in range(1, 9)}
    made = with_split(histories, min_interactions=12)
    assert made.dropped_users == 2
    some = sample_users(made, 3, seed=1)
    split = published(some, validation=0)
    for user in some.user_ids.tolist():
        assert parts_of(some, split, int(user))[2] == [str(100 + int(user))]


def test_a_set_without_a_published_split_says_so():
    sentence = "tiny was published without a split, so split cannot be 'published': take 'leave-one-out' or 'ratio'."
    with pytest.raises(ConfigError, match=sentence):
        make_split(untimed({1: [1, 2, 3]}), "published")
    with pytest.raises(ConfigError, match="validation share of a split must be at least 0 and below 1, not 1"):
        published(with_split({1: ([1, 2], [3])}), validation=1)


def test_a_ratio_without_validation():
    made = untimed({1: list(range(20))})
    split = make_split(made, "ratio", validation=0.0)
    assert [len(part.values) for part in (split.train, split.validation, split.test)] == [16, 0, 4]
    assert split.test.values.tolist() == ratio(made).test.values.tolist()
