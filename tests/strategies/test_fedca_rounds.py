"""FedCA over rounds: its limits are other methods, the server knows what devices have, a run leaves its matrices."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from bouquet.config import RunConfig
from bouquet.errors import ConfigError
from bouquet.methods.fedca import FedCAOptions
from bouquet.reporting.run_directory import RunDirectory
from bouquet.testing import Recording, assert_equal_runs
from bouquet.wire import TRAIN
from strategies.fedca_strategy import FedCA
from strategies.fedca_variants import component_similarity, drawn_weights, largest_weights
from tests.runs.helpers import last_checkpoint, run_here, small_settings


def tables_of(directory: RunDirectory, kind="aggregate", name="item_embedding"):
    return last_checkpoint(directory).extra[f"{kind}/{name}"]


@pytest.mark.parametrize("backbone", ["mf", "ncf"])
@pytest.mark.parametrize(("prior", "other"), [("size", "fedavg"), ("uniform", "fcf")])
def test_without_similarity_and_complementarity_it_is_averaging(tmp_path, backbone, prior, other):
    """alpha = beta = 0 and rho = 0: every user's table is the plain mean."""
    common = {"backbone": backbone, "num_server_rounds": 4, "checkpoint_every": 4}
    fedca = small_settings(tmp_path, strategy="fedca", fedca_alpha=0.0, fedca_beta=0.0, fedca_rho=0.0, **common)
    found = run_here(tmp_path / "fedca", fedca | {"fedca-prior": prior}, 2)
    mean = small_settings(tmp_path, strategy=other, server_optimizer="sgd", server_learning_rate=1.0, **common)
    expected = run_here(tmp_path / "mean", mean, 2)
    for name, values in last_checkpoint(expected).shared.items():
        aggregates = tables_of(found, name=name)
        np.testing.assert_array_equal(aggregates, np.repeat(aggregates[:1], len(aggregates), axis=0))
        np.testing.assert_allclose(aggregates[0], values, atol=1e-6)
    assert found.read_summary()["test"] == expected.read_summary()["test"]


def test_a_server_learning_rate_moves_as_that_of_averaging(tmp_path):
    common = {"num_server_rounds": 3, "checkpoint_every": 3}
    limits = {"fedca_alpha": 0.0, "fedca_beta": 0.0, "fedca_rho": 0.0, "fedca_server_learning_rate": 8.0}
    found = run_here(tmp_path / "a", small_settings(tmp_path, strategy="fedca", **limits, **common), 2)
    mean = small_settings(tmp_path, strategy="fedavg", server_optimizer="sgd", server_learning_rate=8.0, **common)
    expected = last_checkpoint(run_here(tmp_path / "b", mean, 2)).shared["item_embedding"]
    np.testing.assert_allclose(tables_of(found)[0], expected, atol=1e-5)


@pytest.mark.parametrize("backbone", ["mf", "ncf"])
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_the_server_knows_the_tables_that_devices_have(tmp_path, backbone, fraction):
    """Only touched rows travel, yet the server's copy of every table is the device's, bit by bit."""
    settings = small_settings(tmp_path, strategy="fedca", backbone=backbone, fraction_train=fraction, batch_size=1024)
    directory = run_here(tmp_path / "run", settings, 1)
    checkpoint = last_checkpoint(directory)
    folder = next((tmp_path / "run" / "nodes").glob("*/node-0-of-1"))
    index = load_file(folder / "index.safetensors")
    newest = index["rounds"].argmax(axis=0)
    order = np.searchsorted(checkpoint.users, index["users"])
    for name in ("item_embedding", *(("weight_1", "output") if backbone == "ncf" else ())):
        stored = np.load(folder / f"{name}.npy")[newest, np.arange(len(newest))]
        trained = checkpoint.versions[order] > 0
        found = checkpoint.extra[f"table/{name}"][order]
        np.testing.assert_allclose(found[trained], stored[trained], rtol=0, atol=1e-6)


FEW = {"strategy": "fedca", "fedca_mix_fraction": 0.3, "num_server_rounds": 4, "checkpoint_every": 2}


@pytest.mark.parametrize(
    "options", [{}, {"fraction_train": 0.5}, {"fedca_rho": 0.0}, {"fedca_evaluate": "trained"}, {"backbone": "ncf"}]
)
def test_a_table_that_a_device_has_is_not_sent(tmp_path, monkeypatch, options):
    """Three tenths of the users are mixed: who is not goes on as if its own table had come back to it."""
    settings = small_settings(tmp_path, **FEW, **options)
    found = run_here(tmp_path / "few", settings, 2)
    monkeypatch.setattr(FedCA, "_sends_to_all", True)
    everybody = run_here(tmp_path / "all", settings, 2)
    np.testing.assert_allclose(tables_of(found, "table"), tables_of(everybody, "table"), rtol=0, atol=1e-6)
    assert found.read_summary()["test"] == everybody.read_summary()["test"]
    lines = [run.rounds() for run in (found, everybody)]
    assert lines[0][0]["bytes"]["down_per_user"] == lines[1][0]["bytes"]["down_per_user"]
    if not options:  # 12 of 40 were mixed in the round before
        assert lines[0][1]["bytes"]["down_per_user"] == 12 / 40 * lines[1][1]["bytes"]["down_per_user"] == 12 / 40 * 960
        assert lines[0][1]["bytes"]["evaluation"]["down_per_user"] == 12 / 40 * 960


def test_the_server_knows_the_tables_of_those_who_are_not_mixed(tmp_path):
    settings = small_settings(tmp_path, **FEW)
    checkpoint = last_checkpoint(run_here(tmp_path / "run", settings, 1))
    folder = next((tmp_path / "run" / "nodes").glob("*/node-0-of-1"))
    index = load_file(folder / "index.safetensors")
    newest, order = index["rounds"].argmax(axis=0), np.searchsorted(checkpoint.users, index["users"])
    stored = np.load(folder / "item_embedding.npy")[newest, np.arange(len(newest))]
    np.testing.assert_allclose(checkpoint.extra["table/item_embedding"][order], stored, rtol=0, atol=1e-6)


def test_who_is_not_mixed_tells_nothing_of_its_items(tmp_path):
    """12 of 40 users are mixed in a round; the singular vectors of the others are zeros."""
    log = []
    run_here(tmp_path / "run", small_settings(tmp_path, **FEW), 2, Recording, log=log)
    told = [
        reply.content["reports"]["features"].numpy() for message, reply in log if message.metadata.message_type == TRAIN
    ]
    for first, second in zip(told[::2], told[1::2], strict=True):
        features = np.concatenate([first, second])
        assert len(features) == 40
        assert (np.abs(features).max(axis=(1, 2)) > 0).sum() == 12


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"fedca_mix_fraction": 0.3},
        {"fedca_mix_all_users": True, "fraction_train": 0.5},
        {"fedca_server_learning_rate": 2.0},
    ],
)
def test_tables_in_memory_and_in_files_are_the_same(tmp_path, monkeypatch, options):
    """And a run that is resumed has them from its checkpoint."""
    settings = small_settings(tmp_path, **{"strategy": "fedca", "evaluate_every": 2, "checkpoint_every": 2, **options})
    held = run_here(tmp_path / "held", settings | {"num-server-rounds": 4}, 2)
    run_here(tmp_path / "parts", settings | {"num-server-rounds": 2}, 2)
    parts = run_here(tmp_path / "parts", settings | {"num-server-rounds": 4, "resume": str(tmp_path / "parts")}, 2)
    assert_equal_runs(parts, held)
    monkeypatch.setattr("strategies.fedca_strategy.HELD_BYTES", 0)
    assert_equal_runs(run_here(tmp_path / "files", settings | {"num-server-rounds": 4}, 2), held)


def test_with_noise_the_server_has_noisy_tables_and_devices_keep_their_own(tmp_path):
    settings = small_settings(tmp_path, strategy="fedca", fedca_ldp_delta=0.3, num_server_rounds=1, checkpoint_every=1)
    directory = run_here(tmp_path / "run", settings, 1)
    checkpoint = last_checkpoint(directory)
    folder = next((tmp_path / "run" / "nodes").glob("*/node-0-of-1"))
    index = load_file(folder / "index.safetensors")
    stored = np.load(folder / "item_embedding.npy")[index["rounds"].argmax(axis=0), np.arange(40)]
    noise = checkpoint.extra["table/item_embedding"][np.searchsorted(checkpoint.users, index["users"])] - stored
    assert np.abs(noise).mean() == pytest.approx(0.3, rel=0.05)
    summary = directory.read_summary()
    assert summary["bytes"]["up_per_user_round"] == 60 * 4 * 4 + 4 * 4 * 4  # the whole table, and four vectors


def test_a_run_leaves_its_matrices_and_its_times(tmp_path):
    directory = run_here(tmp_path / "run", small_settings(tmp_path, strategy="fedca", num_server_rounds=2), 2)
    matrices = load_file(directory.path / "fedca" / "matrices.safetensors")
    assert {name: values.shape for name, values in matrices.items()} == {
        "similarity": (10, 10),
        "complementarity": (10, 10),
        "weights": (10, 10),
        "users": (10,),
    }
    assert (directory.path / "fedca" / "matrices.png").read_bytes().startswith(b"\x89PNG")
    np.testing.assert_array_equal(np.diagonal(matrices["similarity"]), 1)
    lines = (directory.path / "fedca" / "matrices.csv").read_text().splitlines()
    assert len(lines) == 1 + 3 * 10 * 10
    assert f"weights,2,5,{float(matrices['weights'][2, 5])!r}" in lines
    line = json.loads((directory.path / "metrics.jsonl").read_text().splitlines()[-1])
    assert set(line["fedca"]["seconds"]) == {"similarity", "complementarity", "weights", "mixing"}
    assert 1 <= line["fedca"]["support"]["least"] <= line["fedca"]["support"]["most"] <= 40


def test_bytes_down_are_a_table_of_ones_own(tmp_path):
    directory = run_here(tmp_path / "run", small_settings(tmp_path, strategy="fedca", num_server_rounds=1), 2)
    assert directory.read_summary()["bytes"]["down_per_user_round"] == 60 * 4 * 4


@pytest.mark.parametrize(
    "options",
    [
        {"fedca_mix_fraction": 0.3},
        {"fedca_mix_all_users": True, "fraction_train": 0.5},
        {"fedca_neighbours": 3},
        {"fedca_global_share": 0.5},
        {
            "fedca_similarity": "components",
            "fedca_complementarity": "centred",
            "fedca_complementarity_pairing": "greedy",
        },
        {"fedca_complementarity": "left", "fedca_complementarity_measure": "sin"},
        {"fedca_complementarity": "raw", "fedca_complementarity_sign": "orthogonal"},
        {"fedca_solver": "cvxpy"},
        {"fedca_evaluate": "trained", "fedca_objective": "eq8", "fedca_proximal": 0.1},
        {"fedca_ldp_delta_features": 0.1, "fedca_prior": "uniform"},
    ],
    ids=lambda options: " ".join(options),
)
def test_every_option_gives_the_same_run_on_one_node_and_on_five(tmp_path, options):
    runs = []
    for nodes in (1, 5):
        settings = small_settings(tmp_path, strategy="fedca", num_server_rounds=3, checkpoint_every=3, **options)
        runs.append(run_here(tmp_path / str(nodes), settings, nodes))
    np.testing.assert_allclose(tables_of(runs[0]), tables_of(runs[1]), atol=1e-5)
    plain = run_here(tmp_path / "plain", small_settings(tmp_path, strategy="fedca", num_server_rounds=3), 1)
    if options != {"fedca_solver": "cvxpy"}:
        assert not np.array_equal(tables_of(plain), tables_of(runs[0])) or "fedca_evaluate" in options


def test_largest_weights_by_hand():
    """User 0 keeps its two largest and its own: (0.1, 0.5, 0.3) of (0.1, 0.5, 0.3, 0.1), scaled by 1 / 0.9."""
    weights = np.array([[0.1, 0.5, 0.3, 0.1], [0.25, 0.25, 0.3, 0.2], [0, 0, 1.0, 0], [0.6, 0.4, 0, 0]])
    kept = largest_weights(weights, 2)
    np.testing.assert_allclose(kept[0], np.array([0.1, 0.5, 0.3, 0]) / 0.9)
    np.testing.assert_allclose(kept[2], [0, 0, 1, 0])
    np.testing.assert_allclose(kept[3], [0.6, 0.4, 0, 0])
    np.testing.assert_allclose(kept.sum(axis=1), 1)


def test_drawn_weights_by_hand():
    """The two nearest of user 0 are 2 and 3; one of them is drawn, or both: sizes 1, 2, 3, 4 give (1, 0, 3, 4) / 8.

    User 3 is as near to everybody: the first two of the roster are its nearest.
    """
    similarity = np.array([[1, 0.1, 0.5, 0.4], [0.1, 1, 0.2, 0.1], [0.5, 0.2, 1, 0.1], [0.4, 0.4, 0.4, 1]])
    sizes = np.arange(1.0, 5)
    both = drawn_weights(similarity, sizes, 2, 2, np.random.default_rng(0))
    np.testing.assert_allclose(both[0], np.array([1, 0, 3, 4]) / 8)
    np.testing.assert_allclose(both[3], np.array([1, 2, 0, 4]) / 7)
    one = drawn_weights(similarity, sizes, 2, 1, np.random.default_rng(0))
    assert one[0].tolist() in ([1 / 4, 0, 3 / 4, 0], [1 / 5, 0, 0, 4 / 5])
    everybody = drawn_weights(similarity, sizes, 100, 100, np.random.default_rng(0))
    np.testing.assert_allclose(everybody, np.tile(sizes / 10, (4, 1)))


def test_who_is_drawn_for_few_is_drawn_for_more():
    source = np.random.default_rng(3)
    similarity = source.random((30, 30))
    few, more = (drawn_weights(similarity, np.ones(30), 20, s, np.random.default_rng(1)) > 0 for s in (5, 10))
    assert (few.sum(axis=1) == 6).all()
    assert (more.sum(axis=1) == 11).all()
    assert (more | ~few).all()
    others = np.where(np.eye(30, dtype=bool), -1, similarity)
    least_of_nearest = np.sort(others, axis=1)[:, -20]
    assert ((others >= least_of_nearest[:, None]) | ~more | np.eye(30, dtype=bool)).all()


def test_drawing_everybody_is_averaging(tmp_path):
    """39 of 39 others among the 100 nearest: FedAvg, whoever is like whom."""
    common = {"num_server_rounds": 3, "checkpoint_every": 3, "evaluate_training": True}
    limits = {"fedca_alpha": 0.0, "fedca_beta": 0.0, "fedca_rho": 0.0}
    drawn = small_settings(tmp_path, strategy="fedca", fedca_drawn_neighbours=39, **limits, **common)
    found = run_here(tmp_path / "drawn", drawn, 2)
    mean = small_settings(tmp_path, strategy="fedavg", server_optimizer="sgd", server_learning_rate=1.0, **common)
    expected = run_here(tmp_path / "mean", mean, 2)
    np.testing.assert_allclose(tables_of(found)[7], last_checkpoint(expected).shared["item_embedding"], atol=1e-6)
    assert found.read_summary()["test"] == expected.read_summary()["test"]
    assert found.read_summary()["training"] == expected.read_summary()["training"]


def test_drawn_neighbours_take_the_place_of_composite_weights():
    for other in ({}, {"fedca_alpha": 0.0}, {"fedca_alpha": 0.0, "fedca_beta": 0.0, "fedca_neighbours": 3}):
        with pytest.raises(ConfigError, match="takes the place of the composite weights"):
            FedCAOptions(fedca_drawn_neighbours=10, **other).check_run(RunConfig())
    options = FedCAOptions(fedca_drawn_neighbours=101, fedca_alpha=0.0, fedca_beta=0.0)
    with pytest.raises(ConfigError, match="draws 101 users among fedca-nearest = 100"):
        options.check_run(RunConfig())


def test_component_similarity_by_hand():
    """Centred tables (1, 0), (-1, 0) and (0, 2), (0, -2): components e_1 and e_2, scores (1, -1) and (2, -2).

    Their distance is sqrt(1 + 1) = 1.41421, so s = 1 / 2.41421 = 0.41421.
    """
    tables = np.array([[[1, 0], [-1, 0]], [[0, 2], [0, -2]]], dtype=np.float32)
    expected = 1 / (1 + np.sqrt(2))
    np.testing.assert_allclose(component_similarity(tables), [[1, expected], [expected, 1]], rtol=1e-6)
