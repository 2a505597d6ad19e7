"""Items that were not interacted with."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bouquet.ragged import Ragged
from bouquet.randomness import Purpose, SeededDraws, draw, streams, user_keys
from data_partition import evaluation_candidates, training_negatives
from data_partition import negatives as module

NUM_ITEMS = 12
ROWS = st.lists(st.lists(st.integers(0, NUM_ITEMS - 1), max_size=14), min_size=1, max_size=6)


def ragged(rows: list[list[int]]) -> Ragged:
    return Ragged.from_lengths([len(row) for row in rows], [item for row in rows for item in row])


def keys(count: int) -> np.ndarray:
    return user_keys([str(user) for user in range(count)])


def by_the_book(forbidden: list[int], slots: int, num_items: int, key: int, seed: int, round_: int) -> list[int]:
    """The recipe of the module's docstring, slot by slot in Python's integers."""
    stream = streams(seed, np.array([key], dtype=np.uint64), round_, Purpose.TRAIN_NEGATIVES)
    allowed = [item for item in range(num_items) if item not in forbidden]
    chosen = []
    for slot in range(slots if allowed else 0):
        for attempt in range(64):
            item = ((int(draw(stream, np.array([slot + attempt * 2**32]))[0]) >> 32) * num_items) >> 32
            if item in allowed:
                break
        else:
            item = allowed[((int(draw(stream, np.array([slot + 64 * 2**32]))[0]) >> 32) * len(allowed)) >> 32]
        chosen.append(item)
    return chosen


@given(ROWS, ROWS, st.integers(1, 5), st.integers(0, 3))
def test_the_recipe(positives, forbidden, per_positive, round_):
    forbidden = (forbidden + [[]] * len(positives))[: len(positives)]
    users = keys(len(positives))
    drawn = training_negatives(
        ragged(positives), ragged(forbidden), NUM_ITEMS, per_positive, users, SeededDraws(7), round_
    )
    for row, (own, never) in enumerate(zip(positives, forbidden, strict=True)):
        expected = by_the_book(never, per_positive * len(own), NUM_ITEMS, int(users[row]), 7, round_)
        assert drawn.row(row).tolist() == expected
        assert not set(expected) & set(never)


def test_one_allowed_item_among_many():
    """64 draws out of 5,000 nearly never meet the only allowed item: the exact choice after them must."""
    never = [item for item in range(5000) if item != 4321]
    drawn = training_negatives(ragged([[0, 1]]), ragged([never]), 5000, 4, keys(1), SeededDraws(0), 1)
    assert drawn.row(0).tolist() == [4321] * 8
    assert by_the_book(never, 8, 5000, int(keys(1)[0]), 0, 1) == [4321] * 8


def test_the_last_choice_is_uniform():
    """2 of 5,000 items are allowed; of 2,000 slots each gets about half (standard deviation 22)."""
    never = [item for item in range(5000) if item not in (17, 4000)]
    drawn = training_negatives(ragged([[0] * 2000]), ragged([never]), 5000, 1, keys(1), SeededDraws(0), 1).values
    assert set(drawn.tolist()) == {17, 4000}
    assert abs((drawn == 17).sum() - 1000) < 120


def test_a_user_who_has_everything_gets_none():
    drawn = training_negatives(ragged([[0, 1, 2], [0]]), ragged([[0, 1, 2, 1], [0]]), 3, 4, keys(2), SeededDraws(0), 1)
    assert drawn.lengths.tolist() == [0, 4]
    empty = training_negatives(ragged([]), ragged([]), 3, 4, keys(0), SeededDraws(0), 1)
    assert len(empty) == 0


def test_allowed_items_are_equally_likely():
    """90,000 draws from 9 allowed items: 10,000 each, standard deviation 94."""
    drawn = training_negatives(ragged([[3] * 100] * 225), ragged([[3]] * 225), 10, 4, keys(225), SeededDraws(0), 1)
    counts = np.bincount(drawn.values, minlength=10)
    assert counts[3] == 0
    assert (abs(np.delete(counts, 3) - 10_000) < 500).all()


def test_rounds_seeds_and_users_differ():
    rows = ragged([[0] * 20, [0] * 20])
    base = training_negatives(rows, rows, 1000, 4, keys(2), SeededDraws(0), 1)
    assert (base.row(0) != base.row(1)).any()
    for seed, round_ in ((1, 1), (0, 2)):
        assert (base.values != training_negatives(rows, rows, 1000, 4, keys(2), SeededDraws(seed), round_).values).any()


@given(ROWS, st.integers(1, 30))
def test_blocks_and_company_have_no_say(rows, cells):
    users = keys(len(rows))
    whole = training_negatives(ragged(rows), ragged(rows), NUM_ITEMS, 4, users, SeededDraws(3), 9)
    candidates = evaluation_candidates(ragged(rows), NUM_ITEMS, 5, users, 3, Purpose.TEST_CANDIDATES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CELLS", cells)
        assert (
            training_negatives(ragged(rows), ragged(rows), NUM_ITEMS, 4, users, SeededDraws(3), 9).values
            == whole.values
        ).all()
    for row, items in enumerate(rows):
        own, key = ragged([items]), users[row : row + 1]
        assert (training_negatives(own, own, NUM_ITEMS, 4, key, SeededDraws(3), 9).values == whole.row(row)).all()
        alone = evaluation_candidates(own, NUM_ITEMS, 5, key, 3, Purpose.TEST_CANDIDATES)
        assert (alone.values == candidates.row(row)).all()


@given(ROWS, st.integers(0, 14))
def test_candidates_are_distinct_and_new(rows, count):
    users = keys(len(rows))
    drawn = evaluation_candidates(ragged(rows), NUM_ITEMS, count, users, 3, Purpose.VALIDATION_CANDIDATES)
    for row, items in enumerate(rows):
        chosen = drawn.row(row).tolist()
        assert len(set(chosen)) == len(chosen) == min(count, NUM_ITEMS - len(set(items)))
        assert not set(chosen) & set(items)


def test_candidates_by_the_book():
    """The first different allowed ones of item(0), item(1), …"""
    users, history = keys(1), [4, 5, 6]
    stream = streams(3, users, 0, Purpose.TEST_CANDIDATES)
    expected: list[int] = []
    for counter in range(200):
        item = ((int(draw(stream, np.array([counter]))[0]) >> 32) * 50) >> 32
        if item not in history and item not in expected:
            expected.append(item)
    drawn = evaluation_candidates(ragged([history]), 50, 20, users, 3, Purpose.TEST_CANDIDATES)
    assert drawn.values.tolist() == expected[:20]


def test_candidates_for_a_user_with_few_left():
    """22 of 20,000 items are left: the draws run out and the rest is taken in keyed order."""
    history = list(range(20_000 - 22))
    users = keys(2)
    drawn = evaluation_candidates(ragged([history] * 2), 20_000, 20, users, 0, Purpose.TEST_CANDIDATES)
    assert drawn.lengths.tolist() == [20, 20]
    assert all(len(set(drawn.row(row).tolist())) == 20 for row in range(2))
    assert drawn.values.min() >= 20_000 - 22
    assert (drawn.row(0) != drawn.row(1)).any()
    stream = streams(0, users[:1], 0, Purpose.TEST_CANDIDATES)
    bits = draw(stream, np.arange(64 + 16 * 20))
    met = [int(item) for item in (bits >> np.uint64(32)) * np.uint64(20_000) >> np.uint64(32)]
    found = list(dict.fromkeys(item for item in met if item >= 20_000 - 22))
    left = [item for item in range(20_000 - 22, 20_000) if item not in found]
    left.sort(key=lambda item: int(draw(stream, np.array([2**32 + item]))[0]))
    assert drawn.row(0).tolist() == (found + left)[:20]


def test_validation_and_test_candidates_differ():
    rows = ragged([[0]] * 3)
    drawn = [
        evaluation_candidates(rows, 2000, 99, keys(3), 0, purpose)
        for purpose in (Purpose.VALIDATION_CANDIDATES, Purpose.TEST_CANDIDATES)
    ]
    assert len(set(drawn[0].row(0).tolist()) & set(drawn[1].row(0).tolist())) < 30


def test_candidates_are_equally_likely():
    """3,000 users draw 2 of the 5 allowed items: 1,200 times each, standard deviation 27."""
    drawn = evaluation_candidates(ragged([[1]] * 3000), 6, 2, keys(3000), 0, Purpose.TEST_CANDIDATES)
    counts = np.bincount(drawn.values, minlength=6)
    assert counts[1] == 0
    assert (abs(np.delete(counts, 1) - 1200) < 150).all()


def test_wrong_shapes_and_items_are_refused():
    with pytest.raises(ValueError, match="1 rows of positives, 2 forbidden, 1 user keys"):
        training_negatives(ragged([[0]]), ragged([[0], [1]]), 3, 4, keys(1), SeededDraws(0), 1)
    with pytest.raises(ValueError, match="must lie in"):
        training_negatives(ragged([[3]]), ragged([[3]]), 3, 4, keys(1), SeededDraws(0), 1)
