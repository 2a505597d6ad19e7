"""Singular values and rank-biased overlap, against values derived by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bouquet.evaluation import (
    information_abundance,
    rank_biased_overlap,
    singular_value_variance,
    singular_values,
)

TABLES = st.integers(0, 2**32 - 1).map(lambda seed: np.random.default_rng(seed).normal(size=(9, 4)))


def test_a_table_of_rank_one_has_abundance_one():
    table = np.outer([1.0, -2.0, 3.0], [4.0, 5.0])
    assert information_abundance(table) == pytest.approx(1, abs=1e-12)


def test_abundance_by_hand():
    """Columns (3, 0, 0) and (0, 4, 0) are orthogonal: σ = 4 and 3, so IA = 7 / 4."""
    table = np.array([[3.0, 0.0], [0.0, 4.0], [0.0, 0.0]])
    np.testing.assert_allclose(singular_values(table), [4, 3])
    assert information_abundance(table) == pytest.approx(1.75)
    assert information_abundance(torch.tensor(table, requires_grad=True)) == pytest.approx(1.75)


def test_a_table_of_zeros_has_none():
    assert information_abundance(np.zeros((3, 2))) == 0


def test_the_covariance_of_a_single_row_is_zero():
    assert singular_value_variance(np.array([[1.0, 2.0]])) == 0


@given(TABLES, st.floats(0.01, 100))
def test_abundance_is_between_one_and_d_and_knows_no_scale(table, scale):
    found = information_abundance(table)
    assert 1 <= found <= 4
    assert information_abundance(scale * table) == pytest.approx(found)


def test_variance_by_hand():
    """Rows (±1, 0) and (0, ±2) have mean 0 and covariance diag(2, 8) / 3: variance of 2/3 and 8/3 is 1."""
    table = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 2.0], [0.0, -2.0]])
    assert singular_value_variance(table) == pytest.approx(1)


@given(TABLES)
def test_variance_is_that_of_the_covariance_matrix(table):
    expected = np.linalg.svd(np.cov(table.T), compute_uv=False).var()
    assert singular_value_variance(table) == pytest.approx(expected)
    assert singular_value_variance(np.stack([table, table])).shape == (2,)


def test_equal_and_disjoint_lists():
    first = np.arange(50)
    assert rank_biased_overlap(first, first) == pytest.approx(1)
    assert rank_biased_overlap(first, first + 50) == 0


def test_overlap_by_hand():
    """(a, b) and (b, a): A_1 = 0, A_2 = 1, so with p = ½ RBO = 1·¼ + 1·(0·½ + 1·¼) = ½."""
    assert rank_biased_overlap(np.array([0, 1]), np.array([1, 0]), p=0.5) == pytest.approx(0.5)


@given(st.permutations(list(range(12))), st.permutations(list(range(12))), st.floats(0.05, 0.99))
def test_overlap_by_its_definition(first, second, p):
    k = 7
    agreement = [len(set(first[:d]) & set(second[:d])) / d for d in range(1, k + 1)]
    expected = agreement[-1] * p**k + (1 - p) / p * sum(a * p**d for d, a in enumerate(agreement, 1))
    found = rank_biased_overlap(np.array([first[:k], second[:k]]), np.array([second[:k], first[:k]]), p)
    np.testing.assert_allclose(found, [expected, expected], atol=1e-12)


@pytest.mark.parametrize(("second", "p", "sentence"), [([1], 0.9, "equal length"), ([1, 2], 1.0, "between 0 and 1")])
def test_lists_that_cannot_be_compared(second, p, sentence):
    with pytest.raises(ValueError, match=sentence):
        rank_biased_overlap(np.array([0, 1]), np.array(second), p)
