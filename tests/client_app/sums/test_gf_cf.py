"""GF-CF on a device: what it sends, and how it scores with what is published."""

import numpy as np
import pytest

from bouquet.cells import FINE
from bouquet.methods.gf_cf import GfCfOptions
from bouquet.ragged import Ragged
from client_app.sums.gf_cf import GfCf


def device(num_items, **options):
    return GfCf(num_items, GfCfOptions(**options))


def test_what_a_history_of_three_gives():
    """Items 4, 0 and 2: each of the six pairs on or above the diagonal counts 1/3, to the nearest multiple of 2^-24."""
    cells = device(5).contribution(Ragged.from_lengths([3], [4, 0, 2]))
    together, counts = cells["together"], cells["counts"]
    assert together.rows.tolist() == [0, 2, 4]
    assert together.lengths.tolist() == [3, 2, 1]
    assert together.columns.tolist() == [0, 2, 4, 2, 4, 4]
    assert together.values.tolist() == [round(2**24 / 3) * FINE] * 6
    assert (counts.columns.tolist(), counts.values.tolist()) == ([0, 2, 4], [1.0, 1.0, 1.0])


@pytest.mark.parametrize("length", [0, 1, 2, 9])
def test_the_size_of_what_is_sent_is_known_beforehand(length):
    """Numbers of rows, of columns and values have 32 bits each."""
    made = device(20)
    sent = made.contribution(Ragged.from_lengths([length], np.arange(length)))
    assert made.upload_bytes(np.array([length]))[0] == sum(cells.nbytes for cells in sent.values())


def test_scores_by_hand():
    """x = {0, 1}, G̃ = [[1, 0, 2], [0, 1, 4], [2, 4, 1]] / 8, α = 1/2, D_i = (1, 4, 0), V = (1, 2, 1).

    x G̃ = (1, 1, 6) / 8. x D_i^-½ V = 1 / 1 + 2 / 2 = 2, of which V D_i^½ = (1, 4, 0) makes (2, 8, 0), and α halves it.
    An item of count 0 is reached by neighbours alone, and says nothing to the filter itself.
    """
    weights = np.array([[1, 0, 2], [0, 1, 4], [2, 4, 1]], np.float32) / 8
    published = {
        "weights": weights,
        "vectors": np.array([[1], [2], [1]], np.float32),
        "root": np.array([1, 2, 0], np.float32),
    }
    made = device(3, gf_cf_mixture=0.5)
    found = made.scores(published, Ragged.from_lengths([2, 0, 1], [0, 1, 2]))
    np.testing.assert_allclose(found, [[1 / 8 + 1, 1 / 8 + 4, 6 / 8], [0, 0, 0], [2 / 8, 4 / 8, 1 / 8]])
    neighbors = {
        "neighbors": np.array([[0, 2], [1, 2], [0, 1]], np.int32),
        "weights": np.array([[1, 2], [1, 4], [2, 4]], np.float32) / 8,
    }
    found = made.scores({**published, **neighbors}, Ragged.from_lengths([2], [0, 1]))
    np.testing.assert_allclose(found, [[1 / 8 + 1, 1 / 8 + 4, 6 / 8]])
