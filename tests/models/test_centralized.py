"""What every comparison model must do, asked of each of them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from bouquet.errors import BouquetError
from models.centralized import CENTRALIZED, EASE, MFBCE, MFBPR, EASEParameters, FactorizationParameters

SMALL = FactorizationParameters(embedding_size=4, learning_rate=0.03, weight_decay=0.0, epochs=10, batch_size=64)


def build(name: str):
    """A model that is quick to fit."""
    return CENTRALIZED[name](SMALL) if name.startswith("mf-") else CENTRALIZED[name]()


@pytest.fixture
def train():
    """30 users, 12 items, 4 to 8 positives each."""
    generator = np.random.default_rng(0)
    dense = np.zeros((30, 12))
    for row in dense:
        row[generator.permutation(12)[: generator.integers(4, 9)]] = 1
    return sparse.csr_matrix(dense)


@pytest.mark.parametrize("name", CENTRALIZED)
class TestContract:
    def test_scores_are_finite_float32_of_all_items(self, name, train):
        scores = build(name).fit(train).scores(np.array([3, 0, 3]))
        assert scores.shape == (3, 12)
        assert scores.dtype == np.float32
        assert np.isfinite(scores).all()

    def test_one_user_scores_as_in_a_block(self, name, train):
        model = build(name).fit(train)
        alone = np.concatenate([model.scores(np.array([user])) for user in range(30)])
        np.testing.assert_allclose(alone, model.scores(np.arange(30)), rtol=1e-5, atol=1e-6)

    def test_the_same_seed_gives_the_same_scores(self, name, train):
        first, second = (build(name).fit(train, seed=7).scores(np.arange(30)) for _ in range(2))
        np.testing.assert_array_equal(first, second)

    def test_ratings_and_order_do_not_matter(self, name, train):
        """Any stored value other than 0 is one positive, in whatever order a row lists its items."""
        rated = train.copy()
        rated.data *= np.resize([1, 5, 3], rated.nnz)
        backwards = sparse.csr_matrix(
            (rated.data[::-1], rated.indices[::-1], np.concatenate([[0], np.cumsum(np.diff(rated.indptr)[::-1])])),
            shape=rated.shape,
        )[::-1]
        np.testing.assert_array_equal(
            build(name).fit(backwards).scores(np.arange(30)), build(name).fit(train).scores(np.arange(30))
        )

    def test_the_training_matrix_is_left_as_it_was(self, name, train):
        before = train.copy()
        build(name).fit(train)
        assert (train != before).nnz == 0

    def test_scores_before_fit_are_refused(self, name, train):
        with pytest.raises(BouquetError, match="before fit"):
            build(name).scores(np.array([0]))

    def test_nothing_to_learn_from_is_refused(self, name, train):
        with pytest.raises(BouquetError, match="no interaction"):
            build(name).fit(sparse.csr_matrix((3, 4)))

    def test_users_and_items_without_interactions_are_scored(self, name, train):
        padded = sparse.csr_matrix((train.data, train.indices, np.append(train.indptr, train.nnz)), shape=(31, 14))
        scores = build(name).fit(padded).scores(np.arange(31))
        assert scores.shape == (31, 14)
        assert np.isfinite(scores).all()


def test_popularity_counts_users():
    """Item 0 has three users, item 1 one, item 2 none."""
    train = sparse.csr_matrix([[1, 1, 0], [1, 0, 0], [1, 0, 0]])
    assert CENTRALIZED["popularity"]().fit(train).scores(np.array([1])).tolist() == [[3, 1, 0]]


def test_ease_by_hand():
    """Two items, both held by one user, each by one more: XᵀX = [[2, 1], [1, 2]].

    With λ = 1 the matrix is [[3, 1], [1, 3]] and P = [[3, -1], [-1, 3]] / 8, so B_01 = -P_01 / P_11 = 1/3. A user
    with item 0 only scores item 1 at 1/3 and item 0 at 0.
    """
    train = sparse.csr_matrix([[1, 1], [1, 0], [0, 1]])
    scores = EASE(EASEParameters(regularization=1.0)).fit(train).scores(np.array([1]))
    np.testing.assert_allclose(scores, [[0, 1 / 3]], atol=1e-7)


def test_ease_solves_the_constrained_least_squares(train):
    """Column j of B is a ridge regression of item j on all others (the constraint B_jj = 0 removes column j)."""
    dense = train.toarray()
    expected = np.zeros((12, 12))
    for item in range(12):
        others = np.delete(np.arange(12), item)
        x, y = dense[:, others], dense[:, item]
        expected[others, item] = np.linalg.solve(x.T @ x + 5.0 * np.eye(11), x.T @ y)
    model = EASE(EASEParameters(regularization=5.0)).fit(train)
    np.testing.assert_allclose(model._weights, expected, atol=1e-6)
    assert (np.diag(model._weights) == 0).all()


def test_ease_says_when_there_are_too_many_items():
    with pytest.raises(BouquetError, match=r"30000 x 30000 matrix \(7\.2 GB\).*allows 20000 items"):
        EASE().fit(sparse.csr_matrix(([1.0], ([0], [0])), shape=(2, 30_000)))


def test_ease_needs_regularization(train):
    with pytest.raises(BouquetError, match="regularization above 0"):
        EASE(EASEParameters(regularization=0.0)).fit(train)


@pytest.mark.parametrize("model", [MFBCE, MFBPR])
def test_factorization_finds_two_tastes(model):
    """Users of each half like 12 of the 20 items of their half; popularity cannot tell the halves apart.

    The best 5 unseen items of a user should come from its own half. Popularity gets one half or the other by
    accident, about 1/2 on average.
    """
    generator = np.random.default_rng(0)
    dense = np.zeros((40, 40))
    for user in range(40):
        dense[user, generator.permutation(20)[:12] + 20 * (user >= 20)] = 1
    train = sparse.csr_matrix(dense)

    def own_half(scores: np.ndarray) -> float:
        best = np.argsort(-np.where(dense > 0, -np.inf, scores), axis=1)[:, :5]
        return float(((best >= 20) == (np.arange(40)[:, None] >= 20)).mean())

    # Two tastes need two dimensions; with more, so little data is learned by heart.
    fitted = model(FactorizationParameters(2, learning_rate=0.05, weight_decay=0.03, epochs=30, batch_size=128))
    assert own_half(fitted.fit(train).scores(np.arange(40))) > 0.95
    assert own_half(CENTRALIZED["popularity"]().fit(train).scores(np.arange(40))) < 0.7
