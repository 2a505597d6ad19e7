"""Sums of sparse matrices: exact whatever the order, and refused where they are malformed."""

import numpy as np
import pytest
from flwr.app import RecordDict
from hypothesis import given
from hypothesis import strategies as st

from bouquet import cells as module
from bouquet.cells import CellSpec, Total, quantized
from bouquet.errors import WireError
from bouquet.records import pack, read_cells

SPEC = CellSpec((4, 5))
ADDITIONS = st.lists(
    st.tuples(st.integers(0, 19), st.integers(-(2**20), 2**20).map(lambda number: number * 2.0**-16)), max_size=60
)


def total(additions, spec=SPEC):
    summed = Total(spec)
    for key, value in additions:
        summed.add(np.array([key]), value)
    return summed.cells()


def dense(cells, spec=SPEC):
    whole = np.zeros(spec.shape[0] * spec.shape[1])
    whole[cells.keys(spec)] = cells.values
    return whole.reshape(spec.shape)


def test_cells_by_hand():
    """1 + 2 in (0, 3); 4 in (2, 0); 5 - 5 in (2, 1) leaves nothing: two rows of one cell each."""
    found = total([(3, 1.0), (10, 4.0), (11, 5.0), (3, 2.0), (11, -5.0)])
    assert (found.rows.tolist(), found.lengths.tolist()) == ([0, 2], [1, 1])
    assert (found.columns.tolist(), found.values.tolist()) == ([3, 0], [3.0, 4.0])
    assert found.nbytes == 2 * 4 + 2 * 4 + 2 * 4 + 2 * 4


@given(ADDITIONS, st.randoms(use_true_random=False), st.sampled_from([0, 3, 10**9]))
def test_sums_are_exact_in_any_order_by_sorting_and_as_a_whole(additions, random, most):
    expected = np.zeros(20)
    for key, value in additions:
        expected[key] += value
    shuffled = random.sample(additions, len(additions))
    before, module._WHOLE = module._WHOLE, most
    try:
        found = total(shuffled)
    finally:
        module._WHOLE = before
    assert np.array_equal(dense(found).ravel(), expected)
    assert (found.values != 0).all()


@given(ADDITIONS, ADDITIONS)
def test_what_is_taken_off_was_never_there(first, second):
    both, one = total([*first, *second]), total(second)
    left = both.minus(one, SPEC)
    for name, values in vars(total(first)).items():
        assert np.array_equal(getattr(left, name), values), name


def test_values_are_narrow_where_that_is_exact():
    assert total([(0, 1.5)]).values.dtype == np.float32
    assert total([(0, 2.0**24 + 2.0**-16)]).values.dtype == np.float64
    assert quantized(0.1) == 6554 / 65536  # 0.1 * 65536 = 6553.6


def content_of(**changes):
    found = total([(3, 1.0), (10, 4.0), (12, 2.0)])
    return RecordDict({"update": pack({f"x/{name}": changes.get(name, v) for name, v in vars(found).items()})})


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("rows", np.array([2, 0], np.int32), "rows of 'x' should ascend"),
        ("rows", np.array([0, 4], np.int32), "outside the catalogue"),
        ("rows", np.array([0, 2], np.int64), "32-bit"),
        ("lengths", np.array([1, 1], np.int32), "do not fit its columns"),
        ("lengths", np.array([3, 0], np.int32), "do not fit its columns"),
        ("lengths", np.array([2**31 - 1, 2**31 - 1], np.int32), "do not fit its columns"),
        ("columns", np.array([3, 2, 0], np.int32), "ascend within a row"),
        ("columns", np.array([3, 0, 5], np.int32), "outside the 5"),
        ("columns", np.array([3, 0, -1], np.int32), "outside the 5"),
        ("columns", np.array([3.0, 0, 2]), "32-bit"),
        ("values", np.array([1.0, 4.0]), "should have 3 values"),
        ("values", np.array([1.0, np.nan, 4.0]), "not finite"),
        ("values", np.array([1, 4, 2]), "should have 3 values"),
    ],
)
def test_malformed_cells_are_refused(name, value, words):
    with pytest.raises(WireError, match=words):
        read_cells(content_of(**{name: value}), "x", SPEC)
    read_cells(content_of(), "x", SPEC)


def test_below_the_diagonal_nothing_travels():
    square = CellSpec((5, 5), symmetric=True)
    with pytest.raises(WireError, match="on or above the diagonal"):
        read_cells(content_of(), "x", square)  # (2, 0) is below
    assert square.size == 15
