"""Similarity of tables, eq. 6 of FedCA: by hand, and six digits of the plain definition whatever the tables."""

from __future__ import annotations

import numpy as np
import pytest

from strategies.fedca import similarity_matrix
from strategies.numerics import distances
from tests.strategies.fedca_references import plain_similarity, same, trained_tables


def test_similarity_by_hand():
    """Q_0 − Q_1 = [[1, 0], [0, −2]]: squared norm 5, s = 1/6. Q_2 = Q_0: s = 1."""
    tables = np.array([[[1, 0], [0, 0]], [[0, 0], [0, 2]], [[1, 0], [0, 0]]], np.float32)
    np.testing.assert_allclose(similarity_matrix(tables), [[1, 1 / 6, 1], [1 / 6, 1, 1 / 6], [1, 1 / 6, 1]], rtol=1e-6)


def far_base(tables):
    """A large table added to all."""
    return tables + np.float32(30) * np.random.default_rng(1).normal(size=tables.shape[1:]).astype(np.float32)


def two_camps(tables):
    """Half of the users far from the other half, so that centring does not help."""
    return tables + np.where(np.arange(len(tables)) % 2, 5, -5)[:, None, None].astype(np.float32)


def twins(tables):
    """Two users who nearly agree."""
    tables = tables.copy()
    tables[1] = tables[0]
    tables[1, 5, 2] += 0.25
    return tables


def large_values(tables):
    """Squares beyond the range of float32."""
    return tables * np.float32(1e25)


@pytest.mark.parametrize("change", [np.copy, far_base, two_camps, twins, same, large_values, np.float64])
def test_similarity_keeps_six_digits(change):
    tables = change(trained_tables(60))
    before = tables.copy()
    found = similarity_matrix(tables)
    np.testing.assert_allclose(found, plain_similarity(tables), rtol=1e-6)
    np.testing.assert_array_equal(found, found.T)
    np.testing.assert_array_equal(np.diagonal(found), 1.0)
    np.testing.assert_array_equal(tables, before)


def test_float64_only_where_it_is_needed(monkeypatch):
    """A base that all share costs nothing, a close pair is computed on its own, two camps are done in float64."""
    asked = []
    gram = distances._centred_gram
    monkeypatch.setattr(distances, "_centred_gram", lambda tables, dtype: (asked.append(dtype), gram(tables, dtype))[1])
    for change in (far_base, twins):
        similarity_matrix(change(trained_tables(60)))
    assert asked == [np.float32, np.float32]
    similarity_matrix(two_camps(trained_tables(60)))
    assert asked[2:] == [np.float32, np.float64]


def test_a_sample_of_users_tells_that_float32_will_not_do(monkeypatch):
    """Two camps of many users are multiplied once: 9 of 60 users, every seventh, are in both camps already."""
    asked = []
    gram = distances._centred_gram
    monkeypatch.setattr(
        distances, "_centred_gram", lambda tables, dtype: (asked.append((len(tables), dtype)), gram(tables, dtype))[1]
    )
    monkeypatch.setattr(distances, "SAMPLE", 8)
    tables = two_camps(trained_tables(60))
    np.testing.assert_allclose(similarity_matrix(tables), plain_similarity(tables), rtol=1e-6)
    assert asked == [(9, np.float32), (60, np.float64)]
    similarity_matrix(twins(trained_tables(60)))
    assert asked[2:] == [(9, np.float32), (60, np.float32)]


def test_a_close_pair_with_long_tables_keeps_six_digits():
    """3 and 3.1 in 40,000 values: added up one after another in float32, equal squares drift by 1e-5."""
    tables = np.random.default_rng(0).normal(0, 3, (8, 40_000, 1)).astype(np.float32)
    tables[0], tables[1] = 3.0, 3.1
    np.testing.assert_allclose(similarity_matrix(tables), plain_similarity(tables), rtol=1e-6)


def test_similarity_by_blocks_and_from_a_memory_map(tmp_path, monkeypatch):
    tables = trained_tables(12, items=50)
    mapped = np.memmap(tmp_path / "tables", np.float32, "w+", shape=tables.shape)
    mapped[:] = tables
    monkeypatch.setattr(distances, "BLOCK_VALUES", 7 * 16)
    monkeypatch.setattr(distances, "BLOCK_BYTES", 8 * 12 * 5)
    np.testing.assert_allclose(similarity_matrix(mapped), plain_similarity(tables), rtol=1e-6)
    np.testing.assert_allclose(similarity_matrix(tables[:, ::3, ::2]), plain_similarity(tables[:, ::3, ::2]), rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_table_that_is_not_finite_is_refused_by_user(bad):
    tables = trained_tables(9, items=50)
    tables[6, 30, 2] = tables[8, 0, 0] = bad
    with pytest.raises(ValueError, match="not finite in the table of user 6"):
        similarity_matrix(tables)
