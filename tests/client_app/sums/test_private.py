"""How far one user can move a private sum: searched for, through the code of a device."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bouquet.cells import FINE
from bouquet.methods import METHODS
from bouquet.methods.manifest import class_at
from bouquet.ragged import Ragged
from client_app.sums.private import PrivateCounter, norms

ITEMS = 40
METHODS_OF_PAIRS = [m.name for m in METHODS.values() if m.private]
histories = st.lists(st.integers(0, ITEMS - 1), unique=True, max_size=ITEMS)
settings_of = {"sequential-rules": {"sequential-rules-window": 6, "sequential-rules-decay": 0.4}}


def counter(name, clip, **changes):
    method = METHODS[name]
    return PrivateCounter(class_at(method.device)(ITEMS, method.options(**changes)), clip)


def ragged(rows):
    items = [item for row in rows for item in row]
    return Ragged.from_lengths([len(row) for row in rows], np.array(items, np.int32))


def matrix(made, rows):
    """[m, m] what these users give together."""
    cells = made.contribution(ragged(rows))["pairs"]
    upper = np.zeros((ITEMS, ITEMS))
    upper[np.repeat(cells.rows, cells.lengths), cells.columns] = cells.values
    return upper + np.triu(upper, 1).T


@pytest.mark.parametrize("name", METHODS_OF_PAIRS)
@pytest.mark.parametrize("clip", [1.0, 0.01, 7.5])
@given(row=histories)
@example(row=[])
@example(row=[3])
@example(row=[5, 2])
@example(row=list(range(ITEMS)))
@settings(max_examples=60, deadline=None)
def test_no_history_gives_more_than_the_limit(name, clip, row):
    """And a long one gives nearly as much: the limit is not held by giving little."""
    norm = np.linalg.norm(matrix(counter(name, clip, **settings_of.get(name, {})), [row]))
    assert norm <= clip
    free = np.linalg.norm(matrix(counter(name, 1e9, **settings_of.get(name, {})), [row]))
    assert norm >= min(free, clip) * 0.999 - 2 * ITEMS * FINE


@pytest.mark.parametrize("name", METHODS_OF_PAIRS)
@given(others=st.lists(histories, max_size=4), row=histories, place=st.integers(0, 4))
@settings(max_examples=40, deadline=None)
def test_adding_a_user_adds_what_it_gives_alone_and_nothing_else(name, others, row, place):
    made = counter(name, 1.0)
    with_it = [*others[:place], row, *others[place:]]
    np.testing.assert_array_equal(matrix(made, with_it) - matrix(made, others), matrix(made, [row]))


def test_pairs_of_rules_by_hand():
    """Items 4, 1, 7 in time, L = 2, a = 1: S has 1 at (4, 1) and (1, 7), 1/2 at (4, 7). ‖S‖² = 2.25, so with C = 1

    (S + Sᵀ)/√2 / 1.5: 1/(1.5 √2) = .4714 at {1, 4} and {1, 7}, .2357 at {4, 7}.
    """
    found = matrix(counter("sequential-rules", 1.0, sequential_rules_window=2, sequential_rules_decay=1.0), [[4, 1, 7]])
    expected = np.zeros((ITEMS, ITEMS))
    expected[1, 4] = expected[4, 1] = expected[1, 7] = expected[7, 1] = 1 / (1.5 * np.sqrt(2))
    expected[4, 7] = expected[7, 4] = 0.5 / (1.5 * np.sqrt(2))
    np.testing.assert_allclose(found, expected, atol=2 * FINE)


def test_pairs_of_a_ridge_by_hand():
    """Items 2, 3: x xᵀ has four ones and norm 2; C = 1 halves them."""
    found = matrix(counter("ease", 1.0), [[2, 3]])
    np.testing.assert_allclose(found[np.ix_([2, 3], [2, 3])], 0.5, atol=2 * FINE)
    assert np.count_nonzero(found) == 4


@given(st.lists(st.floats(0, 2), min_size=1, max_size=8), st.integers(0, 12))
def test_norms_follow_from_lengths(weights, length):
    weights = np.array(weights)
    square = sum(
        (1 if d == 0 else 2) * max(length - d, 0) * weights[d] ** 2 for d in range(min(len(weights), max(length, 1)))
    )
    assert norms(weights, np.array([length]))[0] == pytest.approx(np.sqrt(square), rel=1e-6, abs=1e-9)
