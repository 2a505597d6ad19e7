"""Keyed randomness: the same draws for the same key, whoever else is there; and draws that look random."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare, kstest

from bouquet.arrays import ArraySpec, initial_private
from bouquet.randomness import (
    Purpose,
    draw,
    generator,
    integers,
    mix,
    normals,
    streams,
    uniforms,
    user_key,
    user_keys,
)


def test_mix_is_splitmix64():
    """SplitMix64 seeded with 0 gives 0xE220A8397B1DCDAF first (its reference output): mix(golden ratio increment)."""
    assert int(mix(np.array([0x9E3779B97F4A7C15], dtype=np.uint64))[0]) == 0xE220A8397B1DCDAF


def test_a_user_has_the_same_key_on_every_machine():
    assert user_key("196") == user_keys(["1", "196"])[1]
    assert user_key("196") == int.from_bytes(__import__("hashlib").blake2b(b"196", digest_size=8).digest(), "little")


@given(
    st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20, unique=True),
    st.integers(0, 2**63),
    st.integers(0, 500),
)
def test_streams_do_not_depend_on_who_else_is_there(users, seed, round_):
    keys = np.array(users, dtype=np.uint64)
    together = streams(seed, keys, round_, Purpose.NOISE)
    alone = np.concatenate([streams(seed, keys[i : i + 1], round_, Purpose.NOISE) for i in range(len(keys))])
    assert np.array_equal(together, alone)


def test_streams_differ_by_seed_user_round_and_purpose():
    keys = user_keys([str(i) for i in range(50)])
    kinds = [streams(s, keys, r, p) for s in (0, 1) for r in (0, 1, 2) for p in Purpose]
    assert len(np.unique(np.concatenate(kinds))) == len(kinds) * 50


def test_integers_are_uniform():
    """Chi-square over 1,682 values and 400,000 draws of 1,000 streams; p > 1e-4 for a good generator."""
    stream = streams(3, user_keys([str(i) for i in range(1000)]), 1, Purpose.TRAIN_NEGATIVES)
    values = integers(draw(stream[:, None], np.arange(400)[None, :]), 1682).ravel()
    assert values.min() == 0
    assert values.max() == 1681
    assert chisquare(np.bincount(values, minlength=1682)).pvalue > 1e-4


def test_uniforms_and_normals_have_their_distributions():
    stream = streams(5, user_keys([str(i) for i in range(500)]), 0, Purpose.PRIVATE_INIT)
    assert kstest(uniforms(draw(stream[:, None], np.arange(40)[None, :])).ravel(), "uniform").pvalue > 1e-4
    values = normals(stream, 33)
    assert values.shape == (500, 33)
    assert kstest(values.ravel(), "norm").pvalue > 1e-4
    assert abs(np.corrcoef(values[:, 0], values[:, 17])[0, 1]) < 0.15


@pytest.mark.parametrize("init", ["normal", "uniform", "zeros", "constant"])
@pytest.mark.parametrize("shape", [(4,), (700, 40), (2000, 50)])
def test_private_arrays_do_not_depend_on_who_else_is_there(init, shape):
    """Users are drawn all at once, two at a time and one by one: 4, 28,000 and 100,000 values each."""
    spec, users = ArraySpec(shape, init, 0.5), user_keys(["ann", "bob", "cid", "dan", "eve"])
    together = initial_private("table", spec, 7, users)
    assert together.shape == (5, *shape)
    assert together.dtype == np.float32
    for user in range(5):
        np.testing.assert_array_equal(together[user], initial_private("table", spec, 7, users[user : user + 1])[0])
    assert len(np.unique(together[:, 0].reshape(5, -1)[:, 0])) == (1 if init in ("zeros", "constant") else 5)


def test_generators_of_different_names_differ():
    first = generator(0, 0, Purpose.SHARED_INIT, "a").normal(size=4)
    assert np.array_equal(first, generator(0, 0, Purpose.SHARED_INIT, "a").normal(size=4))
    assert not np.allclose(first, generator(0, 0, Purpose.SHARED_INIT, "b").normal(size=4))
