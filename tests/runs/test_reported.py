"""The model that a run reports is kept, and what it would recommend is what its figures are made of."""

from __future__ import annotations

import numpy as np
import pytest

from bouquet.config import parsed
from bouquet.reporting.reported import NOTHING
from client_app.node.histories import histories_of, interactions_of
from client_app.node.lists import best_items
from tests.runs.helpers import method, run_here, small_settings

# One of each kind: a common table, private tables, models of three sizes, own rows of common tables, users' own tables
# on the server, a table of two views, a fine-tuned model that reads a history, sums, and vectors solved from sums.
METHODS = ["fedavg", "local", "hetefedrec", "pfedrec", "fedca", "fed3cr", "cf-fedsr", "sequential-rules", "ials"]


def hits_at_ten(settings, lists):
    """How many users have their hidden item among the first ten; no list has what its user is known to have."""
    config = parsed(settings).run
    histories = histories_of(interactions_of(config), config)
    place = {user: row for row, user in enumerate(histories.users.tolist())}
    hits = 0
    for user, items in zip(lists.users.tolist(), lists.items, strict=True):
        row = place[user]
        known = np.concatenate([histories.train.row(row), histories.validation.row(row)])
        shown = items[items != NOTHING]
        assert len(set(shown.tolist())) == len(shown) == min(100, histories.num_items - len(known))
        assert not np.isin(known, shown).any()
        hits += bool(np.isin(histories.test.row(row), items[:10]).any())
    assert len(lists.users) == len(place)
    return hits


@pytest.mark.parametrize("name", METHODS)
def test_the_lists_hit_as_often_as_the_run_reports(tmp_path, name):
    """HR@10 is the share of users whose hidden item is among the first ten, but for a tie at the tenth place."""
    settings = small_settings(tmp_path, **method(name), num_server_rounds=2)
    directory = run_here(tmp_path / "run", settings, 3)
    summary = directory.read_summary()
    best = summary["best_round"]
    lists = directory.reported.read_lists(best)
    hits = hits_at_ten(settings, lists)
    assert hits / len(lists.users) == pytest.approx(summary["test"]["full"]["HR@10"], abs=1 / len(lists.users))
    assert (np.diff(np.where(np.isinf(lists.scores), -1e30, lists.scores), axis=1) <= 0).all()
    assert directory.reported.read_model(best).round == best


def test_the_lists_do_not_depend_on_nodes(tmp_path):
    settings = small_settings(tmp_path, strategy="fcf", num_server_rounds=4, test_history="training")
    one, many = (run_here(tmp_path / str(nodes), settings, nodes) for nodes in (1, 7))
    best = one.read_summary()["best_round"]
    np.testing.assert_array_equal(one.reported.read_lists(best).items, many.reported.read_lists(best).items)
    assert len(list(many.reported.path.iterdir())) == 2, "the lists of single nodes are joined"


def test_none_are_made_where_none_are_wanted(tmp_path):
    directory = run_here(tmp_path / "run", small_settings(tmp_path, recommendations=0, num_server_rounds=2), 2)
    best = directory.read_summary()["best_round"]
    assert [path.name for path in directory.reported.path.iterdir()] == [f"round-{best:06d}.safetensors"]


def test_the_best_items_of_a_row_by_hand():
    """Of 5, 7, 7, −∞ and 6 the three best are the second, the third, which is equal and later, and the last."""
    items, scores = best_items(np.array([[5, 7, 7, -np.inf, 6]], np.float32), 3)
    assert (items.tolist(), scores.tolist()) == ([[1, 2, 4]], [[7, 7, 6]])
    items, scores = best_items(np.array([[1, 3], [2, 2]], np.float32), 2)
    assert (items.tolist(), scores.tolist()) == ([[1, 0], [0, 1]], [[3, 1], [2, 2]])
