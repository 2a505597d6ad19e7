"""Sequence models on pooled data."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bouquet.ragged import Ragged
from models.centralized import SEQUENTIAL, SequentialParameters
from models.centralized.softmax import cut

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
    assert (scores.argmax(axis=1) == wanted).mean() > 0.8  # chance is 1 in 32


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


@pytest.mark.parametrize("name", sorted(SEQUENTIAL))
def test_dropout_is_chosen_on_validation(name):
    """The first value is that of .5, the next of .9, the last of 0: the best of them is kept, with its weights."""
    parameters = SequentialParameters(
        embedding_size=8, epochs=4, evaluate_every=4, dropout=0.5, dropouts=(0.0, 0.5, 0.9)
    )
    asked = iter([0.2, 0.1, 0.3])
    model = SEQUENTIAL[name](parameters).fit(circles(), 40, validation_score=lambda scores: next(asked))
    assert model.chosen == {"epochs": 4, "dropout": 0.0}
    alone = SequentialParameters(embedding_size=8, epochs=4, evaluate_every=4, dropout=0.0)
    expected = SEQUENTIAL[name](alone).fit(circles(), 40, validation_score=lambda scores: 0.0)
    np.testing.assert_array_equal(model.scores_after(circles()), expected.scores_after(circles()))


@given(st.lists(st.integers(0, 30), max_size=8), st.integers(1, 7), st.integers(0, 2**32 - 1))
def test_every_item_but_the_first_is_a_target_once(sizes, length, seed):
    """Of a history a, b, c, … the pairs (a, b), (b, c), … stand in its windows once each, none longer than allowed."""
    histories = Ragged.from_lengths(sizes, np.arange(sum(sizes)))
    windows = cut(histories, length, np.random.default_rng(seed))
    assert (windows.lengths >= 2).all()
    assert (windows.lengths <= length + 1).all()
    found = [pair for row in range(len(windows)) for pair in pairwise(windows.row(row).tolist())]
    expected = [pair for row in range(len(sizes)) for pair in pairwise(histories.row(row).tolist())]
    assert sorted(found) == sorted(expected)


def test_the_loss_against_all_items_by_hand():
    """One pair of items of three, one step of Adam by η: each row of the table moves by η against its slope's sign.

    With p = softmax(h Qᵀ), h the state after item 0, the slope of q_j is (p_j - 1[j is next]) h: items 1 and 2 part.
    """
    parameters = SequentialParameters(embedding_size=4, epochs=1, learning_rate=0.01, dropout=0.0)
    train = Ragged.from_lengths([2], [0, 1])
    model = SEQUENTIAL["gru4rec-softmax"](parameters).fit(train, 3)
    still = SEQUENTIAL["gru4rec-softmax"](replace(parameters, learning_rate=0.0)).fit(train, 3)
    (before,), (after,) = (fitted.scores_after(train.take([0])) for fitted in (still, model))
    assert after[1] - before[1] > after[2] - before[2]
    moved = model._weights["item_embedding"] - still._weights["item_embedding"]
    np.testing.assert_allclose(np.abs(moved.detach().numpy()[1:]), 0.01, rtol=1e-3)
    np.testing.assert_allclose(moved.detach().numpy()[1], -moved.detach().numpy()[2], rtol=1e-3)
