"""Sequence models on pooled data."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bouquet.ragged import Ragged
from models.centralized import SEQUENTIAL, AveragedSASRec, SequentialParameters
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


@pytest.mark.parametrize("name", sorted(SEQUENTIAL))
def test_averaged_weights_by_hand(name):
    """A step of one batch an epoch. Left of the average is at most (1 + t) / (10 + t) at step t: 2/11 and then 3/12.

    From w0 the average is a = 2/11 w0 + 9/11 w1 and then 1/4 a + 3/4 w2; at most .1 left: .9 w2 + .1 (.1 w0 + .9 w1).
    """
    train = circles(users=4)
    parameters = SequentialParameters(embedding_size=4, max_length=8, batch_users=8, dropout=0.0, epochs=2)

    def weights(**changes):
        return SEQUENTIAL[name](replace(parameters, **changes)).fit(train, 40)._weights

    start, one, two = weights(learning_rate=0.0), weights(epochs=1), weights()
    mean, short = weights(averaging=0.9), weights(averaging=0.1)
    for key, first in start.items():
        w0, w1, w2 = (values.detach().numpy() for values in (first, one[key], two[key]))
        np.testing.assert_allclose(mean[key].numpy(), (2 / 11 * w0 + 9 / 11 * w1) / 4 + 3 / 4 * w2, atol=1e-6)
        np.testing.assert_allclose(short[key].numpy(), 0.9 * w2 + 0.1 * (0.1 * w0 + 0.9 * w1), atol=1e-6)
    assert np.abs(mean["item_embedding"].numpy() - two["item_embedding"].detach().numpy()).max() > 1e-4


def test_the_averaged_ones_are_as_large_as_their_data_allow():
    """From 300,000 events on the larger size is usual; given parameters stay, whatever validation chooses of them."""
    small, large = (AveragedSASRec.usual(events) for events in (299_999, 300_000))
    assert (small.embedding_size, small.max_length, small.dropouts) == (64, 50, (0.3, 0.5, 0.7))
    assert (large.embedding_size, large.max_length, large.dropout, large.dropouts) == (128, 200, 0.2, ())
    train = circles(users=3)
    assert AveragedSASRec().fit(train, 40)._weights["item_embedding"].shape == (40, 64)
    given = SequentialParameters(embedding_size=4, epochs=2, dropout=0.5, dropouts=(0.3, 0.5))
    model = AveragedSASRec(given).fit(train, 40, validation_score=lambda scores: scores(np.arange(3)).sum())
    assert model._weights["item_embedding"].shape == (40, 4)
