"""The rows of pooled data beside a run: what they learn from, what they read, and what validation chooses for them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bouquet.config import RunConfig
from bouquet.evaluation import METRICS
from bouquet.experiments import baselines as comparison
from bouquet.experiments.baselines import centralized_row, evaluate_centralized
from bouquet.ragged import Ragged
from bouquet.randomness import user_keys
from client_app.node.histories import Histories
from models.centralized import CENTRALIZED, EASE, POOLED, EASEParameters, ItemKNN
from tests.runs.helpers import bouquet, small_settings, write_data


def histories_of_four() -> Histories:
    """Six items. User 0 trained on item 0, which nobody else has; item 1 is for validation and item 2 for test.

    Two others have items 1 and 2 together, and one has 3 and 4: only from item 1 does anything lead to item 2.
    """
    return Histories(
        users=user_keys(["ann", "bob", "cid", "dan"]),
        train=Ragged.from_lengths([1, 2, 2, 2], [0, 1, 2, 1, 2, 3, 4]),
        validation=Ragged.from_lengths([1, 0, 0, 0], [1]),
        test=Ragged.from_lengths([1, 0, 0, 0], [2]),
        num_items=6,
        catalogue="",
        partition=0,
        num_partitions=1,
        dropped_users=0,
        split_seed=0,
        in_time=True,
    )


def mrr(values: np.ndarray, part: int) -> float:
    return float(values[0, part, 0, METRICS.index("MRR")])


@pytest.mark.parametrize("model", [EASE, ItemKNN])
def test_a_test_item_that_only_the_validation_item_leads_to(model):
    """At test the candidates of user 0 are items 2, 3, 4, 5.

    After items 0 and 1, item 2 alone scores above 0: rank 1. After item 0 all score 0: rank 1 + 3 / 2, MRR 2/5.
    At validation the candidates are 1 to 5, all at 0 under either setting: rank 1 + 4 / 2, MRR 1/3.
    """
    known, _ = evaluate_centralized(model(), histories_of_four(), RunConfig())
    training, chosen = evaluate_centralized(model(), histories_of_four(), RunConfig(test_history="training"))
    assert mrr(known, 1) == 1
    assert mrr(training, 1) == pytest.approx(2 / 5)
    assert mrr(known, 0) == mrr(training, 0) == pytest.approx(1 / 3)
    # All settings do equally well on validation: the first of each grid.
    first = {EASE: {"regularization": 10.0}, ItemKNN: {"neighbours": 10, "shrinkage": 0.0}}
    assert chosen == first[model]


@pytest.mark.parametrize("name", ["ease", "itemknn"])
def test_what_is_learned_is_learned_from_training_items(name):
    """The same weights whatever is held out and however the test item is ranked."""
    fitted = []
    for test_history, held_out in (("known", [1]), ("training", [1]), ("known", [4])):
        histories = histories_of_four()
        object.__setattr__(histories, "validation", Ragged.from_lengths([1, 0, 0, 0], held_out))
        model = CENTRALIZED[name](EASEParameters(grid=(300.0,)) if name == "ease" else None)
        evaluate_centralized(model, histories, RunConfig(test_history=test_history))
        fitted.append(model.scores_after(Ragged.from_lengths(np.ones(6), np.arange(6))))
    np.testing.assert_array_equal(fitted[1], fitted[0])
    np.testing.assert_array_equal(fitted[2], fitted[0])


@pytest.mark.parametrize("name", ["popularity", "mf-bce"])
def test_a_model_without_such_an_input_ranks_the_same(name):
    found = [
        evaluate_centralized(CENTRALIZED[name](), histories_of_four(), RunConfig(test_history=test_history))[0]
        for test_history in ("known", "training")
    ]
    np.testing.assert_array_equal(found[0], found[1])


def test_where_nobody_holds_anything_out_nothing_is_chosen():
    histories = histories_of_four()
    object.__setattr__(histories, "validation", Ragged.from_lengths([0, 0, 0, 0], []))
    _, chosen = evaluate_centralized(EASE(), histories, RunConfig())
    assert chosen == {}


def test_a_row_that_cannot_be_computed_says_why(monkeypatch, tmp_path):
    """The run beside it is not lost."""
    monkeypatch.setitem(POOLED, "ease", lambda: EASE(EASEParameters(max_bytes=100)))
    settings = small_settings(tmp_path)
    config = RunConfig(dataset="file", data_file=str(settings["data-file"]), time_column="time")
    assert "itemknn" in centralized_row(config, "ease")["unavailable"]


def test_the_table_beside_a_run_says_what_was_read_and_keeps_what_was_chosen(tmp_path):
    data = write_data(tmp_path / "data.csv")
    settings = f'dataset="file" data-file="{data}" time-column="time" num-server-rounds=1 evaluate-every=1'
    for test_history, words in (("known", "all that is known by then"), ("training", "the training items alone")):
        out = tmp_path / test_history
        ended = bouquet(
            *("run", "--engine", "local", "--nodes", "1", "--out", str(out)),
            *("--compare-with", "popularity ease gru4rec"),
            *("-c", f'{settings} test-history="{test_history}"'),
        )
        assert ended.returncode == 0, ended.stderr
        assert f"among all unseen items, after {words};" in ended.stdout
        assert "GRU4Rec, all data pooled" in ended.stdout
        rows = json.loads((out / "comparison.json").read_text())
        assert rows["popularity"]["chosen"] == {}
        assert rows["ease"]["chosen"]["regularization"] in EASEParameters().grid
        assert set(rows["gru4rec"]["chosen"]) == {"epochs"}


def test_settings_are_chosen_on_a_random_sample_of_users(monkeypatch):
    """20 of 60 users, the same in every call, and not the first ones: files list users by time or by size.

    Of 20 drawn without replacement 10 are among the last 30 on average, with standard deviation
    sqrt(20 · 1/4 · 40/59) = 1.8; 3 to 17 is four of them either way.
    """
    monkeypatch.setattr(comparison, "VALIDATION_USERS", 20)
    histories = Histories(
        users=user_keys([str(user) for user in range(60)]),
        train=Ragged.from_lengths([1] * 60, np.arange(60) % 30),
        validation=Ragged.from_lengths([1] * 60, (np.arange(60) + 1) % 30),
        test=Ragged.from_lengths([0] * 60, []),
        num_items=30,
        catalogue="",
        partition=0,
        num_partitions=1,
        dropped_users=0,
        split_seed=0,
        in_time=True,
    )
    asked = []

    def scores(rows):
        asked.extend(rows.tolist())
        return np.zeros((len(rows), 30))

    score = comparison._validation_score(histories, True)
    assert score(scores) == score(scores)
    assert len(asked) == 40
    assert asked[:20] == asked[20:] == sorted(set(asked))
    assert 3 <= sum(user >= 30 for user in asked[:20]) <= 17
