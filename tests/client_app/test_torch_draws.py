"""Invariant: numbers drawn where tensors are have the bits of those that numpy draws."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from bouquet.randomness import draw, uniforms
from client_app.training.torch_draws import uniforms_there

WORDS = st.integers(0, 2**64 - 1)


@given(st.lists(WORDS, min_size=1, max_size=4), st.integers(0, 2**62), st.integers(0, 9))
def test_they_are_the_host_s_to_the_last_bit(streams, first, count):
    words = np.array(streams, np.uint64)
    expected = uniforms(draw(words[:, None], first + np.arange(count)[None]))
    found = uniforms_there(words, first, count, torch.device("cpu"))
    np.testing.assert_array_equal(found.numpy(), expected)


def test_the_first_number_by_hand():
    """Stream 0, number 0 is the first output of SplitMix64 with seed 0, as its authors' code prints it."""
    (first,) = uniforms_there(np.zeros(1, np.uint64), 0, 1, torch.device("cpu")).flatten().tolist()
    assert first == (0xE220A8397B1DCDAF >> 11) / 2**53
