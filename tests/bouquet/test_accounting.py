"""ε of noisy sums: figures that were derived elsewhere, laws that hold for any noise, and two ways to one number."""

import math
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from bouquet.accounting import (
    Releases,
    _composed,
    epsilon_of,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_noise,
    noise_multiplier,
    noise_share,
)
from bouquet.errors import ConfigError

DELTA = 1 / 6040
noises = st.floats(0.3, 20.0)
deltas = st.floats(1e-8, 0.1)


@pytest.mark.parametrize(("epsilon", "noise"), [(8, 0.53), (4, 0.93), (2, 1.67), (1, 3.06)])
def test_the_noise_of_one_sum_over_6040_users(epsilon, noise):
    assert round(gaussian_noise(epsilon, DELTA), 2) == noise


def test_delta_is_the_equation():
    """Balle and Wang, theorem 8, with z = 1 and ε = 1: Φ(-1/2) - e Φ(-3/2) = .30854 - 2.71828 · .06681 = .12694."""
    assert gaussian_delta(1.0, 1.0) == pytest.approx(norm.cdf(-0.5) - math.e * norm.cdf(-1.5), rel=1e-12)
    assert gaussian_delta(1.0, 1.0) == pytest.approx(0.12694, abs=5e-5)


@given(noises, deltas)
def test_noise_and_epsilon_are_inverse(noise, delta):
    epsilon = gaussian_epsilon(noise, delta)
    if epsilon > 1e-6:
        assert gaussian_noise(epsilon, delta) == pytest.approx(noise, rel=1e-6)
        assert gaussian_delta(gaussian_noise(epsilon, delta), epsilon) <= delta * (1 + 1e-9), "never above the budget"


@given(noises, st.floats(1.01, 3.0), deltas, st.integers(1, 50))
def test_more_noise_costs_less_and_more_rounds_cost_more(noise, times, delta, rounds):
    here = epsilon_of([Releases(noise, 1.0, rounds)], delta)
    assert epsilon_of([Releases(noise * times, 1.0, rounds)], delta) <= here
    assert epsilon_of([Releases(noise, 1.0, rounds + 1)], delta) >= here
    assert epsilon_of([Releases(noise, 1.0, rounds)], delta / times) >= here


@given(noises, st.integers(1, 30), deltas)
def test_rounds_of_all_users_are_one_sum_with_less_noise(noise, rounds, delta):
    """k sums with z tell as much as one with z / √k."""
    whole = epsilon_of([Releases(noise / math.sqrt(rounds))], delta)
    assert epsilon_of([Releases(noise, 1.0, rounds)], delta) == pytest.approx(whole, rel=1e-9, abs=1e-9)
    parts = [Releases(noise, 1.0, 1), Releases(noise, 1.0, rounds - 1)]
    assert epsilon_of(parts, delta) == pytest.approx(whole, rel=1e-9, abs=1e-9)


COMPOSED = [[Releases(1.0)], [Releases(4.0, 1.0, 20)], [Releases(2.0, 1.0, 3), Releases(9.0)]]


@pytest.mark.parametrize("releases", COMPOSED)
def test_privacy_loss_distributions_give_what_the_closed_form_gives(releases):
    """They are rounded up, by no more than the steps in which they count."""
    exact, composed = epsilon_of(releases, DELTA), _composed(releases, DELTA)
    assert exact <= composed + 1e-6
    assert composed == pytest.approx(exact, rel=2e-3)


def test_sampling_costs_less_than_everybody_and_composes():
    rounds = [epsilon_of([Releases(1.0, 0.1, count)], 1e-3) for count in (1, 10, 20)]
    assert rounds == sorted(rounds)
    assert rounds[-1] < epsilon_of([Releases(1.0, 1.0, 20)], 1e-3) / 3
    halves = [Releases(1.0, 0.1, 10), Releases(1.0, 0.1, 10)]
    assert epsilon_of(halves, 1e-3) == pytest.approx(rounds[-1], rel=2e-3)


@pytest.mark.parametrize(("rounds", "sampling"), [(1, 1.0), (60, 1.0), (20, 0.1)])
def test_calibrated_noise_keeps_the_budget_and_wastes_little(rounds, sampling):
    noise = noise_multiplier(4.0, 1e-3, rounds, sampling)
    spent = epsilon_of([Releases(noise, sampling, rounds)], 1e-3)
    assert 3.99 < spent <= 4.0
    if rounds == sampling == 1:
        assert noise == pytest.approx(gaussian_noise(4.0, 1e-3), rel=1e-6)


def test_other_sums_are_paid_out_of_the_same_budget():
    others = [Releases(10.0)]
    noise = noise_multiplier(4.0, 1e-3, 5, 1.0, others)
    assert noise > noise_multiplier(4.0, 1e-3, 5)
    assert 3.999 < epsilon_of([Releases(noise, 1.0, 5), *others], 1e-3) <= 4.0
    with pytest.raises(ConfigError, match="The metrics alone cost"):
        noise_multiplier(0.5, 1e-3, 5, 1.0, [Releases(1.0)])


def test_no_noise_is_no_privacy_and_no_sum_costs_nothing():
    assert epsilon_of([Releases(0.0)], DELTA) == math.inf
    assert epsilon_of([], DELTA) == epsilon_of([Releases(1.0, 1.0, 0)], DELTA) == 0.0


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.1), (-1.0, 0.1), (1.0, 0.0), (1.0, 1.0), (math.nan, 0.1)])
def test_what_is_no_budget_is_refused(epsilon, delta):
    with pytest.raises(ConfigError, match="A budget has ε above 0 and δ between 0 and 1"):
        gaussian_noise(epsilon, delta)


@given(st.integers(1, 40), st.data())
@settings(max_examples=30)
def test_shares_of_noise_are_enough_whoever_drops_out(nodes, data):
    dropouts = data.draw(st.integers(0, nodes - 1))
    gone = data.draw(st.integers(0, dropouts))
    share = noise_share(3.0, nodes, dropouts)
    assert 3.0 * (1 - 1e-12) <= math.sqrt(nodes - gone) * share <= 3.0 * math.sqrt(nodes / (nodes - dropouts)) + 1e-9
    with pytest.raises(ConfigError, match="cannot drop out"):
        noise_share(3.0, nodes, nodes)


def test_the_package_is_looked_for_only_where_users_are_sampled(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    monkeypatch.setattr("bouquet.extras.is_there", lambda module: module != "dp_accounting")
    assert noise_multiplier(4.0, 2e-3, 7) > 0
    with pytest.raises(ConfigError, match=r"needs dp-accounting, which is not installed: .*privacy"):
        noise_multiplier(4.0, 2e-3, 7, 0.3)
