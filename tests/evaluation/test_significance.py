from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bouquet.evaluation import holm, paired_test


def test_sign_flip_by_hand():
    """Differences 1, 1, 1, 0: 8 sign patterns of the three that differ, |sum| = 3 in two of them: p = 2/8."""
    result = paired_test([1, 1, 1, 0], [0, 0, 0, 0])
    assert result.p_value == pytest.approx(1 / 4)
    assert result.mean == pytest.approx(3 / 4)
    assert result.users == 4
    assert result.standard_error == pytest.approx(1 / 4)


def test_equal_runs_do_not_differ():
    assert paired_test([0.1, 0.2], [0.1, 0.2]).p_value == 1


def test_hits_give_the_sign_test():
    """For 0/1 values the sign-flip test is the exact two-sided sign test on the users that differ: 9 against 2."""
    a, b = np.array([1] * 9 + [0] * 2 + [1] * 50), np.array([0] * 9 + [1] * 2 + [1] * 50)
    assert paired_test(a, b).p_value == pytest.approx(stats.binomtest(9, 11).pvalue)


def test_random_patterns_agree_with_the_sign_test():
    """40 against 20 of 60 users: too many patterns to list, so they are drawn."""
    a, b = np.repeat([1.0, 0.0], [40, 20]), np.repeat([0.0, 1.0], [40, 20])
    expected = stats.binomtest(40, 60).pvalue
    assert paired_test(a, b, draws=50_000).p_value == pytest.approx(expected, abs=4 * np.sqrt(expected / 50_000))


def test_same_arguments_same_result():
    generator = np.random.default_rng(0)
    a, b = generator.random(200), generator.random(200)
    assert paired_test(a, b, seed=5) == paired_test(a, b, seed=5)
    assert paired_test(a, b).p_value == paired_test(b, a).p_value


def test_p_values_are_uniform_when_nothing_differs():
    """Under exchangeable differences P(p <= .1) <= .1; 400 tests give a standard error of .015."""
    generator = np.random.default_rng(1)
    p_values = [paired_test(generator.normal(size=30), np.zeros(30), draws=199).p_value for _ in range(400)]
    assert np.mean(np.array(p_values) <= 0.1) == pytest.approx(0.1, abs=0.05)


def test_users_not_evaluated_are_left_out_and_must_agree():
    assert paired_test([1, np.nan, 1], [0, np.nan, 0]).users == 2
    with pytest.raises(ValueError, match="different users"):
        paired_test([1, np.nan], [0, 0])
    with pytest.raises(ValueError, match="no user"):
        paired_test([np.nan], [np.nan])
    with pytest.raises(ValueError, match="same users"):
        paired_test([1, 2], [1])


def test_holm_by_hand():
    """Sorted .01, .02, .03, .04 times 4, 3, 2, 1 = .04, .06, .06, .04, made monotone: .04, .06, .06, .06."""
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.9, 0.8]) == pytest.approx([1, 1])
    assert holm([]).shape == (0,)
    with pytest.raises(ValueError, match="in \\[0, 1\\]"):
        holm([np.nan])


@settings(max_examples=50)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_lies_between_nothing_and_bonferroni(p_values):
    adjusted = holm(p_values)
    assert (adjusted >= np.array(p_values)).all()
    assert (adjusted <= np.minimum(1, np.array(p_values) * len(p_values))).all()
