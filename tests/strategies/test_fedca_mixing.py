"""The weighted sums of FedCA's server: by hand, by blocks, and in place."""

from __future__ import annotations

import numpy as np
import pytest

from strategies import fedca
from strategies.fedca import composite_weights, mix
from tests.strategies.fedca_references import random_round, trained_tables, with_value


def test_mixing_by_hand():
    """Two users, one item, d = 2: user 0 takes 3/4 of (4, 0) and 1/4 of (0, 8): (3, 2); user 1 keeps its own."""
    tables = np.array([[[4, 0]], [[0, 8]]], np.float32)
    found = mix(np.array([[0.75, 0.25], [0.0, 1.0]]), tables)
    np.testing.assert_array_equal(found, [[[3, 2]], [[0, 8]]])
    assert found.dtype == np.float32


@pytest.mark.parametrize("block", [16, 48, 4096])
@pytest.mark.parametrize("rows", [1, 7, 30])
def test_mixing_is_the_weighted_sum(block, rows, monkeypatch):
    monkeypatch.setattr(fedca, "BLOCK_VALUES", block)
    tables = trained_tables(30, items=50)
    weights = composite_weights(*random_round(0, 30), 0.5, 0.4)[:rows]
    expected = np.einsum("uv,vid->uid", weights, tables.astype(np.float64))
    np.testing.assert_allclose(mix(weights, tables), expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(mix(weights, tables.astype(np.float64)), expected, rtol=0, atol=1e-14)
    np.testing.assert_allclose(mix(weights, tables[:, ::-1]), expected[:, ::-1], rtol=0, atol=1e-6)
    out = np.full((rows, 50, 16), np.nan, np.float32)
    assert mix(weights, tables, out) is out
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("block", [16, 48, 4096])
@pytest.mark.parametrize("rows", [1, 30])
def test_few_weights_are_multiplied_alone(block, rows, monkeypatch):
    """Each user takes of itself and one other: 2 of 30 weights. In place too, where everybody has a row."""
    monkeypatch.setattr(fedca, "SPARSE_BLOCK_VALUES", block)
    monkeypatch.setattr(fedca, "BLOCK_VALUES", None)  # what a dense product would need
    tables = trained_tables(30, items=50)
    weights = (0.75 * np.eye(30) + 0.25 * np.roll(np.eye(30), 7, axis=1))[:rows]
    expected = np.einsum("uv,vid->uid", weights, tables.astype(np.float64))
    np.testing.assert_allclose(mix(weights, tables), expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(mix(weights, tables.astype(np.float64)), expected, rtol=0, atol=1e-14)
    np.testing.assert_allclose(mix(weights, tables[:, ::-1]), expected[:, ::-1], rtol=0, atol=1e-6)
    rest = tables[rows:].copy()
    mix(weights, tables, tables[:rows])
    np.testing.assert_allclose(tables[:rows], expected, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(tables[rows:], rest)


@pytest.mark.parametrize("block", [16, 48, 4096])
@pytest.mark.parametrize("rows", [7, 30])
def test_mixing_in_place(block, rows, monkeypatch, tmp_path):
    monkeypatch.setattr(fedca, "BLOCK_VALUES", block)
    tables = np.memmap(tmp_path / "tables", np.float32, "w+", shape=(30, 50, 16))
    tables[:] = trained_tables(30, items=50)
    weights = composite_weights(*random_round(0, 30), 0.5, 0.4)[:rows]
    expected, rest = mix(weights, tables), tables[rows:].copy()
    mix(weights, tables, tables[:rows])
    np.testing.assert_allclose(tables[:rows], expected, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(tables[rows:], rest)


def test_everybody_alone_changes_nothing():
    tables = trained_tables(30, items=50)
    np.testing.assert_array_equal(mix(np.eye(30), tables), tables)


@pytest.mark.parametrize(
    ("weights", "out", "message"),
    [
        (np.eye(4), None, r"weights must have one column for each of 5 tables, not shape \(4, 4\)"),
        (np.ones(5), None, "one column for each"),
        (with_value((5, 5), (3, 2), np.nan), None, "not finite in the weights of user 3"),
        (np.eye(5), np.empty((5, 6, 2)), r"out must be contiguous float32 of shape \(5, 6, 2\), not float64"),
        (np.eye(5), np.empty((4, 6, 2), np.float32), "out must be contiguous"),
        (np.eye(5), np.empty((6, 5, 2), np.float32).transpose(1, 0, 2), "out must be contiguous"),
    ],
)
def test_what_cannot_be_mixed_is_refused(weights, out, message):
    with pytest.raises(ValueError, match=message):
        mix(weights, np.ones((5, 6, 2), np.float32), out)


def test_whole_numbers_are_not_mixed():
    with pytest.raises(ValueError, match="tables must be float32 or float64, not int64"):
        mix(np.eye(2), np.ones((2, 3, 4), np.int64))


def test_an_overlap_that_would_spoil_the_tables_is_refused():
    tables = np.ones((5, 6, 2), np.float32)
    with pytest.raises(ValueError, match="out overlaps tables, but is neither"):
        mix(np.eye(5)[1:], tables, tables[1:])
