"""What devices count and how they recommend, against hand-derived numbers and plain loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bouquet.methods.ease import EaseOptions
from bouquet.methods.sequential_rules import SequentialRulesOptions
from bouquet.methods.slist import SlistOptions
from bouquet.ragged import Ragged
from client_app.sums.counter import pairs
from client_app.sums.ease import Ease
from client_app.sums.sequential_rules import SequentialRules
from client_app.sums.slist import Slist

ITEMS = 7
HISTORIES = st.lists(
    st.lists(st.integers(0, ITEMS - 1), unique=True, max_size=ITEMS), min_size=1, max_size=4
)  # of no item, of one, of two …


def ragged(histories):
    return Ragged.from_lengths([len(h) for h in histories], [item for h in histories for item in h])


def rules(window=2, decay=1.0):
    options = SequentialRulesOptions(sequential_rules_window=window, sequential_rules_decay=decay)
    return SequentialRules(ITEMS, options)


def slist(window=0, decay=1.0):
    return Slist(ITEMS, SlistOptions(slist_window=window, slist_decay=decay))


def ease(recency=0.0):
    return Ease(ITEMS, EaseOptions(ease_recency=recency))


def dense(counter, histories):
    """The matrices as whole ones, those of which half travels mirrored."""
    found = {}
    for name, cells in counter.contribution(ragged(histories)).items():
        spec = counter.specs[name]
        whole = np.zeros(spec.shape)
        whole.ravel()[cells.keys(spec)] = cells.values
        found[name] = whole + np.triu(whole, 1).T if spec.symmetric else whole
    return found


def matrix(**cells):
    whole = np.zeros((ITEMS, ITEMS))
    for key, value in cells.items():
        whole[int(key[1]), int(key[2])] = value
    return whole


def test_rules_by_hand():
    """3, 1, 2 with L = 2, a = 1: neighbours count 1, items two apart 1 / 2."""
    found = dense(rules(), [[3, 1, 2]])
    assert np.array_equal(found["transitions"], matrix(_31=1, _12=1, _32=0.5))
    assert found["counts"].tolist() == [[0, 1, 1, 1, 0, 0, 0]]


def test_slist_by_hand():
    """x_0 = e_3 before 1, and x_1 = e_1 + e_3 / 2 before 2: P = x_0 x_0ᵀ + x_1 x_1ᵀ, Q = x_0 e_1ᵀ + x_1 e_2ᵀ."""
    found = dense(slist(), [[3, 1, 2]])
    assert np.array_equal(found["before"], matrix(_33=1.25, _13=0.5, _31=0.5, _11=1))
    assert np.array_equal(found["next"], matrix(_31=1, _12=1, _32=0.5))
    short = dense(slist(window=1), [[3, 1, 2]])
    assert np.array_equal(short["before"], matrix(_33=1, _11=1))
    assert np.array_equal(short["next"], matrix(_31=1, _12=1))


@pytest.mark.parametrize("decay", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("window", [0, 1, 3])
@given(histories=HISTORIES)
def test_slist_is_the_sum_over_steps(window, decay, histories):
    """P = Σ x xᵀ and Q = Σ x eᵀ over all steps, to the rounding of cells to multiples of 2^-16."""
    before, after = np.zeros((2, ITEMS, ITEMS))
    for history in histories:
        for step in range(len(history) - 1):
            x = np.zeros(ITEMS)
            for age in range(min(step + 1, window or ITEMS)):
                x[history[step - age]] = (1 + age) ** -decay
            before += np.outer(x, x)
            after[:, history[step + 1]] += x
    found = dense(slist(window, decay), histories)
    np.testing.assert_allclose(found["before"], before, atol=len(histories) * 2.0**-16)
    np.testing.assert_allclose(found["next"], after, atol=len(histories) * 2.0**-16)


@given(HISTORIES)
def test_ease_counts_pairs(histories):
    marks = np.array([np.isin(range(ITEMS), history) for history in histories], float)
    assert np.array_equal(dense(ease(), histories)["together"], marks.T @ marks)


@pytest.mark.parametrize("counter", [rules(), rules(5), slist(), slist(2), ease()])
@given(histories=HISTORIES)
def test_a_user_sends_as_much_as_is_said(counter, histories):
    for history in histories:
        alone = counter.contribution(ragged([history]))
        cells, rows = counter.sizes(np.array([len(history)]))
        assert cells[0] == sum(len(found.columns) for found in alone.values())
        assert rows[0] == sum(len(found.rows) for found in alone.values())
        assert counter.upload_bytes(np.array([len(history)]))[0] == sum(found.nbytes for found in alone.values())


@pytest.mark.parametrize("counter", [rules(), slist(), ease()])
@given(histories=HISTORIES)
def test_users_together_give_the_sum_of_what_each_gives(counter, histories):
    together = dense(counter, histories)
    for name, values in together.items():
        assert np.array_equal(values, sum(dense(counter, [history])[name] for history in histories))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(0, 4), st.integers(0, 6))
def test_pairs_are_counted_right(lengths, first, count):
    distances = range(first, first + count)
    expected = [sum(max(length - distance, 0) for distance in distances) for length in lengths]
    assert pairs(np.array(lengths), distances).tolist() == expected


@pytest.mark.parametrize(
    ("counter", "weights"),
    [
        (rules(), [1, 1 / 2, 0, 0]),
        (slist(), [1, 1 / 2, 1 / 3, 1 / 4]),
        (slist(window=3), [1, 1 / 2, 1 / 3, 0]),
        (ease(), [1, 1, 1, 1]),
        (ease(recency=2.0), [1, 1 / 4, 1 / 9, 1 / 16]),
    ],
)
def test_scores_by_the_age_of_items(counter, weights):
    """The newest of 6, 5, 0, 4 weighs the most; published as a whole, and as all neighbours in any order, alike."""
    random = np.random.default_rng(1)
    whole = random.normal(size=(ITEMS, ITEMS)).astype(np.float32)
    order = np.argsort(random.random((ITEMS, ITEMS)), axis=1).astype(np.int32)
    by_neighbors = {"neighbors": order, "weights": np.take_along_axis(whole, order, axis=1)}
    expected = sum(weight * whole[item] for weight, item in zip(weights, [4, 0, 5, 6], strict=True))
    histories = ragged([[], [6, 5, 0, 4], [2]])
    for published in ({"weights": whole}, by_neighbors):
        found = counter.scores(published, histories)
        np.testing.assert_allclose(found[1], expected, atol=1e-6)
        np.testing.assert_allclose(found[2], whole[2], atol=1e-6)
        assert not found[0].any()
