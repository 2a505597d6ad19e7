"""What every comparison model must do, asked of each of them."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from scipy import sparse

from bouquet.errors import BouquetError
from bouquet.ragged import Ragged
from models.centralized import (
    CENTRALIZED,
    MFBCE,
    MFBPR,
    FactorizationParameters,
    LightGCN,
    LightGCNParameters,
    NeuMF,
    NeuMFParameters,
    ReadsHistories,
)

SIZES = {"embedding_size": 4, "learning_rate": 0.03, "weight_decay": 0.0, "epochs": 10, "batch_size": 64}
SMALL = FactorizationParameters(**SIZES)


def build(name: str):
    """A model that is quick to fit."""
    quick = {"neumf": NeuMFParameters(**SIZES, hidden=(8, 4)), "lightgcn": LightGCNParameters(**SIZES, layers=2)}
    own = SMALL if name.startswith("mf-") else quick.get(name)
    return CENTRALIZED[name](own) if own else CENTRALIZED[name]()


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

    def test_after_its_training_items_a_user_scores_as_it_is(self, name, train):
        """Whatever the order of the items, and however often they come."""
        model = build(name).fit(train)
        if not isinstance(model, ReadsHistories):
            return
        rows = [[*row.indices[::-1], row.indices[0]] for row in train]
        histories = Ragged.from_lengths([len(row) for row in rows], np.concatenate(rows))
        np.testing.assert_allclose(model.scores_after(histories), model.scores(np.arange(30)), atol=1e-6)
        nothing = Ragged.from_lengths([0], [])
        np.testing.assert_array_equal(model.scores_after(nothing), np.zeros((1, 12)))

    def test_only_what_validation_chose_is_called_chosen(self, name, train):
        assert build(name).fit(train).chosen == {}

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


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        (MFBCE, FactorizationParameters),
        (MFBPR, FactorizationParameters),
        (LightGCN, LightGCNParameters),
        (NeuMF, partial(NeuMFParameters, hidden=(4, 2))),
    ],
)
def test_factorization_finds_two_tastes(model, parameters):
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
    fitted = model(parameters(2, learning_rate=0.05, weight_decay=0.03, epochs=30, batch_size=128))
    assert own_half(fitted.fit(train).scores(np.arange(40))) > 0.95
    assert own_half(CENTRALIZED["popularity"]().fit(train).scores(np.arange(40))) < 0.7
