"""Tests over users and seeds: numbers by hand, and how often they find what is not there."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from bouquet.evaluation import paired_test, seeded_test
from bouquet.evaluation.seeds import seed_variance, standard_error

ROW = np.array([[0.0, 2.0, 4.0], [1.0, 5.0, 6.0]])
OTHER = np.array([[1.0, 0.0, 2.0]])


def test_what_seeds_add_by_hand():
    """Seed means 2 and 4, users' means .5, 3.5, 5, in all 3.

    Rest x_su - x_s. - x_.u + 3: (0 - 2 - .5 + 3, 2 - 2 - 3.5 + 3, 4 - 2 - 5 + 3) = (.5, -.5, 0) under the first seed,
    the same with the other sign under the second: squares 1, over (2 - 1)(3 - 1) degrees s²(e) = 1/2. The means of 3
    users hold 1/6 of it. Seed means have variance 2, so seeds add (2 - 1/6) / 2 = 11/12 of 2 / 2 = 1.
    """
    assert seed_variance(ROW) == pytest.approx((11 / 12, 1.0, 1))


def test_a_difference_by_hand():
    """Against a row without seed: differences of users .5 - 1, 3.5 - 0, 5 - 2 = -.5, 3.5, 3 with mean 2.

    Users: ((2.5)² + (1.5)² + 1²) / 2 = 4.75, over 3 users 19/12. With 11/12 of seeds V = 30/12 = 5/2, error √2.5.
    Degrees: (5/2)² / ((19/12)² / 2 + 1²/1) = 6.25 / (361/288 + 1) = 6.25 · 288 / 649 = 2.7735.
    """
    found = seeded_test(ROW, OTHER, seedless=(False, True))
    assert found.mean == pytest.approx(2)
    assert found.standard_error == pytest.approx(np.sqrt(5 / 2))
    assert found.degrees == pytest.approx(6.25 * 288 / 649)
    assert found.counts_seeds
    of_student = 2 * stats.t.sf(2 / np.sqrt(5 / 2), 6.25 * 288 / 649)
    # 8 sign patterns of (-.5, 3.5, 3): |sum| >= 6 for the observed one, (+, +, +), and both with the other sign: 4/8.
    assert found.p_value == pytest.approx(max(of_student, 4 / 8))
    reach = stats.t.ppf(0.975, found.degrees) * np.sqrt(5 / 2)
    assert found.interval == pytest.approx((2 - reach, 2 + reach))


def test_degrees_are_never_fewer_than_those_of_the_seeds():
    """Differences of users are .5 for everybody: nothing over users.

    Seed means of both rows are 0 and 1/3, their variance 1/18; rests are ± (1/3, -1/6, -1/6), squares 1/3, s²(e) = 1/6,
    over 3 users 1/18. All of it is taken out again: V and Satterthwaite's degrees would be about 0.
    """
    row = np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    whole, noise = 1 / 18, (1 / 3) / 2 / 3
    assert whole == pytest.approx(noise)
    a = row + np.array([[0.0], [1e-6]])
    _, degrees = standard_error(a, a - 0.5)
    assert degrees == 1.0


def test_one_seed_says_nothing_of_another():
    """One seed of a row that depends on it: the test over users, which says so. Without any dependence that is all."""
    first, other = np.array([1.0, 1.0, 1.0, 0.0]), np.zeros(4)
    alone = seeded_test(first[None], other[None], seedless=(False, True))
    assert (alone.p_value, alone.counts_seeds) == (pytest.approx(1 / 4), False)
    assert alone == paired_test(first, other)
    assert not seeded_test(ROW, OTHER).counts_seeds, "two seeds of the one do not speak for the other"
    both = seeded_test(first[None], other[None], seedless=(True, True))
    assert (both.p_value, both.counts_seeds) == (pytest.approx(1 / 4), True)


def test_the_same_model_under_every_seed_leaves_the_users():
    """No spread over seeds: the error of the users, and a p-value no smaller than that of the sign-flip test."""
    row = np.repeat(np.array([[1.0, 0.0, 3.0, 1.0, 2.0]]), 3, axis=0)
    found, users = seeded_test(row, np.zeros((3, 5))), paired_test(row[0], np.zeros(5))
    assert found.standard_error == pytest.approx(users.standard_error)
    assert found.degrees == pytest.approx(4)
    assert found.p_value >= users.p_value
    nothing = seeded_test(row, row)
    assert (nothing.mean, nothing.p_value, nothing.counts_seeds) == (0, 1, True)


def test_neither_the_order_of_seeds_nor_of_methods_matters():
    generator = np.random.default_rng(0)
    a, b = generator.random((3, 50)), generator.random((5, 50))
    found, mirrored = seeded_test(a, b), seeded_test(b[::-1], a[[2, 0, 1]])
    assert mirrored.mean == pytest.approx(-found.mean)
    assert (mirrored.p_value, mirrored.degrees) == pytest.approx((found.p_value, found.degrees))


@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize(("seed_spread", "noise", "users_only"), [(0.0, 0.3, 0.03), (0.1, 0.3, 0.15), (0.3, 1.0, 0.4)])
def test_calibration_where_nothing_but_seeds_differ(seeds, seed_spread, noise, users_only):
    """Two methods that are the same, trained with different seeds: at .05 about 5 % of tests may find a difference.

    600 tests have a standard error of .009, so at most .05 + 3 · .009 = .077. The test over users alone, which takes
    each trained model for its method, is far above wherever seeds matter.
    """
    generator = np.random.default_rng([seeds, int(100 * seed_spread)])
    k, p_values, alone = 120, [], []
    for _ in range(600):
        people = generator.normal(0, 1, (1, k))
        a, b = (
            people
            + generator.normal(0, 0.35, (1, k))
            + generator.normal(0, seed_spread, (seeds, 1))
            + generator.normal(0, noise, (seeds, k))
            for _ in range(2)
        )
        difference = (a - b).mean(axis=0)
        alone.append(2 * stats.norm.sf(abs(difference.mean()) / (difference.std(ddof=1) / np.sqrt(k))))
        error, degrees = standard_error(a, b)
        p_values.append(2 * stats.t.sf(abs(difference.mean()) / error, degrees))
    assert np.mean(np.array(p_values) < 0.05) < 0.077
    assert np.mean(np.array(alone) < 0.05) > users_only


def test_shapes_are_checked():
    with pytest.raises(ValueError, match="by seed and user"):
        seeded_test(np.zeros(3), np.zeros((1, 3)))
    with pytest.raises(ValueError, match="same users"):
        seeded_test(np.zeros((2, 3)), np.zeros((2, 4)))
