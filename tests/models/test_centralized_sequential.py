"""Sequence models on pooled data."""

import numpy as np
import pytest

from bouquet.ragged import Ragged
from models.centralized import SEQUENTIAL, SequentialParameters

SMALL = SequentialParameters(embedding_size=8, epochs=40, learning_rate=0.02, dropout=0.0, max_length=6, batch_users=32)


def circles(users=200, items=40, length=8):
    """Everybody goes round a circle of items from a place of their own: the next item follows from the last alone."""
    starts = np.arange(users) % items
    return Ragged.from_lengths(np.full(users, length), ((starts[:, None] + np.arange(length)) % items).ravel())


@pytest.mark.parametrize("name", sorted(SEQUENTIAL))
def test_the_rule_of_a_circle_is_learned(name):
    """What comes next scores highest among new items; popularity could not tell, since all items are alike."""
    train = circles()
    model = SEQUENTIAL[name](SMALL).fit(train, 40, seed=1)
    wanted = (train.values.reshape(200, 8)[:, -1] + 1) % 40
    scores = model.scores_after(train)
    # Nothing pushes down what a user already has: it is never drawn as one of its negatives.
    scores[train.row_of_value, train.values] = -np.inf
    assert (scores.argmax(axis=1) == wanted).mean() > 0.95


@pytest.mark.parametrize("name", sorted(SEQUENTIAL))
def test_the_best_epoch_is_kept(name):
    """A validation score that falls after the second time it is asked: the weights of then are given back."""
    values, seen = iter([0.1, 0.9, 0.5, 0.2]), []

    def score(scores):
        seen.append(scores(np.array([0, 1])))
        return next(values)

    small = SequentialParameters(embedding_size=4, epochs=20, evaluate_every=2, patience=2)
    model = SEQUENTIAL[name](small).fit(circles(), 40, validation_score=score)
    assert model.epochs_trained == 4
    assert len(seen) == 4
    np.testing.assert_allclose(model.scores_after(circles().take([0, 1])), seen[1], atol=1e-7)


@pytest.mark.parametrize("name", sorted(SEQUENTIAL))
def test_the_same_seed_gives_the_same_scores_and_repeats_are_allowed(name):
    train = Ragged.from_lengths([5, 1, 3], [0, 0, 3, 0, 3, 2, 1, 1, 1])
    small = SequentialParameters(embedding_size=4, epochs=2)
    first, same, other = (SEQUENTIAL[name](small).fit(train, 9, seed=seed).scores_after(train) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, same)
    assert first.shape == (3, 9)
    assert np.abs(first - other).max() > 1e-3
