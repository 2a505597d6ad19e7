"""Cells that come in any order, a few or many at a time, add up to what they add up to at once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bouquet.cells
from bouquet.cells import FINE, CellSpec, Total, quantized

SHAPE = (7, 11)


def test_by_hand():
    """Cell (0, 2) gets 1 + 2, cell (1, 0) gets 1 - 1 = 0 and does not travel, cell (6, 10) gets 4."""
    total = Total(CellSpec(SHAPE))
    total.add(np.array([2, 11]), 1.0)
    total.add(np.array([76, 2, 11]), np.array([4.0, 2.0, -1.0]))
    found = total.cells()
    assert (found.rows.tolist(), found.lengths.tolist()) == ([0, 6], [1, 1])
    assert (found.columns.tolist(), found.values.tolist()) == ([2, 10], [3.0, 4.0])


def test_nothing():
    assert Total(CellSpec(SHAPE)).cells().nbytes == 0


@pytest.mark.parametrize("whole", [8, 10_000], ids=["in runs", "as a whole"])
@given(parts=st.lists(st.lists(st.tuples(st.integers(0, 76), st.integers(-3, 3)), max_size=40), max_size=12))
def test_in_whatever_parts(whole, parts):
    """In runs: every few cells are put together and runs are merged, with keys that some of them share."""
    expected = np.zeros(SHAPE[0] * SHAPE[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bouquet.cells, "_WHOLE", whole)
        total = Total(CellSpec(SHAPE))
        for part in parts:
            keys, values = np.array(part, np.int64).reshape(-1, 2).T
            total.add(keys, values * FINE)
            np.add.at(expected, keys, values * FINE)
        found = total.cells()
    keys = np.flatnonzero(expected)
    assert found.keys(CellSpec(SHAPE)).tolist() == keys.tolist()
    assert found.values.tolist() == expected[keys].tolist()


@given(st.integers(1, 2**24))
def test_what_one_user_gives_of_a_cell_needs_no_more_than_32_bits(size):
    share = quantized(1.0 / size, FINE)
    assert float(np.float32(share)) == share
    assert abs(share - 1.0 / size) <= FINE / 2
