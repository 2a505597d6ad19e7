from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from bouquet.errors import BouquetError
from models.centralized import ItemKNN, ItemKNNParameters
from models.centralized import itemknn as module

# Items 0, 1, 2 have the users {0, 1, 2}, {0, 1}, {1, 3}.
TRAIN = sparse.csr_matrix([[1, 1, 0], [1, 1, 1], [1, 0, 0], [0, 0, 1]])


def scores(neighbours: int, shrinkage: float) -> np.ndarray:
    return ItemKNN(ItemKNNParameters(neighbours, shrinkage)).fit(TRAIN).scores(np.arange(4))


def test_three_items_by_hand():
    """Users in common: c_01 = 2, c_02 = 1, c_12 = 1, so s_01 = 2/√6, s_02 = 1/√6, s_12 = 1/2.

    User 2 has item 0 only; user 1 has all three; a user's own items bring each other's similarity, not their own.
    """
    s01, s02, s12 = 2 / np.sqrt(6), 1 / np.sqrt(6), 1 / 2
    expected = [[s01, s01, s02 + s12], [s01 + s02, s01 + s12, s02 + s12], [0, s01, s02], [s02, s12, 0]]
    np.testing.assert_allclose(scores(2, 0.0), expected, rtol=1e-6)


def test_only_the_nearest_items_of_the_scored_item_count():
    """With one neighbour: item 0 keeps 1 (.82 > .41), item 1 keeps 0 (.82 > .5), item 2 keeps 1 (.5 > .41)."""
    s01, s12 = 2 / np.sqrt(6), 1 / 2
    expected = [[s01, s01, s12], [s01, s01, s12], [0, s01, 0], [0, 0, 0]]
    np.testing.assert_allclose(scores(1, 0.0), expected, rtol=1e-6)


def test_shrinkage_by_hand():
    """s_01 = 2 / (√6 + 10), s_02 = 1 / (√6 + 10)."""
    np.testing.assert_allclose(scores(2, 10.0)[2], [0, 2 / (np.sqrt(6) + 10), 1 / (np.sqrt(6) + 10)], rtol=1e-6)


@pytest.mark.parametrize("rows", [1, 7])
def test_blocks_do_not_matter(monkeypatch, rows):
    dense = np.random.default_rng(0).random((40, 25)) < 0.3
    train = sparse.csr_matrix(dense.astype(np.float32))
    whole = ItemKNN(ItemKNNParameters(5, 1.0)).fit(train).scores(np.arange(40))
    monkeypatch.setattr(module, "_BLOCK_BYTES", 8 * 25 * rows)
    np.testing.assert_array_equal(ItemKNN(ItemKNNParameters(5, 1.0)).fit(train).scores(np.arange(40)), whole)


@pytest.mark.parametrize("parameters", [ItemKNNParameters(neighbours=0), ItemKNNParameters(shrinkage=-1.0)])
def test_impossible_parameters_are_refused(parameters):
    with pytest.raises(BouquetError, match="at least 1 neighbour"):
        ItemKNN(parameters).fit(TRAIN)


def test_validation_chooses_among_all_pairs():
    """Every pair of the two grids is asked once, and scores as if it alone had been asked for; the first best stays."""
    dense = np.random.default_rng(0).random((40, 25)) < 0.3
    train = sparse.csr_matrix(dense.astype(np.float32))
    parameters = ItemKNNParameters(neighbours_grid=(2, 5), shrinkage_grid=(0.0, 10.0))
    seen = []

    def score(scores):
        seen.append(scores(np.arange(40)))
        return [0.1, 0.3, 0.3, 0.2][len(seen) - 1]

    model = ItemKNN(parameters).fit(train, validation_score=score)
    pairs = [(2, 0.0), (5, 0.0), (2, 10.0), (5, 10.0)]
    for found, (neighbours, shrinkage) in zip(seen, pairs, strict=True):
        alone = ItemKNN(ItemKNNParameters(neighbours, shrinkage)).fit(train)
        np.testing.assert_array_equal(found, alone.scores(np.arange(40)))
    assert model.chosen == {"neighbours": 5, "shrinkage": 0.0}
    np.testing.assert_array_equal(model.scores(np.arange(40)), seen[1])
