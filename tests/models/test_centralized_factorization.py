from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import sparse

from bouquet.errors import BouquetError
from models.centralized import MFBCE, MFBPR, FactorizationParameters
from models.centralized.negatives import NegativeSampler

SMALL = FactorizationParameters(
    embedding_size=4, learning_rate=0.05, weight_decay=0.0, epochs=12, batch_size=32, evaluate_every=2, patience=2
)


@pytest.fixture
def train():
    return sparse.csr_matrix((np.random.default_rng(0).random((20, 15)) < 0.4).astype(np.float32))


def test_negatives_are_uniform_over_all_other_items():
    """User 0 has items 0, 2, 3 of 6: the others are 1, 4, 5, each with probability 1/3; user 1 has all but item 0."""
    train = sparse.csr_matrix([[1, 0, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0]])
    sampler = NegativeSampler(train)
    assert sampler.available.tolist() == [3, 1, 6]
    drawn = sampler.draw(np.array([0, 1, 2]), 6000, np.random.default_rng(0))
    for row, others in ((0, [1, 4, 5]), (1, [0]), (2, range(6))):
        items, counts = np.unique(drawn[row], return_counts=True)
        assert items.tolist() == list(others)
        # Three standard deviations of a share p of 6000 draws stay below .02.
        np.testing.assert_allclose(counts / 6000, 1 / len(others), atol=0.02)


def test_negatives_of_many_users_are_never_positives(train):
    sampler = NegativeSampler(train)
    users = np.repeat(np.arange(20), 3)
    drawn = sampler.draw(users, 200, np.random.default_rng(1))
    assert drawn.min() >= 0
    assert drawn.max() < 15
    dense = train.toarray() > 0
    assert not dense[users[:, None], drawn].any()
    for user in range(20):
        assert set(drawn[users == user].ravel()) == set(np.flatnonzero(~dense[user]))


def test_losses_by_hand():
    """One positive with score ln 3 and one negative with score 0: σ(ln 3) = 3/4 and σ(0) = 1/2.

    BCE: (-ln 3/4 - ln 1/2) / 2. BPR: -ln σ(ln 3 - 0) = -ln 3/4.
    """
    positive, negative = torch.tensor([[np.log(3.0)]]), torch.tensor([[0.0]])
    assert MFBCE.loss(positive, negative).item() == pytest.approx(-(np.log(3 / 4) + np.log(1 / 2)) / 2)
    assert MFBPR.loss(positive, negative).item() == pytest.approx(-np.log(3 / 4))


def test_early_stopping_keeps_the_best_epoch(train):
    """Asked after epochs 2, 4, 6, 8, 10; the second answer is the best, and two more without a new best end it."""
    answers = iter([0.1, 0.5, 0.4, 0.5, 0.9])
    kept = []

    def validation_score(scores):
        kept.append(scores(np.arange(20)))
        return next(answers)

    model = MFBCE(SMALL).fit(train, validation_score=validation_score)
    assert len(kept) == 4
    assert model.epochs_trained == 4
    np.testing.assert_array_equal(model.scores(np.arange(20)), kept[1])
    assert not np.array_equal(kept[1], kept[3])


def test_a_validation_score_that_is_not_a_number_is_refused(train):
    with pytest.raises(BouquetError, match="validation score is not a number"):
        MFBCE(SMALL).fit(train, validation_score=lambda _: float("nan"))


def test_validation_does_not_change_the_training(train):
    """A validation score that always rises trains to the last epoch, as without one."""
    rising = iter(range(100))
    watched = MFBPR(SMALL).fit(train, validation_score=lambda _: float(next(rising)))
    plain = MFBPR(SMALL).fit(train)
    assert watched.epochs_trained == plain.epochs_trained == SMALL.epochs
    np.testing.assert_array_equal(watched.scores(np.arange(20)), plain.scores(np.arange(20)))


def test_only_validation_may_ask_for_more_epochs(train):
    """Scores that rise until the ninth time, after epoch 18, end two times later; without them 12 epochs stay 12."""
    parameters, answers = replace(SMALL, most_epochs=30), iter([*range(9), 0, 0])
    asked = MFBPR(parameters).fit(train, validation_score=lambda _: float(next(answers)))
    assert asked.epochs_trained == 18
    assert next(answers, None) is None
    assert MFBPR(parameters).fit(train).epochs_trained == 12
    longer, rising = replace(SMALL, most_epochs=15), iter(range(100))  # the last epoch counts, too: 8 scores
    assert MFBPR(longer).fit(train, validation_score=lambda _: float(next(rising))).epochs_trained == 15
    assert next(rising) == 8


def test_seeds_differ_and_the_number_of_threads_is_put_back(train):
    threads = torch.get_num_threads()
    first, second = (MFBCE(SMALL).fit(train, seed=seed).scores(np.arange(20)) for seed in (0, 1))
    assert not np.allclose(first, second)
    assert torch.get_num_threads() == threads


def test_users_with_every_item_are_left_out():
    full = sparse.csr_matrix(np.ones((3, 4)))
    with pytest.raises(BouquetError, match="every user has every item"):
        MFBCE(SMALL).fit(full)
    one = sparse.csr_matrix(np.array([[1, 1, 1, 1], [1, 0, 0, 1]]))
    assert np.isfinite(MFBCE(SMALL).fit(one).scores(np.arange(2))).all()
