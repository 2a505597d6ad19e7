"""A share of each user's training items: what is kept, and what it does to everything else."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bouquet.config import DataOptions
from bouquet.errors import ConfigError
from bouquet.evaluation import evaluate_users
from client_app.node.histories import histories_of
from data_partition import make_split
from tests.data_partition.tables import interactions

SHARES = (0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0)


def timed(histories: dict[int, list[int]]):
    return interactions(*[(u, i, t) for u, items in histories.items() for t, i in enumerate(items)])


def rows_of(part) -> list[list[int]]:
    return [part.row(row).tolist() for row in range(len(part))]


@pytest.mark.parametrize(
    ("share", "kept"),
    [
        # Histories of 1, 2, 3, 4, 5 and 12 items train with 1, 2, 1, 2, 3 and 10 of them.
        (0.1, [1, 1, 1, 1, 1, 1]),
        (0.4, [1, 1, 1, 1, 1, 4]),
        (0.5, [1, 1, 1, 1, 2, 5]),
        (0.75, [1, 2, 1, 2, 2, 8]),
        (1.0, [1, 2, 1, 2, 3, 10]),
    ],
)
def test_how_many_are_kept(share, kept):
    """share * n, rounded half up, and at least one: .5 * 3 = 1.5 -> 2, .75 * 2 = 1.5 -> 2, .75 * 3 = 2.25 -> 2."""
    made = timed({user: list(range(n)) for user, n in enumerate([1, 2, 3, 4, 5, 12])})
    split = make_split(made, "leave-one-out", training=share)
    assert split.train.lengths.tolist() == kept
    assert split.test.lengths.tolist() == [0, 0, 1, 1, 1, 1]
    left = [0] * 6 if split.left_out is None else split.left_out.lengths.tolist()
    assert [n + m for n, m in zip(left, kept, strict=True)] == [1, 2, 1, 2, 3, 10]


@given(
    st.dictionaries(
        st.integers(1, 30), st.lists(st.integers(0, 40), min_size=1, max_size=25, unique=True), min_size=1, max_size=8
    ),
    st.integers(0, 3),
)
def test_shares_are_nested_in_order_and_leave_the_rest_alone(histories, seed):
    made = timed(histories)
    whole = make_split(made, "leave-one-out", seed=seed)
    assert whole.left_out is None
    before: list[set[int]] = [set() for _ in histories]
    for share in SHARES[:-1]:
        split = make_split(made, "leave-one-out", seed=seed, training=share)
        assert rows_of(split.test) == rows_of(whole.test)
        assert rows_of(split.validation) == rows_of(whole.validation)
        for row, (kept, left, all_) in enumerate(
            zip(rows_of(split.train), rows_of(split.left_out), rows_of(whole.train), strict=True)
        ):
            assert [item for item in all_ if item in kept] == kept  # oldest first, as before
            assert sorted(kept + left) == sorted(all_)
            assert before[row] <= set(kept)
            before[row] = set(kept)


def test_a_user_keeps_the_same_whoever_else_is_there():
    alone, together = ({7: list(range(20))}, {7: list(range(20)), 8: [3, 4, 5, 6], 1: list(range(20))})
    found = [make_split(timed(made), "leave-one-out", training=0.3).train for made in (alone, together)]
    assert found[0].row(0).tolist() == found[1].row(1).tolist()
    assert found[1].row(0).tolist() != found[1].row(1).tolist()


def test_each_item_is_kept_as_often():
    """10 of 20 items, 2,000 users: each item is kept 1,000 times on average, standard deviation 22."""
    made = timed({user: list(range(22)) for user in range(2000)})
    counts = Counter(make_split(made, "leave-one-out", training=0.5).train.values.tolist())
    assert len(counts) == 20
    assert all(abs(count - 1000) < 5 * 22.4 for count in counts.values())


def test_what_is_left_out_is_neither_candidate_nor_learned_from():
    """30 items, 12 of the user: 10 for training, of which 3 are kept. The others are ranked in no way.

    A scorer that puts the seven that were left out on top leaves the test item where it was: rank 1 of 19.
    """
    made = timed({1: list(range(12)), 2: [*range(12, 30)]})
    few, all_ = (histories_of(made, DataOptions(training_share=share)) for share in (0.3, 1.0))
    assert few.train.lengths.tolist() == [3, 5]
    assert few.whole.lengths.tolist() == all_.whole.lengths.tolist() == [12, 18]
    for part in ("validation", "test"):
        assert rows_of(few.candidates[part]) == rows_of(all_.candidates[part])
    scores = np.zeros((2, 30), dtype=np.float32)
    scores[few.left_out.row_of_value, few.left_out.values] = 2
    scores[few.test.row_of_value, few.test.values] = 1
    values = evaluate_users(
        lambda rows: scores[rows],
        num_items=30,
        train=few.had,
        validation=few.validation,
        test=few.test,
        candidates=few.candidates,
    )
    assert (values[:, 1, 0] == 1).all()


def test_other_splits_have_it_too():
    """ratio: of 10 items 2 are for test, 1 for validation, and .4 * 7 = 2.8 -> 3 of the others for training."""
    split = make_split(timed({1: list(range(10))}), "ratio", training=0.4)
    assert (split.train.lengths, split.validation.lengths, split.test.lengths) == ([3], [1], [2])


@pytest.mark.parametrize("share", [0.0, -0.1, 1.5])
def test_a_share_out_of_range_is_refused(share):
    with pytest.raises(ConfigError, match="training share of a split must be above 0 and at most 1, not"):
        make_split(timed({1: [1, 2, 3]}), "leave-one-out", training=share)
