"""Initial values by compiled loops: those of numpy to the last digit, also where rounding is in doubt."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bouquet.arrays import ArraySpec, initial_private, private_streams
from bouquet.randomness import normals, user_keys
from client_app.training import drawn
from client_app.training.compiler import normals_kernels
from client_app.training.drawn import drawn_private

USERS = user_keys(["ann", "bob", "cid"])
LARGE = st.sampled_from([(2048, 16), (40_981, 3), (32_769,), (1, 40_000), (6000, 3, 2)])


def found_for(spec, seed, users=USERS):
    out = np.empty((len(users), *spec.shape), np.float32)
    drawn_private("table", spec, seed, users, out)
    return out


@settings(max_examples=40)
@given(shape=LARGE, scale=st.sampled_from([0.1, 0.5, 1.0, 3.7e-5, 1e-30, 1e30]), seed=st.integers(0, 2**63))
def test_compiled_values_are_those_of_numpy(shape, scale, seed):
    spec = ArraySpec(shape, "normal", scale, by_item=True)
    np.testing.assert_array_equal(found_for(spec, seed), initial_private("table", spec, seed, USERS))


@pytest.mark.parametrize("init", ["uniform", "zeros", "constant", "normal"])
@pytest.mark.parametrize("shape", [(0, 4), (7, 2), (4096, 16)])
def test_whatever_is_not_compiled_is_drawn_as_well(init, shape):
    spec = ArraySpec(shape, init, 0.5)
    np.testing.assert_array_equal(found_for(spec, 1), initial_private("table", spec, 1, USERS))


def test_a_device_without_numba_or_with_many_doubts_draws_the_same(monkeypatch):
    spec = ArraySpec((40_981, 16), by_item=True)
    expected = found_for(spec, 1)
    monkeypatch.setattr(drawn, "_DOUBTFUL", 0)
    np.testing.assert_array_equal(found_for(spec, 1), expected)
    monkeypatch.setattr(drawn, "normals_kernels", lambda: None)
    np.testing.assert_array_equal(found_for(spec, 1), expected)


def test_what_rounds_differently_is_in_doubt():
    """Of 2.6 million values: all that are within 2^-44 of the middle between two float32 are told, and few others.

    Within 2^-43 of themselves lie 2 · 2^-43 · 2^52 = 2^10 of the 2^29 float64 between two float32, that is 1.9 in a
    million; a pair is told whole, and so are sines and cosines below 1e-9: 10 expected, up to 40 are let pass.
    """
    streams = private_streams("table", 3, USERS)[:2]
    count = 2 * 655_696
    out, doubtful = np.empty((2, count), np.float32), np.empty(1000, np.int64)
    told = set(doubtful[: normals_kernels().normals(streams, 0.1, out, doubtful)].tolist())
    exact = 0.1 * normals(streams, count).reshape(-1)
    distance = np.abs((exact.view(np.uint64) & np.uint64(2**29 - 1)).astype(np.int64) - 2**28)
    assert set(np.flatnonzero(distance < 2**8).tolist()) <= told
    assert len(told) < 40
