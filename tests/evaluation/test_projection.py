"""Tables on a plane: by hand, and what holds for any table."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bouquet.evaluation import on_a_plane

TABLES = arrays(np.float64, st.tuples(st.integers(1, 8), st.integers(1, 4)), elements=st.floats(-10, 10, width=32))


def test_two_directions_by_hand():
    """Columns 4 + (3, -1, -1, -1) and 5 - (0, 2, -1, -1), which are orthogonal, and a third that is always 7.

    Centred, they are the components: σ² = 9 + 1 + 1 + 1 = 12 and 4 + 1 + 1 = 6, all of the spread. The farthest points
    are 3 and -2; the second component is turned round, and 3, the largest coordinate, becomes 1.
    """
    points, share = on_a_plane(np.array([[7, 5, 7], [3, 3, 7], [3, 6, 7], [3, 6, 7.0]]))
    np.testing.assert_allclose(3 * points, [[3, 0], [-1, 2], [-1, -1], [-1, -1]], atol=1e-12)
    assert share == pytest.approx(1)


def test_what_the_plane_does_not_show_is_told():
    """Three directions with σ² = 2 · 9, 2 · 4 and 2 · 1: the plane has 13 of 14 parts."""
    rows = np.concatenate([np.diag([3.0, 2, 1]), -np.diag([3.0, 2, 1])])
    assert on_a_plane(rows)[1] == pytest.approx(13 / 14)


def test_a_table_without_spread_is_one_point():
    points, share = on_a_plane(np.full((4, 3), 0.1))
    assert (points == 0).all()
    assert share == 1


def test_one_column_is_a_line():
    points, share = on_a_plane(np.array([[0.0], [1], [5]]))
    np.testing.assert_allclose(points, [[-2 / 3, 0], [-1 / 3, 0], [1, 0]], atol=1e-12)
    assert share == pytest.approx(1)


@given(TABLES, st.floats(0.5, 4), st.floats(-5, 5))
def test_neither_scale_nor_place_of_a_table_changes_its_map(table, scale, shift):
    """Distances on the plane, that is; a component of equal spread may be another one."""
    points, share = on_a_plane(table)
    assert np.abs(points).max() in (0, pytest.approx(1))
    assert 0 <= share <= 1 + 1e-12
    if np.ptp(table, axis=0).max() > 1e-3:
        assert on_a_plane(scale * table + shift)[1] == pytest.approx(share, abs=1e-6)
