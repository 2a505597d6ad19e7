"""The projection onto the simplex: by hand, by its optimality conditions, and against a convex solver."""

from __future__ import annotations

import subprocess
import sys
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.numerics import simplex
from strategies.numerics.simplex import QuadraticProgramme, project_rows
from tests.conftest import REPOSITORY

ordinary = st.floats(-2.0, 2.0)
tied = st.sampled_from([-1.0, 0.0, 0.1, 0.25, 0.5, 1.0])
tiny = st.floats(-1e-9, 1e-9) | st.sampled_from([0.0, 5e-324, 1e-300])
huge = st.floats(-1e15, 1e15) | st.sampled_from([1e300, -1e300, 1.7e308, -1.7e308])
rows = st.one_of(
    *(st.lists(values, min_size=1, max_size=12) for values in (ordinary, tied, tiny, huge, ordinary | tied | huge))
)
# How far a cap lies between the least possible, 1/n, and 1; None for no cap.
caps = st.none() | st.floats(0.0, 1.0)

programme = cache(QuadraticProgramme)


def cap_of(share: float | None, count: int) -> float | None:
    return None if share is None else min(1.0, 1.0 / count + share * (1.0 - 1.0 / count))


@pytest.mark.parametrize(
    ("y", "cap", "expected"),
    [
        # Both stay positive: τ = (.5 + .2 − 1)/2 = −.15.
        ([0.5, 0.2], None, [0.65, 0.35]),
        # With all three positive τ = (1.2 − 1)/3 = .067 > −.3, so the last is 0 and τ = (.9 + .6 − 1)/2 = .25.
        ([0.9, 0.6, -0.3], None, [0.65, 0.35, 0.0]),
        # One takes all: τ = 2 − 1 = 1 is above both others.
        ([2.0, 0.0, -1.0], None, [1.0, 0.0, 0.0]),
        # Equal values share, however large.
        ([7e9, 7e9, 7e9, 7e9], None, [0.25, 0.25, 0.25, 0.25]),
        ([1e300, -1e300], None, [1.0, 0.0]),
        ([-3.0], None, [1.0]),
        # The first is at the cap, the second takes the rest: τ = .6 − .4 = .2, and .9 − τ > .6 and −.3 < τ.
        ([0.9, 0.6, -0.3], 0.6, [0.6, 0.4, 0.0]),
        # Two at the cap; the others are far below, and still share what is left: τ = −100.05.
        ([5.0, 4.0, -100.0, -100.0], 0.45, [0.45, 0.45, 0.05, 0.05]),
        # At the least cap nothing is left to choose.
        ([5.0, 4.0, -100.0], 1 / 3, [1 / 3, 1 / 3, 1 / 3]),
    ],
)
def test_projections_by_hand(y, cap, expected):
    np.testing.assert_allclose(project_rows(np.array([y]), cap)[0], expected, rtol=0, atol=1e-15)
    np.testing.assert_allclose(programme(len(y), cap).solve(np.array(y)), expected, rtol=0, atol=1e-6)


@given(rows, caps)
def test_optimality_conditions(y, share):
    """On the simplex no weight can move from v (w_v > 0) to u (w_u < cap) and lower ½‖w − y‖².

    Its derivative in w_u is w_u − y_u, so w_u − y_u >= w_v − y_v for all such pairs: necessary and, the problem being
    convex, sufficient.
    """
    y, cap = np.array(y), cap_of(share, len(y))
    weights = project_rows(y[None], cap)[0]
    assert (weights >= 0).all()
    assert weights.max() <= (1.0 if cap is None else cap)
    assert abs(weights.sum() - 1.0) <= 1e-14 * len(y)
    # In units that neither overflow nor lose the differences that matter.
    with np.errstate(over="ignore"):
        slope = weights - np.clip(y - np.sort(y)[simplex._anchor(cap or 1.0, len(y))], -1e6, 1e6)
    may_grow, may_shrink = slope[weights < (cap or 1.0) - 1e-12], slope[weights > 1e-12]
    if len(may_grow):
        assert may_grow.min() >= may_shrink.max() - 1e-9


@settings(max_examples=150)
@given(rows, caps.map(lambda share: None if share is None else round(share, 1)))
def test_solver_and_projection_agree(y, share):
    y = np.array(y)
    cap = cap_of(share, len(y))
    np.testing.assert_allclose(programme(len(y), cap).solve(y), project_rows(y[None], cap)[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("cap", [None, 0.02])
def test_solver_and_projection_agree_on_many_users(cap):
    """Rows as FedCA makes them: shares of interactions, few similar users, broad complementarity."""
    source = np.random.default_rng(0)
    sizes = source.lognormal(4.0, 1.0, 300)
    y = (sizes / sizes.sum() + 0.5 / (1 + source.exponential(300, (8, 300))) + 0.2 * source.beta(4, 12, (8, 300))) / 1.5
    y[np.arange(8), np.arange(8)] += 0.4
    found = project_rows(y, cap)
    assert 10 < np.count_nonzero(found[0]) < 300
    for row, weights in zip(y, found, strict=True):
        solved = programme(300, cap).solve(row)
        np.testing.assert_allclose(solved, weights, rtol=0, atol=1e-6)
        assert solved.min() >= 0
        assert abs(solved.sum() - 1.0) <= 1e-14


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=20))
def test_a_point_of_the_simplex_stays(values):
    p = np.array(values) / np.sum(values)
    np.testing.assert_allclose(project_rows(p[None])[0], p, rtol=0, atol=1e-15)


@given(st.lists(ordinary, min_size=1, max_size=12), st.randoms(use_true_random=False), st.floats(-100.0, 100.0), caps)
def test_order_and_a_constant_do_not_matter(values, random, constant, share):
    y, cap = np.array(values), cap_of(share, len(values))
    order = np.array(random.sample(range(len(y)), len(y)))
    weights = project_rows(y[None], cap)[0]
    np.testing.assert_allclose(project_rows(y[None, order] + constant, cap)[0], weights[order], rtol=0, atol=1e-12)


@given(st.lists(st.tuples(ordinary, ordinary), min_size=1, max_size=12), caps)
def test_projections_are_no_further_apart_than_their_points(pairs, share):
    y = np.array(pairs).T
    one, other = project_rows(y, cap_of(share, len(pairs)))
    assert np.linalg.norm(one - other) <= np.linalg.norm(y[0] - y[1]) + 1e-12


@pytest.mark.parametrize("cap", [None, 0.1])
def test_blocks_of_rows_are_rows(cap, monkeypatch):
    y = np.random.default_rng(1).normal(size=(23, 17)).astype(np.float32)
    before, whole = y.copy(), project_rows(y, cap)
    monkeypatch.setattr(simplex, "BLOCK_BYTES", 8 * 17 * 5)
    np.testing.assert_array_equal(project_rows(y, cap), whole)
    np.testing.assert_array_equal(np.concatenate([project_rows(row[None], cap) for row in y]), whole)
    np.testing.assert_array_equal(y, before)


@pytest.mark.parametrize("cap", [None, 0.3, 1e-4])
def test_sums_stay_exact_for_many_weights(cap):
    """Also where the sum of the largest values is 10⁴ and its rounding much more than that of 1."""
    source = np.random.default_rng(2)
    y = source.normal(size=(4, 20_000)) * np.array([[1e-9], [1.0], [1e12], [1e-6]])
    y[3, 1:] -= 0.5
    weights = project_rows(y, cap)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=0, atol=1e-12)
    assert weights.max() <= (cap or 1.0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused_by_row(bad, monkeypatch):
    monkeypatch.setattr(simplex, "BLOCK_BYTES", 8 * 4 * 2)
    y = np.zeros((7, 4))
    y[5, 3] = y[6, 0] = bad
    with pytest.raises(ValueError, match="not finite in row 5 of y"):
        project_rows(y)
    with pytest.raises(ValueError, match="not finite"):
        programme(4, None).solve(y[5])


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (3,), (2, 2, 2)])
def test_what_is_no_matrix_is_refused(shape):
    with pytest.raises(ValueError, match="at least one row and one column"):
        project_rows(np.zeros(shape))


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match=r"must have shape \(4,\), not \(5,\)"):
        programme(4, None).solve(np.zeros(5))


@pytest.mark.parametrize("cap", [0.0, 0.24, 1.01, -1.0, np.nan])
def test_an_impossible_cap_is_refused(cap):
    with pytest.raises(ValueError, match=f"between 1/4 and 1, not be {cap}"):
        project_rows(np.zeros((1, 4)), cap)
    with pytest.raises(ValueError, match="between 1/4 and 1"):
        QuadraticProgramme(4, cap)


def test_the_solver_is_imported_only_where_it_is_used():
    code = "import strategies.fedca, sys; print('cvxpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
