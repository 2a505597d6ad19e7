"""Shares of noise under masks: together they are what was asked for, whoever is lost, and nobody repeats them."""

from __future__ import annotations

import numpy as np
import pytest

from bouquet.arrays import ArraySpec
from bouquet.masking.coordinator import sum_of
from bouquet.masking.graph import least
from bouquet.masking.rules import Rules
from bouquet.masking.vectors import Layout
from bouquet.packed import PackedArray

NODES, SIZE = 9, 40_000
SPECS = {"q": ArraySpec((SIZE, 1), by_item=True)}
NO_LOSS = np.full(1, np.nan)


def layout(noise, clip=8.0):
    return Layout(SPECS, {}, Rules(clip=clip, noise=noise), weight=float(NODES), users=NODES, nodes=NODES)


def given(rules, value):
    return rules.encode_sums({"q": PackedArray(None, np.full((SIZE, 1), value))}, 1.0, 1.0, NO_LOSS)


def summed(rules, nodes, value=0.0):
    return rules.decode_sums(sum_of([given(rules, value) for _ in range(nodes)]))["q"].values


def test_as_many_as_must_be_left_have_the_whole_noise_together():
    """Nine nodes of which more than 2/3 must be left, which is seven: each has 3 / √7, all nine 3 √(9 / 7) = 3.40.

    Of 40,000 draws a standard deviation is known to 1 / √80,000 = .4 %; 2 % is five times that.
    """
    rules = layout(3.0)
    assert least(NODES, 2 / 3) == 7
    assert rules.share == pytest.approx(3.0 / np.sqrt(7))
    assert summed(rules, 7).std() == pytest.approx(3.0, rel=0.02)
    assert summed(rules, NODES).std() == pytest.approx(3.0 * np.sqrt(9 / 7), rel=0.02)


def test_noise_is_beside_what_is_clipped_and_does_not_overflow():
    """Every node at the clip of .5, noise six times as large: the mean of the sum is 9 · .5 within 5 / √40,000 σ."""
    found = summed(layout(3.0, clip=0.5), NODES, 0.5)
    assert abs(found.mean() - 4.5) < 5 * 3.0 * np.sqrt(9 / 7) / np.sqrt(SIZE)
    assert found.std() == pytest.approx(3.0 * np.sqrt(9 / 7), rel=0.02)


def test_the_same_numbers_have_other_noise_every_time():
    rules = layout(3.0)
    one, other = (rules.decode_sums(given(rules, 1.0))["q"].values.ravel() for _ in range(2))
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.05


def test_without_noise_nothing_is_added():
    rules = layout(0.0)
    assert rules.share == 0
    np.testing.assert_allclose(summed(rules, NODES, 0.25), 9 * 0.25, atol=NODES * 8.0 / 2**31)
