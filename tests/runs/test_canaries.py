"""Invariant 3: evaluation cannot be fooled. A scorer without a model stays at chance under the default protocol.

The probe scores an item with minus the number of times that it was drawn as a training negative. Where held-out
items are kept out of the draws, as published pipelines do, the held-out item is the one that was never drawn.
"""

import numpy as np
import pytest

from bouquet.config import RunConfig
from bouquet.evaluation import evaluate_users, metric_values
from client_app.host import histories_of
from data_partition import load, training_negatives

ROUNDS = 100


def probe(histories, mode):
    """Per-user metrics of the probe after 100 rounds of draws."""
    counts = np.zeros((len(histories.users), histories.num_items), dtype=np.float32)
    forbidden = histories.train if mode == "honest" else histories.whole
    for round_ in range(1, ROUNDS + 1):
        drawn = training_negatives(histories.train, forbidden, histories.num_items, 4, histories.users, 0, round_)
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
