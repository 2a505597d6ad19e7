"""A user's own items, the newest first."""

import numpy as np
import pytest

from bouquet.config import RunConfig
from bouquet.errors import BouquetError
from bouquet.experiments.baselines import centralized_row
from bouquet.ragged import Ragged
from models.centralized import IN_ORDER, POOLED, MostRecent


def test_by_hand():
    """Training: user 0 has 1 2 1, user 1 has 1, user 2 has 3 1. Counts of users: item 1 three, items 2 and 3 one each.

    So popularity is 3/4 for item 1 and 1/4 for items 2 and 3, 0 for item 0. After 2 1 2 item 2 was last at place 3 and
    item 1 at place 2; after nothing there is only popularity.
    """
    model = MostRecent().fit(Ragged.from_lengths([3, 1, 2], [1, 2, 1, 1, 3, 1]), 4)
    scores = model.scores_after(Ragged.from_lengths([3, 0], [2, 1, 2]))
    np.testing.assert_array_equal(scores, [[0, 2, 3, 0.25], [0, 0.75, 0.25, 0.25]])


def test_nothing_before_it_was_fitted():
    with pytest.raises(BouquetError, match="before fit"):
        MostRecent().scores_after(Ragged.from_lengths([1], [0]))


def test_it_is_a_row_of_pooled_data_that_needs_times():
    assert POOLED["most-recent"] is MostRecent
    assert "most-recent" in IN_ORDER
    row = centralized_row(RunConfig(dataset="synthetic", repeats="keep"), "most-recent")
    popular = centralized_row(RunConfig(dataset="synthetic", repeats="keep"), "popularity")
    assert row["test"]["full"] != popular["test"]["full"]


def test_without_what_a_user_has_had_it_is_popularity():
    """repeats = "drop": `full` leaves out own items, sampled candidates hold none, so only what is popular is left."""
    row, popular = (centralized_row(RunConfig(dataset="synthetic"), name) for name in ("most-recent", "popularity"))
    for candidates, figures in popular["test"].items():
        assert row["test"][candidates] == pytest.approx(figures)
