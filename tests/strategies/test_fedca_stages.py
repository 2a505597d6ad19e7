"""The server's stages of FedCA: by hand, against the plain definition, and what holds for any input."""

from __future__ import annotations

import cvxpy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bouquet.arrays import initial_private, initial_shared
from bouquet.config import ModelOptions, RunConfig, TrainingOptions
from bouquet.randomness import SeededDraws
from client_app.node.histories import histories_of
from client_app.training import BACKENDS, LocalTask
from data_partition import load, training_negatives
from models import BACKBONES
from strategies import fedca
from strategies.fedca import complementarity_matrix, composite_weights, mix, similarity_matrix
from strategies.numerics import distances

seeds = st.integers(0, 2**32 - 1)


def plain_similarity(tables):
    """Eq. 6 pair by pair, in float64."""
    flat = tables.reshape(len(tables), -1).astype(np.float64)
    return np.array([[1 / (1 + ((u - v) ** 2).sum()) for v in flat] for u in flat])


def plain_complementarity(features, paired="index"):
    """Eq. 7 pair by pair, in float64."""
    found = np.empty((len(features), len(features)))
    for u, ours in enumerate(features.astype(np.float64)):
        for v, theirs in enumerate(features.astype(np.float64)):
            left, angles = np.clip(np.abs(ours @ theirs.T), 0, 1), []
            if paired == "index":
                angles = np.arccos(np.diagonal(left))
            else:
                rows, columns = list(range(len(left))), list(range(len(left)))
                while rows:
                    row, column = max(((i, j) for i in rows for j in columns), key=lambda pair: left[pair])
                    angles.append(np.arccos(left[row, column]))
                    rows.remove(row)
                    columns.remove(column)
            found[u, v] = np.cos(np.mean(angles))
    return found


def random_features(source, users, k=4, size=16):
    """The k leading right singular vectors of random matrices, as a device sends them."""
    vectors = np.linalg.svd(source.normal(size=(users, 30, size)) + source.normal(size=size), full_matrices=False)[2]
    return vectors[:, :k].astype(np.float32)


def random_round(seed, users):
    """Similarity, complementarity and sizes of one round."""
    source = np.random.default_rng(seed)
    tables = source.normal(0, 0.1, (users, 20, 4)).astype(np.float32)
    return (
        similarity_matrix(tables),
        complementarity_matrix(random_features(source, users)),
        source.integers(1, 300, users),
    )


# -- similarity, eq. 6 -----------------------------------------------------------------------------------------------


def test_similarity_by_hand():
    """Q_0 − Q_1 = [[1, 0], [0, −2]]: squared norm 5, s = 1/6. Q_2 = Q_0: s = 1."""
    tables = np.array([[[1, 0], [0, 0]], [[0, 0], [0, 2]], [[1, 0], [0, 0]]], np.float32)
    np.testing.assert_allclose(similarity_matrix(tables), [[1, 1 / 6, 1], [1 / 6, 1, 1 / 6], [1, 1 / 6, 1]], rtol=1e-6)


def trained_tables(users, items=800, size=16):
    """Tables that share a base and differ in the rows that each user trained."""
    source = np.random.default_rng(users)
    tables = np.tile(source.uniform(-0.1, 0.1, (items, size)).astype(np.float32), (users, 1, 1))
    for table in tables:
        touched = source.choice(items, source.integers(20, items // 2), replace=False)
        table[touched] += source.normal(0, 0.2, (len(touched), size)).astype(np.float32)
    return tables


def far_base(tables):
    """A large table added to all."""
    return tables + np.float32(30) * np.random.default_rng(1).normal(size=tables.shape[1:]).astype(np.float32)


def two_camps(tables):
    """Half of the users far from the other half, so that centring does not help."""
    return tables + np.where(np.arange(len(tables)) % 2, 5, -5)[:, None, None].astype(np.float32)


def twins(tables):
    """Two users who nearly agree."""
    tables = tables.copy()
    tables[1] = tables[0]
    tables[1, 5, 2] += 0.25
    return tables


def same(tables):
    """Everybody has the same table."""
    return np.tile(tables[:1], (len(tables), 1, 1))


def large_values(tables):
    """Squares beyond the range of float32."""
    return tables * np.float32(1e25)


@pytest.mark.parametrize("change", [np.copy, far_base, two_camps, twins, same, large_values, np.float64])
def test_similarity_keeps_six_digits(change):
    tables = change(trained_tables(60))
    before = tables.copy()
    found = similarity_matrix(tables)
    np.testing.assert_allclose(found, plain_similarity(tables), rtol=1e-6)
    np.testing.assert_array_equal(found, found.T)
    np.testing.assert_array_equal(np.diagonal(found), 1.0)
    np.testing.assert_array_equal(tables, before)


def test_float64_only_where_it_is_needed(monkeypatch):
    """A base that all share costs nothing, a close pair is computed on its own, two camps are done in float64."""
    asked = []
    gram = distances._centred_gram
    monkeypatch.setattr(distances, "_centred_gram", lambda tables, dtype: (asked.append(dtype), gram(tables, dtype))[1])
    for change in (far_base, twins):
        similarity_matrix(change(trained_tables(60)))
    assert asked == [np.float32, np.float32]
    similarity_matrix(two_camps(trained_tables(60)))
    assert asked[2:] == [np.float32, np.float64]


def test_a_sample_of_users_tells_that_float32_will_not_do(monkeypatch):
    """Two camps of many users are multiplied once: 9 of 60 users, every seventh, are in both camps already."""
    asked = []
    gram = distances._centred_gram
    monkeypatch.setattr(
        distances, "_centred_gram", lambda tables, dtype: (asked.append((len(tables), dtype)), gram(tables, dtype))[1]
    )
    monkeypatch.setattr(distances, "SAMPLE", 8)
    tables = two_camps(trained_tables(60))
    np.testing.assert_allclose(similarity_matrix(tables), plain_similarity(tables), rtol=1e-6)
    assert asked == [(9, np.float32), (60, np.float64)]
    similarity_matrix(twins(trained_tables(60)))
    assert asked[2:] == [(9, np.float32), (60, np.float32)]


def test_a_close_pair_with_long_tables_keeps_six_digits():
    """3 and 3.1 in 40,000 values: added up one after another in float32, equal squares drift by 1e-5."""
    tables = np.random.default_rng(0).normal(0, 3, (8, 40_000, 1)).astype(np.float32)
    tables[0], tables[1] = 3.0, 3.1
    np.testing.assert_allclose(similarity_matrix(tables), plain_similarity(tables), rtol=1e-6)


def test_similarity_by_blocks_and_from_a_memory_map(tmp_path, monkeypatch):
    tables = trained_tables(12, items=50)
    mapped = np.memmap(tmp_path / "tables", np.float32, "w+", shape=tables.shape)
    mapped[:] = tables
    monkeypatch.setattr(distances, "BLOCK_VALUES", 7 * 16)
    monkeypatch.setattr(distances, "BLOCK_BYTES", 8 * 12 * 5)
    np.testing.assert_allclose(similarity_matrix(mapped), plain_similarity(tables), rtol=1e-6)
    np.testing.assert_allclose(similarity_matrix(tables[:, ::3, ::2]), plain_similarity(tables[:, ::3, ::2]), rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_table_that_is_not_finite_is_refused_by_user(bad):
    tables = trained_tables(9, items=50)
    tables[6, 30, 2] = tables[8, 0, 0] = bad
    with pytest.raises(ValueError, match="not finite in the table of user 6"):
        similarity_matrix(tables)


# -- complementarity, eq. 7 ------------------------------------------------------------------------------------------


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


# -- composite weights, eq. 5 and 8 ----------------------------------------------------------------------------------


def literal_eq5(p, s, c, alpha, beta):
    """Eq. 5 of one user as the paper writes it, sum of squares and all, given to a solver; and its objective."""
    w = cvxpy.Variable(len(p))
    squares = cvxpy.sum_squares(w - p) + alpha * cvxpy.sum_squares(w - s)
    cvxpy.Problem(cvxpy.Minimize(squares - beta * c @ w), [cvxpy.sum(w) == 1, w >= 0]).solve(
        "CLARABEL", tol_gap_abs=1e-13, tol_gap_rel=1e-13, tol_feas=1e-13
    )
    return w.value, lambda v: ((v - p) ** 2).sum() + alpha * ((v - s) ** 2).sum() - beta * (v @ c)


def test_two_users_by_hand():
    """p = (3/4, 1/4), α = 1, s = (1, 0), β = 0.

    Eq. 5: minimise (w1 − 3/4)² + (w1 − 1)² + (w2 − 1/4)² + w2² with w2 = 1 − w1
    -> 4 w1 = 3/4 + 1 + 3/4 + 1 -> w1 = 7/8.
    User 2 with s = (0, 1): 4 w1 = 3/4 + 0 + 3/4 + 0 -> w1 = 3/8.
    Eq. 8 as printed: minimise w1² + w2² − 2 (3/4 + 1) w1 − 2 (1/4 + 0) w2
    -> 4 w1 = 2 + 7/2 − 1/2 -> w1 = 5/4, so (1, 0); user 2: 4 w1 = 2 + 3/2 − 5/2 -> w1 = 1/4.
    """
    for solver in ("projection", "cvxpy"):
        found = composite_weights(np.eye(2), None, np.array([3, 1]), 1.0, 0.0, solver=solver)
        np.testing.assert_allclose(found, [[7 / 8, 1 / 8], [3 / 8, 5 / 8]], rtol=0, atol=1e-7)
        found = composite_weights(np.eye(2), None, np.array([3, 1]), 1.0, 0.0, objective="eq8", solver=solver)
        np.testing.assert_allclose(found, [[1, 0], [1 / 4, 3 / 4]], rtol=0, atol=1e-7)


def test_complementarity_moves_weight_by_hand():
    """p = (1/2, 1/2), α = 1, s = (1, 0), β = 1/2, c = (1/2, 1).

    Eq. 5: d/dw1 of (w1 − 1/2)² + (w2 − 1/2)² + (w1 − 1)² + w2² − w1/4 − w2/2 with w2 = 1 − w1:
    2(2w1 − 1) + 2(w1 − 1) − 2(1 − w1) + 1/4 = 8 w1 − 6 + 1/4 = 0 -> w1 = 23/32.
    """
    similarity, complementarity = np.eye(2), np.array([[0.5, 1.0], [1.0, 0.5]])
    found = composite_weights(similarity, complementarity, np.ones(2), 1.0, 0.5)
    np.testing.assert_allclose(found, [[23 / 32, 9 / 32], [9 / 32, 23 / 32]], rtol=0, atol=1e-15)


@pytest.mark.parametrize("seed", range(4))
def test_eq5_minimises_eq_5_and_the_printed_eq_8_does_not(seed):
    """Eq. 5 expands to (1 + α) wᵀw − (2p + 2αs + βc)ᵀw + constant; eq. 8 prints wᵀw."""
    similarity, complementarity, sizes = random_round(seed, 12)
    alpha, beta = 0.5, 0.4
    right = composite_weights(similarity, complementarity, sizes, alpha, beta)
    printed = composite_weights(similarity, complementarity, sizes, alpha, beta, objective="eq8")
    for u in range(12):
        best, objective = literal_eq5(sizes / sizes.sum(), similarity[u], complementarity[u], alpha, beta)
        np.testing.assert_allclose(right[u], best, rtol=0, atol=1e-6)
        assert objective(right[u]) <= objective(best) + 1e-12
        assert objective(printed[u]) > objective(right[u]) + 1e-4


@pytest.mark.parametrize("objective", ["eq5", "eq8"])
@pytest.mark.parametrize("solver", ["projection", "cvxpy"])
@pytest.mark.parametrize("given", [True, False])
def test_without_terms_the_weights_are_the_shares_bit_for_bit(objective, solver, given):
    similarity, complementarity, sizes = random_round(0, 30)
    matrices = (similarity, complementarity) if given else (None, None)
    for counts in (sizes, np.ones(30), np.full(30, 7, np.int32)):
        found = composite_weights(*matrices, counts, 0.0, 0.0, objective=objective, solver=solver)
        np.testing.assert_array_equal(found, np.tile(counts / counts.sum(), (30, 1)))


def test_a_term_without_weight_does_not_count():
    similarity, complementarity, sizes = random_round(1, 15)
    for alpha, beta in ((0.5, 0.0), (0.0, 0.4)):
        found = composite_weights(similarity if alpha else None, complementarity if beta else None, sizes, alpha, beta)
        other = random_round(2, 15)
        mixed = composite_weights(
            similarity if alpha else other[0], complementarity if beta else other[1], sizes, alpha, beta
        )
        np.testing.assert_array_equal(found, mixed)


def test_limits_of_the_terms():
    """As α grows the weights become the projection of s: with s_uu = 1 and all others 0, each user alone.

    As β grows all weight goes to the most complementary user.
    """
    _, complementarity, sizes = random_round(3, 10)
    alone = composite_weights(np.eye(10), None, sizes, 1e9, 0.0)
    np.testing.assert_allclose(alone, np.eye(10), rtol=0, atol=1e-8)
    np.fill_diagonal(complementarity, 0.0)
    found = composite_weights(None, complementarity, sizes, 0.0, 1e9)
    np.testing.assert_array_equal(found, np.eye(10)[complementarity.argmax(axis=1)])


@settings(max_examples=40)
@given(seeds, st.integers(1, 12), st.floats(0, 3), st.floats(0, 3), st.sampled_from(["eq5", "eq8"]), st.booleans())
def test_rows_are_weights_and_users_have_no_order(seed, users, alpha, beta, objective, capped):
    similarity, complementarity, sizes = random_round(seed, users)
    cap = min(1.0, 2 / users) if capped else None
    options = {"objective": objective, "cap": cap}
    found = composite_weights(similarity, complementarity, sizes, alpha, beta, **options)
    assert (found >= 0).all()
    assert found.max() <= (cap or 1.0)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=0, atol=1e-12)
    order = np.random.default_rng(seed).permutation(users)
    pairs = np.ix_(order, order)
    shuffled = composite_weights(similarity[pairs], complementarity[pairs], sizes[order], alpha, beta, **options)
    np.testing.assert_allclose(shuffled, found[pairs], rtol=0, atol=1e-12)


@pytest.mark.parametrize("cap", [None, 0.1])
@pytest.mark.parametrize("objective", ["eq5", "eq8"])
def test_both_solvers_agree_on_a_round(cap, objective):
    similarity, complementarity, sizes = random_round(5, 80)
    found, reference = (
        composite_weights(similarity, complementarity, sizes, 0.5, 0.4, objective=objective, solver=solver, cap=cap)
        for solver in ("projection", "cvxpy")
    )
    np.testing.assert_allclose(found, reference, rtol=0, atol=1e-6)


def test_a_cap_binds_shares_too():
    """p = (3/5, 1/5, 1/5) with a cap of 1/2: the largest gives its excess to both others alike."""
    found = composite_weights(None, None, np.array([3, 1, 1]), 0.0, 0.0, cap=0.5)
    np.testing.assert_allclose(found, np.tile([0.5, 0.25, 0.25], (3, 1)), rtol=0, atol=1e-15)


def wrong(**changes):
    similarity, complementarity, sizes = random_round(0, 4)
    arguments = {
        "similarity": similarity,
        "complementarity": complementarity,
        "sizes": sizes,
        "alpha": 0.5,
        "beta": 0.4,
    }
    return arguments | changes


def with_value(shape, place, value):
    array = np.ones(shape)
    array[place] = value
    return array


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"similarity": np.ones((4, 3))}, r"similarity must have shape \(4, 4\) for 4 sizes, not \(4, 3\)"),
        ({"complementarity": np.ones((5, 5))}, r"complementarity must have shape \(4, 4\)"),
        ({"similarity": with_value((4, 4), (2, 1), np.nan)}, "not finite in the similarity of user 2"),
        ({"complementarity": with_value((4, 4), (3, 0), np.inf)}, "in the complementarity of user 3"),
        ({"similarity": None}, "similarity may be left out only where alpha is 0; here it is 0.5"),
        ({"complementarity": None}, "complementarity may be left out only where beta is 0"),
        ({"sizes": np.array([1, 2, 0, 1])}, "The size of user 2 must be a positive number, not 0.0"),
        ({"sizes": np.array([1, np.nan, 0, 1])}, "The size of user 1 must be"),
        ({"sizes": np.array([])}, "sizes must have one entry"),
        ({"alpha": -0.1}, "alpha must be a number of at least 0, not -0.1"),
        ({"beta": np.nan}, "beta must be a number of at least 0, not nan"),
        ({"objective": "eq7"}, "objective must be one of eq5, eq8, not 'eq7'"),
        ({"solver": "osqp"}, "solver must be one of projection, cvxpy"),
        ({"cap": 0.2}, "A cap on each of 4 weights must lie between 1/4 and 1, not be 0.2"),
        ({"cap": 0.2, "alpha": 0.0, "beta": 0.0}, "A cap on each of 4 weights"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(changes, message):
    with pytest.raises(ValueError, match=message):
        composite_weights(**wrong(**changes))


# -- mixing ----------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("stage", [similarity_matrix, complementarity_matrix, lambda array: mix(np.eye(2), array)])
@pytest.mark.parametrize("shape", [(2, 3), (0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_other_shapes_are_refused(stage, shape):
    with pytest.raises(ValueError, match="must have the axes"):
        stage(np.ones(shape, np.float32))


# -- a real round ----------------------------------------------------------------------------------------------------


def test_a_round_on_real_data(real_data):
    """A third of MovieLens-100K's users after local training from one table: each stage against its plain form."""
    histories = histories_of(load("ml-100k", str(real_data("ml-100k"))), RunConfig())
    third = np.arange(0, len(histories.users), 3)
    users, positives, items = histories.users[third], histories.train.take(third), histories.num_items
    backbone = BACKBONES["mf"](items, ModelOptions(embedding_size=16, init_scale=0.1))
    base = initial_shared(backbone.shared, 0)["item_embedding"]
    tables = np.tile(base, (len(users), 1, 1))
    task = LocalTask(
        backbone=backbone,
        options=TrainingOptions(
            batch_size=256, optimizer="adam", local_epochs=10, learning_rate=0.01, user_learning_rate=0.01
        ),
        users=users,
        round=1,
        draws=SeededDraws(0),
        positives=positives,
        negatives=training_negatives(positives, positives, items, 4, users, SeededDraws(0), 1),
        shared={},
        private={
            "user_embedding": initial_private("user_embedding", backbone.private["user_embedding"], 0, users),
            "item_embedding": tables,
        },
    )
    for _ in BACKENDS["numba"](task):
        pass
    features = np.zeros((len(users), 4, 16), np.float32)
    for user, table in enumerate(tables):
        vectors = np.linalg.svd(table[positives.row(user)], full_matrices=False)[2][:4]
        features[user, : len(vectors)] = vectors
    some = np.linspace(0, len(users) - 1, 20).astype(int)
    pairs = np.ix_(some, some)

    similarity, complementarity = similarity_matrix(tables), complementarity_matrix(features)
    np.testing.assert_allclose(similarity[pairs], plain_similarity(tables[some]), rtol=1e-6)
    np.testing.assert_allclose(complementarity[pairs], plain_complementarity(features[some]), rtol=0, atol=2e-4)
    weights = composite_weights(similarity, complementarity, positives.lengths, 0.5, 0.4)
    share = positives.lengths / positives.lengths.sum()
    for user in some[::4]:
        best, _ = literal_eq5(share, similarity[user], complementarity[user], 0.5, 0.4)
        np.testing.assert_allclose(weights[user], best, rtol=0, atol=1e-6)
    expected = np.einsum("uv,vid->uid", weights[some], tables, dtype=np.float64, optimize=True)
    np.testing.assert_allclose(mix(weights, tables)[some], expected, rtol=0, atol=1e-6)
