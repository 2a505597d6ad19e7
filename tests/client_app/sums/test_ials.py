"""A user's vector and what it adds to sums: by hand, and as the minimum that it is said to be."""

import numpy as np
import pytest

from bouquet.errors import WireError
from bouquet.methods.ials import IalsOptions
from bouquet.ragged import Ragged
from client_app.sums.ials import Ials

V = np.array([[1.0], [2.0]], np.float32)
# Two users of two items: one has the first, the other has both.
BOTH = Ragged.from_lengths([1, 2], [0, 0, 1])


def device(items=2, **changes):
    given = {"ials_rank": 1, "ials_unobserved": 1.0, "ials_regularization": 1.0, "ials_frequency": 0.0, **changes}
    return Ials(items, IalsOptions(**given))


def test_vectors_by_hand():
    """d = 1, v = (1, 2), α0 = λ = 1. VᵀV = 5.

    ν = 0: the first user 1 / (1 + 5 + 1) = 1/7, the second (1 + 2) / (5 + 5 + 1) = 3/11.
    ν = 1: λ_u = |I_u| + 2 is 3 and 4: 1 / (1 + 5 + 3) = 1/9 and 3 / (5 + 5 + 4) = 3/14.
    """
    np.testing.assert_allclose(device().vectors(V.astype(float), BOTH), [[1 / 7], [3 / 11]])
    np.testing.assert_allclose(device(ials_frequency=1.0).vectors(V.astype(float), BOTH), [[1 / 9], [3 / 14]])
    np.testing.assert_allclose(device().scores({"factors": V}, BOTH), [[1 / 7, 2 / 7], [3 / 11, 6 / 11]], rtol=1e-6)


def test_what_is_sent_by_hand():
    """With u = 1/7 and 3/11 as above. Along v: item 0 has u²·1 of both, item 1 has u²·2 of the second.

    Of the loss per item is left 1 - u Σv / |I_u|: 6/7 and 1 - 9/22.
    Along p = (3, 1): item 0 has 3 u² of both, item 1 has u² of the second.
    """
    one, two = (1 / 7) ** 2, (3 / 11) ** 2
    first = device().given({"factors": V}, BOTH)
    found = {name: packed.values for name, packed in first.sums.items()}
    np.testing.assert_allclose(found["target"], [[1 / 7 + 3 / 11], [3 / 11]])
    np.testing.assert_allclose(found["product"], [[one + two], [2 * two]])
    np.testing.assert_allclose(found["count"], [2, 1])
    np.testing.assert_allclose(found["gram"], [[one + two]])
    np.testing.assert_allclose(first.loss, [6 / 7, 13 / 22], rtol=1e-6)
    direction = np.array([[3.0], [1.0]], np.float32)
    (step,) = device().given({"factors": V, "direction": direction}, BOTH).sums.values()
    np.testing.assert_allclose(step.values, [[3 * (one + two)], [two]])


def test_a_vector_is_the_minimum_of_its_loss():
    """No step of a thousandth to any side has a smaller loss."""
    source = np.random.default_rng(0)
    factors = source.normal(size=(9, 3))
    ials = device(9, ials_rank=3, ials_unobserved=0.3, ials_regularization=0.1, ials_frequency=0.5)
    items = [1, 4, 8]
    ((found),) = ials.vectors(factors, Ragged.from_lengths([3], items))

    def loss(u):
        scores = factors @ u
        return ((1 - scores[items]) ** 2).sum() + 0.3 * scores @ scores + 0.1 * (3 + 0.3 * 9) ** 0.5 * u @ u

    for side in source.normal(size=(50, 3)):
        assert loss(found + 1e-3 * side) > loss(found)


def test_one_user_alone_sends_the_rows_of_its_items_in_32_bits():
    """d = 1 and 1 of 2 items: a row number and 4 bytes in three arrays by item, and G of 4 bytes."""
    given = device().given({"factors": V}, BOTH.take([0]))
    for name in ("target", "product", "count"):
        assert given.sums[name].rows.tolist() == [0]
    assert all(packed.values.dtype == np.float32 for packed in given.sums.values())
    assert given.upload_bytes.tolist() == [3 * 8 + 4]
    whole = device().given({"factors": V}, BOTH.take([1]))
    assert all(packed.rows is None for packed in whole.sums.values())
    assert whole.upload_bytes.tolist() == [3 * 2 * 4 + 4]


def test_who_has_nothing_adds_nothing():
    given = device().given({"factors": V}, Ragged.from_lengths([0], []))
    assert given.fit.all()
    assert np.isnan(given.loss).all()
    assert all(np.abs(packed.values).sum() == 0 for packed in given.sums.values())


def test_what_does_not_fit_into_32_bits_is_left_out():
    """v = (.001, .002) and next to nothing that holds u down: u = 1000 and 600, and u² p is too large at p = 3e38."""
    tiny = {"factors": np.float32(1e-3) * V, "direction": np.full_like(V, 3e38)}
    found = device(ials_regularization=1e-12, ials_unobserved=1e-12).given(tiny, BOTH)
    assert not found.fit.any()
    assert np.abs(found.sums["product"].values).sum() == 0


@pytest.mark.parametrize("shared", [{}, {"direction": V}, {"factors": V, "gram": V}])
def test_what_there_is_no_answer_to_is_refused(shared):
    with pytest.raises(WireError, match="a sweep of ials has 'factors'"):
        device().given(shared, BOTH)
