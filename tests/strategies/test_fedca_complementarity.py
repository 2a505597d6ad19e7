"""Complementarity of users, eq. 7 of FedCA: by hand, against the plain definition, and what cannot matter to it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from strategies import fedca
from strategies.fedca import complementarity_matrix
from tests.strategies.fedca_references import plain_complementarity, random_features, seeds


def test_complementarity_by_hand():
    """k = 1, vectors at 60°: φ = π/3, cos φ = 1/2, and 1 − cos φ = 1/2. The sign of a vector does not matter.

    k = 2, in R³: x_0 = (e1, e2), x_1 = (e1, e3): φ = (0 + π/2)/2 = π/4, c = √½.
    """
    third = [0.5, 0.75**0.5]
    features = np.array([[[1.0, 0.0]], [third], [[-0.5, -(0.75**0.5)]]])
    for sign in ("printed", "orthogonal"):
        found = complementarity_matrix(features, sign=sign)
        np.testing.assert_allclose(found[0, 1:], 0.5, rtol=0, atol=1e-12)
    np.testing.assert_allclose(complementarity_matrix(features)[1, 2], 1.0, rtol=0, atol=1e-12)
    np.testing.assert_allclose(complementarity_matrix(features, sign="orthogonal")[1, 2], 0.0, rtol=0, atol=1e-12)
    axes = np.eye(3)
    found = complementarity_matrix(np.array([axes[[0, 1]], axes[[0, 2]]]))
    np.testing.assert_allclose(found, [[1, 0.5**0.5], [0.5**0.5, 1]], rtol=0, atol=1e-12)


def test_padding_stands_at_a_right_angle():
    """One of two vectors is missing: φ = (0 + π/2)/2 with oneself, with a user of both the same, with none π/2."""
    features = np.array([[[1.0, 0], [0, 0]], [[1, 0], [0, 1]], [[0, 0], [0, 0]]])
    for paired in ("index", "greedy"):
        found = complementarity_matrix(features, paired=paired)
        np.testing.assert_allclose(found, [[0.5**0.5, 0.5**0.5, 0], [0.5**0.5, 1, 0], [0, 0, 0]], rtol=0, atol=1e-12)


def test_greedy_matches_the_closest_first():
    """x_0 = (e1, e2) and x_1 = (e2, e1): by index all angles are π/2, greedily all are 0.

    And the closest first is not the best for all: x_1 = ((.6, 0, .8), (.8, .6, 0)) has cosines .6, .8 to e1 and 0, .6
    to e2. By index that is .6 and .6; greedily .8 comes first and leaves 0.
    """
    axes = np.eye(3)[:2]
    features = np.array([axes, axes[::-1]])
    np.testing.assert_allclose(complementarity_matrix(features)[0, 1], 0.0, rtol=0, atol=1e-12)
    np.testing.assert_allclose(complementarity_matrix(features, paired="greedy"), 1.0, rtol=0, atol=1e-12)
    features = np.array([axes, [[0.6, 0.0, 0.8], [0.8, 0.6, 0.0]]])
    np.testing.assert_allclose(complementarity_matrix(features)[0, 1], 0.6, rtol=0, atol=1e-12)
    expected = np.cos((np.arccos(0.8) + np.pi / 2) / 2)
    np.testing.assert_allclose(complementarity_matrix(features, paired="greedy")[0, 1], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("paired", ["index", "greedy"])
@pytest.mark.parametrize(("users", "k", "size"), [(1, 4, 16), (2, 1, 3), (40, 4, 16), (9, 5, 6)])
def test_complementarity_is_eq_7(paired, users, k, size, monkeypatch):
    features = random_features(np.random.default_rng(users), users, k, size)
    features[users // 2, k // 2 :] = 0.0
    before = features.copy()
    whole = complementarity_matrix(features, paired=paired)
    monkeypatch.setattr(fedca, "TILE_BYTES", 8 * k * k * 7**2)
    found = complementarity_matrix(features, paired=paired)
    np.testing.assert_allclose(found, whole, rtol=0, atol=1e-14)
    np.testing.assert_array_equal(found, found.T)
    # Float32 vectors are of length 1 to seven digits only, of which the plain form's arccos near 1 leaves three.
    np.testing.assert_allclose(found, plain_complementarity(features, paired), rtol=0, atol=2e-4)
    lengths = np.linalg.norm(features.astype(np.float64), axis=2, keepdims=True)
    exact = features / np.where(lengths > 0, lengths, 1.0)
    np.testing.assert_allclose(found, plain_complementarity(exact, paired), rtol=0, atol=1e-8)
    np.testing.assert_array_equal(features, before)


def test_a_user_with_all_vectors_is_one_with_itself():
    features = random_features(np.random.default_rng(0), 50)
    noisy = features + np.random.default_rng(1).laplace(0, 0.2, features.shape).astype(np.float32)
    for vectors in (features, noisy):
        for paired in ("index", "greedy") if vectors is features else ("index",):
            found = np.diagonal(complementarity_matrix(vectors, paired=paired))
            np.testing.assert_allclose(found, 1.0, rtol=0, atol=1e-14)


@given(seeds)
def test_no_sign_of_a_vector_matters(seed):
    source = np.random.default_rng(seed)
    features = random_features(source, 5)
    turned = features * source.choice([-1.0, 1.0], (5, 4, 1)).astype(np.float32)
    for paired in ("index", "greedy"):
        found = complementarity_matrix(features, paired=paired)
        np.testing.assert_allclose(complementarity_matrix(turned, paired=paired), found, rtol=0, atol=1e-12)
        assert (found >= 0).all()
        assert (found <= 1).all()


@given(seeds)
def test_greedy_does_not_see_the_order_of_vectors(seed):
    source = np.random.default_rng(seed)
    features = random_features(source, 5)
    shuffled = np.stack([vectors[source.permutation(4)] for vectors in features])
    found = complementarity_matrix(shuffled, paired="greedy")
    np.testing.assert_allclose(found, complementarity_matrix(features, paired="greedy"), rtol=0, atol=1e-12)


def test_bad_features_are_refused():
    features = np.ones((4, 2, 3))
    features[2, 1, 1] = np.nan
    with pytest.raises(ValueError, match="not finite in the features of user 2"):
        complementarity_matrix(features)
    with pytest.raises(ValueError, match="paired must be one of index, greedy, not 'best'"):
        complementarity_matrix(np.ones((4, 2, 3)), paired="best")
    with pytest.raises(ValueError, match="sign must be one of printed, orthogonal"):
        complementarity_matrix(np.ones((4, 2, 3)), sign="minus")
