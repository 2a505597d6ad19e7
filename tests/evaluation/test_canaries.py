"""The canary of drawn items: exact under the null hypothesis, loud where scores depend on what was drawn."""

import numpy as np
import pytest

from bouquet.evaluation.canaries import SINGS_AT, Preference


def flags(*rows):
    return np.array(rows, dtype=bool)


def test_z_by_hand():
    """Scores 5, 1, 3 and 9, the last no part of the pool: ranks 3, 1, 2. The first is drawn.

    D = 3 - 2 = 1; s² of (1, 2, 3) = 1; Var D = 1 · (1 - 1/3) · 1 = 2/3; z = sqrt(3/2).
    """
    canary = Preference()
    canary.add(np.array([[5.0, 1, 3, 9]]), flags([1, 1, 1, 0]), flags([1, 0, 0, 0]))
    assert canary.z == pytest.approx(np.sqrt(1.5))
    assert canary.drawn == 1


def test_two_users_by_hand():
    """A second user with scores 1, 1, 2 draws the first two: ranks 1.5, 1.5, 3, s² = 3/4.

    D = 1 + (3 - 2 · 2) = 0, whatever the variance is.
    """
    canary = Preference()
    for scores, drawn in (([[5.0, 1, 3]], [1, 0, 0]), ([[1.0, 1, 2]], [1, 1, 0])):
        canary.add(np.array(scores), flags([1, 1, 1]), flags(drawn))
    assert canary.z == 0
    assert canary.drawn == 3


@pytest.mark.parametrize("case", ["constant", "nobody", "all"])
def test_where_nothing_could_differ_it_is_silent(case):
    canary = Preference()
    scores = np.zeros((1, 3)) if case == "constant" else np.arange(3.0)[None]
    drawn = {"constant": [1, 0, 0], "nobody": [0, 0, 0], "all": [1, 1, 1]}[case]
    canary.add(scores, flags([1, 1, 1]), flags(drawn))
    assert canary.z == 0


def test_under_the_null_hypothesis_it_is_standard_normal():
    """Users share popular scores; draws of 5 among 30 are what is random. 200 files: mean 0 ± .07, variance 1 ± .1."""
    random = np.random.default_rng(0)
    scores = np.tile(random.zipf(1.5, 30).astype(float), (10, 1)) + np.round(random.normal(size=(10, 30)))
    found = []
    for _ in range(200):
        drawn = random.random((10, 30)).argsort(axis=1) < 5
        canary = Preference()
        canary.add(scores, np.ones_like(drawn), drawn)
        found.append(canary.z)
    assert abs(np.mean(found)) < 4 * 0.07
    assert abs(np.var(found) - 1) < 4 * 0.1


def test_it_sings_of_a_small_dependence():
    """Drawn items lose a fifth of a standard deviation: 100 users with 20 of 100."""
    random = np.random.default_rng(1)
    scores = random.normal(size=(100, 100))
    drawn = random.random((100, 100)).argsort(axis=1) < 20
    canary = Preference()
    canary.add(scores - 0.2 * drawn, np.ones_like(drawn), drawn)
    assert canary.z < -SINGS_AT
