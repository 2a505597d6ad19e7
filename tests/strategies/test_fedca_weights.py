"""Composite weights, eq. 5 and 8 of FedCA: by hand, against a solver, and what holds for any round."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.fedca import composite_weights
from tests.strategies.fedca_references import literal_eq5, random_round, seeds, with_value


def test_two_users_by_hand():
    """p = (3/4, 1/4), α = 1, s = (1, 0), β = 0.

    Eq. 5: minimise (w1 − 3/4)² + (w1 − 1)² + (w2 − 1/4)² + w2² with w2 = 1 − w1
    -> 4 w1 = 3/4 + 1 + 3/4 + 1 -> w1 = 7/8.
    User 2 with s = (0, 1): 4 w1 = 3/4 + 0 + 3/4 + 0 -> w1 = 3/8.
    Eq. 8 as printed: minimise w1² + w2² − 2 (3/4 + 1) w1 − 2 (1/4 + 0) w2
    -> 4 w1 = 2 + 7/2 − 1/2 -> w1 = 5/4, so (1, 0); user 2: 4 w1 = 2 + 3/2 − 5/2 -> w1 = 1/4.
    """
    for solver in ("projection", "cvxpy"):
        found = composite_weights(np.eye(2), None, np.array([3, 1]), 1.0, 0.0, solver=solver)
        np.testing.assert_allclose(found, [[7 / 8, 1 / 8], [3 / 8, 5 / 8]], rtol=0, atol=1e-7)
        found = composite_weights(np.eye(2), None, np.array([3, 1]), 1.0, 0.0, objective="eq8", solver=solver)
        np.testing.assert_allclose(found, [[1, 0], [1 / 4, 3 / 4]], rtol=0, atol=1e-7)


def test_complementarity_moves_weight_by_hand():
    """p = (1/2, 1/2), α = 1, s = (1, 0), β = 1/2, c = (1/2, 1).

    Eq. 5: d/dw1 of (w1 − 1/2)² + (w2 − 1/2)² + (w1 − 1)² + w2² − w1/4 − w2/2 with w2 = 1 − w1:
    2(2w1 − 1) + 2(w1 − 1) − 2(1 − w1) + 1/4 = 8 w1 − 6 + 1/4 = 0 -> w1 = 23/32.
    """
    similarity, complementarity = np.eye(2), np.array([[0.5, 1.0], [1.0, 0.5]])
    found = composite_weights(similarity, complementarity, np.ones(2), 1.0, 0.5)
    np.testing.assert_allclose(found, [[23 / 32, 9 / 32], [9 / 32, 23 / 32]], rtol=0, atol=1e-15)


@pytest.mark.parametrize("seed", range(4))
def test_eq5_minimises_eq_5_and_the_printed_eq_8_does_not(seed):
    """Eq. 5 expands to (1 + α) wᵀw − (2p + 2αs + βc)ᵀw + constant; eq. 8 prints wᵀw."""
    similarity, complementarity, sizes = random_round(seed, 12)
    alpha, beta = 0.5, 0.4
    right = composite_weights(similarity, complementarity, sizes, alpha, beta)
    printed = composite_weights(similarity, complementarity, sizes, alpha, beta, objective="eq8")
    for u in range(12):
        best, objective = literal_eq5(sizes / sizes.sum(), similarity[u], complementarity[u], alpha, beta)
        np.testing.assert_allclose(right[u], best, rtol=0, atol=1e-6)
        assert objective(right[u]) <= objective(best) + 1e-12
        assert objective(printed[u]) > objective(right[u]) + 1e-4


@pytest.mark.parametrize("objective", ["eq5", "eq8"])
@pytest.mark.parametrize("solver", ["projection", "cvxpy"])
@pytest.mark.parametrize("given", [True, False])
def test_without_terms_the_weights_are_the_shares_bit_for_bit(objective, solver, given):
    similarity, complementarity, sizes = random_round(0, 30)
    matrices = (similarity, complementarity) if given else (None, None)
    for counts in (sizes, np.ones(30), np.full(30, 7, np.int32)):
        found = composite_weights(*matrices, counts, 0.0, 0.0, objective=objective, solver=solver)
        np.testing.assert_array_equal(found, np.tile(counts / counts.sum(), (30, 1)))


def test_a_term_without_weight_does_not_count():
    similarity, complementarity, sizes = random_round(1, 15)
    for alpha, beta in ((0.5, 0.0), (0.0, 0.4)):
        found = composite_weights(similarity if alpha else None, complementarity if beta else None, sizes, alpha, beta)
        other = random_round(2, 15)
        mixed = composite_weights(
            similarity if alpha else other[0], complementarity if beta else other[1], sizes, alpha, beta
        )
        np.testing.assert_array_equal(found, mixed)


def test_limits_of_the_terms():
    """As α grows the weights become the projection of s: with s_uu = 1 and all others 0, each user alone.

    As β grows all weight goes to the most complementary user.
    """
    _, complementarity, sizes = random_round(3, 10)
    alone = composite_weights(np.eye(10), None, sizes, 1e9, 0.0)
    np.testing.assert_allclose(alone, np.eye(10), rtol=0, atol=1e-8)
    np.fill_diagonal(complementarity, 0.0)
    found = composite_weights(None, complementarity, sizes, 0.0, 1e9)
    np.testing.assert_array_equal(found, np.eye(10)[complementarity.argmax(axis=1)])


@settings(max_examples=40)
@given(seeds, st.integers(1, 12), st.floats(0, 3), st.floats(0, 3), st.sampled_from(["eq5", "eq8"]), st.booleans())
def test_rows_are_weights_and_users_have_no_order(seed, users, alpha, beta, objective, capped):
    similarity, complementarity, sizes = random_round(seed, users)
    cap = min(1.0, 2 / users) if capped else None
    options = {"objective": objective, "cap": cap}
    found = composite_weights(similarity, complementarity, sizes, alpha, beta, **options)
    assert (found >= 0).all()
    assert found.max() <= (cap or 1.0)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=0, atol=1e-12)
    order = np.random.default_rng(seed).permutation(users)
    pairs = np.ix_(order, order)
    shuffled = composite_weights(similarity[pairs], complementarity[pairs], sizes[order], alpha, beta, **options)
    np.testing.assert_allclose(shuffled, found[pairs], rtol=0, atol=1e-12)


@pytest.mark.parametrize("cap", [None, 0.1])
@pytest.mark.parametrize("objective", ["eq5", "eq8"])
def test_both_solvers_agree_on_a_round(cap, objective):
    similarity, complementarity, sizes = random_round(5, 80)
    found, reference = (
        composite_weights(similarity, complementarity, sizes, 0.5, 0.4, objective=objective, solver=solver, cap=cap)
        for solver in ("projection", "cvxpy")
    )
    np.testing.assert_allclose(found, reference, rtol=0, atol=1e-6)


def test_a_cap_binds_shares_too():
    """p = (3/5, 1/5, 1/5) with a cap of 1/2: the largest gives its excess to both others alike."""
    found = composite_weights(None, None, np.array([3, 1, 1]), 0.0, 0.0, cap=0.5)
    np.testing.assert_allclose(found, np.tile([0.5, 0.25, 0.25], (3, 1)), rtol=0, atol=1e-15)


def wrong(**changes):
    similarity, complementarity, sizes = random_round(0, 4)
    arguments = {
        "similarity": similarity,
        "complementarity": complementarity,
        "sizes": sizes,
        "alpha": 0.5,
        "beta": 0.4,
    }
    return arguments | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"similarity": np.ones((4, 3))}, r"similarity must have shape \(4, 4\) for 4 sizes, not \(4, 3\)"),
        ({"complementarity": np.ones((5, 5))}, r"complementarity must have shape \(4, 4\)"),
        ({"similarity": with_value((4, 4), (2, 1), np.nan)}, "not finite in the similarity of user 2"),
        ({"complementarity": with_value((4, 4), (3, 0), np.inf)}, "in the complementarity of user 3"),
        ({"similarity": None}, "similarity may be left out only where alpha is 0; here it is 0.5"),
        ({"complementarity": None}, "complementarity may be left out only where beta is 0"),
        ({"sizes": np.array([1, 2, 0, 1])}, "The size of user 2 must be a positive number, not 0.0"),
        ({"sizes": np.array([1, np.nan, 0, 1])}, "The size of user 1 must be"),
        ({"sizes": np.array([])}, "sizes must have one entry"),
        ({"alpha": -0.1}, "alpha must be a number of at least 0, not -0.1"),
        ({"beta": np.nan}, "beta must be a number of at least 0, not nan"),
        ({"objective": "eq7"}, "objective must be one of eq5, eq8, not 'eq7'"),
        ({"solver": "osqp"}, "solver must be one of projection, cvxpy"),
        ({"cap": 0.2}, "A cap on each of 4 weights must lie between 1/4 and 1, not be 0.2"),
        ({"cap": 0.2, "alpha": 0.0, "beta": 0.0}, "A cap on each of 4 weights"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(changes, message):
    with pytest.raises(ValueError, match=message):
        composite_weights(**wrong(**changes))
