"""The device side of CF-FedSR: interests, performance, and what a device uses after fine-tuning."""

import numpy as np
import pytest

from bouquet.arrays import initial_shared
from bouquet.config import RunConfig
from bouquet.errors import ConfigError
from bouquet.methods import only_embeddings
from bouquet.methods.cf_fedsr import CFFedSROptions
from bouquet.ragged import Ragged
from client_app.node.host import host_of
from client_app.node.scoring import scorer
from client_app.node.tasks import after, backend_of, local_task, tune
from client_app.personalization.cf_fedsr import InterestsAndTuning, interests
from client_app.personalization.round import Given, Tuning
from models import BACKBONES
from tests.runs.helpers import small_settings

MODELS = ["gru4rec", "lightgcn", "mf", "ncf", "sasrec"]


def test_interests_by_hand():
    """q_i = (i, 10 i), histories 1 2 3 and 4; v_1 = 1, v_2 = 2: means (3, 30), (2.5, 25) and (4, 40) twice."""
    table = np.arange(6)[:, None] * np.array([[1, 10]], dtype=np.float32)
    found = interests(table, Ragged.from_lengths([3, 0, 1], [1, 2, 3, 4]), 1, 2)
    assert found.dtype == np.float32
    assert found.tolist() == [[3, 30, 2.5, 25], [0, 0, 0, 0], [4, 40, 4, 40]]


def test_performance_is_what_sampled_candidates_say():
    """HR@10 = 1 and NDCG@10 = 1/2 of the first; the second holds nothing out and counts as not served."""
    from bouquet.evaluation.metrics import CANDIDATE_SETS, METRICS

    metrics = np.full((2, len(CANDIDATE_SETS), len(METRICS)), np.nan)
    metrics[0] = 0.0
    sampled = metrics[0, CANDIDATE_SETS.index("sampled-99")]
    sampled[METRICS.index("HR@10")], sampled[METRICS.index("NDCG@10")] = 1, 0.5
    device = InterestsAndTuning(BACKBONES["mf"](5, RunConfig()), RunConfig(), CFFedSROptions())
    assert device.validation_reports(metrics)["performance"].tolist() == [[1, 0.5], [0, 0]]


def test_the_long_term_must_be_longer():
    with pytest.raises(ConfigError, match="5 is not above 5"):
        InterestsAndTuning(BACKBONES["mf"](5, RunConfig()), RunConfig(), CFFedSROptions(cf_fedsr_long_term=5))


def hosted(tmp_path, backbone, **changes):
    """A host of all users, what six of them were given, and their positions."""
    changes = {"learning_rate": 1.0, "user_learning_rate": 0.0, "init_scale": 0.5, "dropout": 0.0} | changes
    settings = small_settings(tmp_path, strategy="cf-fedsr", backbone=backbone, **changes)
    host = host_of(settings, {"partition-id": 0, "num-partitions": 1})
    travels = ["item_embedding"] if only_embeddings(host.config) else list(host.backbone.shared)
    everything = initial_shared(host.backbone.shared, 0)
    positions = np.array([3, 0, 7, 12, 30, 31])
    random = np.random.default_rng(0)
    specs = host.private_specs(travels)
    own = {n: random.normal(0, 0.3, (len(positions), *specs[n].shape)).astype(np.float32) for n in specs}
    return host, Given({name: everything[name] for name in travels}, own), positions


def whole_tables(given, own_rows, count):
    """The same model with a whole table of each user: the slow way to use rows of one's own."""
    for name, values in list(given.shared.items()):
        tables = np.repeat(values[None], count, axis=0)
        if name in own_rows.values:
            tables[own_rows.rows.row_of_value, own_rows.rows.values] = own_rows.values[name]
        given = given.with_own(name, tables)
    return given


@pytest.mark.parametrize("exchange", ["embedding", "all"])
@pytest.mark.parametrize("backbone", MODELS)
def test_own_rows_are_scored_as_whole_tables_would_be(tmp_path, backbone, exchange):
    host, given, positions = hosted(tmp_path, backbone, exchange=exchange)
    tuned, own_rows = tune(host, given, positions, 1, Tuning(2, 0.7))
    train = host.histories.train.take(positions)
    plain, fast = (scorer(host.backbone, host.methods, tuned, train, 1, own_rows=rows) for rows in (None, own_rows))
    slow = scorer(host.backbone, host.methods, whole_tables(tuned, own_rows, len(positions)), train, 1)
    for rows in (np.arange(6), np.array([4]), np.array([5, 1])):
        np.testing.assert_allclose(fast(rows), slow(rows), atol=2e-5)
        assert np.abs(plain(rows) - fast(rows)).max() > 1e-3


@pytest.mark.parametrize("exchange", ["embedding", "all"])
@pytest.mark.parametrize("backbone", MODELS)
def test_gamma_lies_between_the_global_and_the_local_model(tmp_path, backbone, exchange):
    """γ = 0: the global model. γ = 1: what training leaves. In between: on the line, for private and shared arrays."""
    host, given, positions = hosted(tmp_path, backbone, exchange=exchange)
    before = {name: values.copy() for name, values in given.own.items()}
    results = [tune(host, given, positions, 1, Tuning(2, gamma)) for gamma in (0.0, 0.25, 1.0)]
    for name, values in before.items():
        np.testing.assert_array_equal(given.own[name], values, "what was given must not change")
        np.testing.assert_allclose(results[0][0].own[name], values, atol=1e-6)
    for name in results[0][0].own:
        none, quarter, local = (found.own[name] for found, _ in results)
        np.testing.assert_allclose(quarter, 0.75 * none + 0.25 * local, atol=1e-6)
        assert np.abs(local - none).max() > 1e-4, name
    none, quarter, local = (rows.values["item_embedding"] for _, rows in results)
    np.testing.assert_allclose(none, given.shared["item_embedding"][results[0][1].rows.values], atol=1e-6)
    np.testing.assert_allclose(quarter, 0.75 * none + 0.25 * local, atol=1e-6)

    options = host.config.model_copy(update={"local_epochs": 2})
    trained = Given(given.shared, {name: values.copy() for name, values in before.items()})
    changes = list(backend_of(options)(local_task(host, trained, positions, 2, options)))
    _, rows = after(trained, changes, len(positions))
    np.testing.assert_allclose(local, rows.values["item_embedding"], atol=1e-6)
