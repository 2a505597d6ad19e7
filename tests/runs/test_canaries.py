"""Invariant 3: evaluation cannot be fooled. A scorer without a model stays at chance under the default protocol.

The probe scores an item with minus the number of times that it was drawn as a training negative. Where held-out
items are kept out of the draws, as published pipelines do, the held-out item is the one that was never drawn.

The number of an item tells nothing either: see `id_order`, whose scorers are asked of every data set of the catalogue.
"""

import re

import numpy as np
import pandas as pd
import pytest

from bouquet.config import RunConfig
from bouquet.evaluation import evaluate_users, metric_values
from bouquet.randomness import SeededDraws
from client_app.node.histories import histories_of
from data_partition import DATASETS, leave_one_out, load, training_negatives
from data_partition.readers.raw import RawData
from tests.conftest import data_directory
from tests.runs.id_order import AFTER_VALIDATION, extremes, id_scorers, leaks, made, reached, rows_of, tied
from tests.runs.id_order import evaluated as evaluated_users

ROUNDS = 100
# LastFM-2K numbers artists in the order in which the first users name them: a user's numbers are blocks, and what is
# hidden, at random, is a gap in one. It is no order of events, and nothing that learns sees it: to a model the number
# of an item is the place of a row, and all rows start from random draws.
NUMBERS_TELL = {"lastfm-2k": ["the mirror image of the next id above the newest training item"]}


def probe(histories, mode):
    """Per-user metrics of the probe after 100 rounds of draws."""
    counts = np.zeros((len(histories.users), histories.num_items), dtype=np.float32)
    forbidden = histories.train if mode == "honest" else histories.whole
    for round_ in range(1, ROUNDS + 1):
        drawn = training_negatives(
            histories.train, forbidden, histories.num_items, 4, histories.users, SeededDraws(0), round_
        )
        np.add.at(counts, (drawn.row_of_value, drawn.values), 1)
    return evaluated(histories, lambda rows: -counts[rows])


def evaluated(histories, scorer):
    return evaluate_users(
        scorer,
        num_items=histories.num_items,
        train=histories.train,
        validation=histories.validation,
        test=histories.test,
        candidates=histories.candidates,
    )


def mean_and_error(values, candidates="sampled-99", name="HR@10"):
    column = metric_values(values, "test", candidates, name)
    column = column[~np.isnan(column)]  # users with too few interactions have nothing held out
    return column.mean(), column.std(ddof=1) / np.sqrt(len(column))


def at_chance(values):
    mean, _ = mean_and_error(values)
    chance = 0.1
    return abs(mean - chance) <= 3 * np.sqrt(chance * (1 - chance) / len(values))


@pytest.fixture(scope="module")
def synthetic_histories():
    return histories_of(load("synthetic"), RunConfig())


def test_the_probe_stays_at_chance_on_synthetic_data(synthetic_histories):
    assert at_chance(probe(synthetic_histories, "honest"))


def test_the_probe_finds_the_leak_of_published_pipelines(synthetic_histories):
    assert mean_and_error(probe(synthetic_histories, "paper"))[0] > 0.99


def test_a_constant_scorer_gets_no_hit(synthetic_histories):
    values = evaluated(synthetic_histories, lambda rows: np.zeros((len(rows), synthetic_histories.num_items)))
    for candidates in ("full", "sampled-99"):
        assert mean_and_error(values, candidates, "HR@20")[0] == 0
        assert mean_and_error(values, candidates, "NDCG@20")[0] == 0


def test_an_oracle_gets_everything(synthetic_histories):
    def oracle(rows):
        scores = np.zeros((len(rows), synthetic_histories.num_items))
        for place, row in enumerate(rows):
            scores[place, synthetic_histories.test.row(row)] = 1
        return scores

    values = evaluated(synthetic_histories, oracle)
    for name in ("HR@5", "NDCG@5", "Recall@5", "MRR"):
        assert mean_and_error(values, "full", name)[0] == 1
        assert mean_and_error(values, "sampled-99", name)[0] == 1


def test_on_ml_100k_the_probe_leaks_as_published_and_stays_at_chance_when_honest(real_data):
    histories = histories_of(load("ml-100k", str(real_data("ml-100k"))), RunConfig())
    assert mean_and_error(probe(histories, "paper"))[0] > 0.99
    values = probe(histories, "honest")
    assert at_chance(values)
    assert mean_and_error(values, "full")[0] < 0.02


def test_the_order_of_ids_does_not_beat_popularity_on_filmtrust(real_data):
    """FilmTrust has no time; held out at random, the next id above the largest training id knows nothing."""
    interactions = load("filmtrust", str(real_data("filmtrust")))
    histories = histories_of(interactions, RunConfig())
    popularity = np.bincount(histories.train.values, minlength=histories.num_items).astype(np.float64)
    ids = interactions.item_ids.astype(np.int64)

    def by_id(rows):
        largest = np.array([ids[histories.train.row(row)].max() for row in rows])
        distance = ids[None, :] - largest[:, None]
        return -np.where(distance > 0, distance, ids.max() + np.abs(distance)).astype(np.float64)

    def by_popularity(rows):
        return np.broadcast_to(popularity, (len(rows), len(popularity)))

    for candidates in ("full", "sampled-99"):
        id_order, popular = (mean_and_error(evaluated(histories, s), candidates)[0] for s in (by_id, by_popularity))
        assert id_order < popular


@pytest.fixture(scope="module", params=DATASETS)
def a_set(request):
    """Name, rows and Interactions of each data set of the catalogue; skipped where its files are not at hand."""
    dataset = DATASETS[request.param]
    folders = [data_directory() / name for name in (dataset.name, *dataset.aliases)]
    here = [folder for folder in folders if folder.is_dir()] if dataset.read else folders
    if not here:
        pytest.skip(f"the data set {dataset.name} is not in {data_directory()} (see BOUQUET_TEST_DATA)")
    raw = rows_of(dataset.name, here[0])
    return dataset.name, raw, made(dataset.name, raw)


def test_no_scorer_of_ids_finds_what_is_hidden(a_set):
    name, _, interactions = a_set
    assert leaks(interactions) == NUMBERS_TELL.get(name, [])


def test_the_scorers_of_ids_find_the_order_of_the_file_in_amazon_beauty(real_data):
    """Its days are sorted by item: with that order for time, the hidden item would be known from its number."""
    raw = rows_of("amazon-beauty-5core", real_data("amazon-beauty-5core"))
    assert AFTER_VALIDATION in leaks(made("amazon-beauty-5core", raw, by_row=True))


def test_of_two_items_of_one_time_either_is_the_last(a_set):
    """A fair coin for every user whose hidden two are of one time: 3.5 standard errors of 1 / (2 sqrt k)."""
    _, raw, interactions = a_set
    split = leave_one_out(interactions)
    same_time = evaluated_users(split)[tied(raw, interactions, split)]
    if len(same_time) == 0:
        return
    larger = split.test.take(same_time).values > split.validation.take(same_time).values
    assert abs(larger.mean() - 0.5) <= 3.5 * 0.5 / np.sqrt(len(same_time))


def test_without_times_the_hidden_item_has_any_place_among_the_ids_or_the_set_says_so(a_set):
    """Where times decide what is last, a trend is one of time: newer items have larger ids. Where rows alone decide,
    nothing shows that it is none of the file."""
    name, raw, interactions = a_set
    if "time" in raw.table:
        return
    largest, smallest, chance, error = extremes(interactions, leave_one_out(interactions))
    fair = max(abs(largest - chance), abs(smallest - chance)) <= 3.5 * error
    if not (caution := DATASETS[name].caution):
        assert fair
    else:
        assert not fair
        assert re.findall(r"(\d+) %", caution) == [f"{100 * largest:.0f}", f"{100 * chance:.0f}"]


@pytest.fixture(scope="module")
def sorted_by_item():
    """600 people, each with 8 items out of 14 neighbours, all of one time, in a file that is sorted by item."""
    random = np.random.default_rng(0)
    first = random.integers(0, 800, 600)
    items = np.sort([start + random.choice(14, 8, replace=False) for start in first], axis=1)
    return RawData(pd.DataFrame({"user": np.repeat(np.arange(600), 8), "item": items.ravel(), "time": 1}))


def test_the_scorers_of_ids_find_the_order_of_a_file(sorted_by_item):
    """Taken as the order of events it makes the hidden item the next one up; with a draw there is nothing to find,
    although the neighbours of an item are still the best guess."""
    by_row, drawn = (made("sorted", sorted_by_item, by_row=by_row) for by_row in (True, False))
    assert AFTER_VALIDATION in leaks(by_row)
    assert leaks(drawn) == []
    largest, smallest, chance, _ = extremes(by_row, leave_one_out(by_row))
    assert (largest, smallest, chance) == (1, 0, 1 / 8)
    largest, smallest, chance, error = extremes(drawn, leave_one_out(drawn))
    assert max(abs(largest - chance), abs(smallest - chance)) < 3.5 * error


def test_what_the_scorers_of_ids_reach_by_hand():
    """Items 10, 20, …, 60. A user meets 20, 50, then 30 for validation and 40 for test, so 10, 40 and 60 are ranked:

    the largest                 60, 40, 10      its mirror image    10, 40, 60
    above the largest known     60, 40, 10      below the smallest  10, 40, 60
    above 50, the newest        60, 40, 10      below it            40, 10, 60
    above 30, for validation    40, 60, 10      below it            10, 40, 60
    """
    table = pd.DataFrame({"user": 4 * [1] + 2 * [2], "item": [20, 50, 30, 40, 10, 60], "time": range(6)})
    split = leave_one_out(made("hand", RawData(table)))
    places = {}
    for words, pair in id_scorers(split, 6).items():
        gains = [reached(scorer, split, 6, np.array([0]))[0, 1] for scorer in pair]
        places[words] = [round(2 ** (1 / gain) - 1) for gain in gains]  # NDCG@10 of place p is 1 / log2(1 + p)
    assert places == {
        "the largest id": [2, 2],
        "the next id above the largest known": [2, 2],
        "the next id above the newest training item": [2, 1],
        AFTER_VALIDATION: [1, 2],
    }
