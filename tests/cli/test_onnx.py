"""`bouquet export --onnx`: another program's runtime gives the recommendations of the run."""

from __future__ import annotations

import numpy as np
import pytest

from bouquet.config import parsed
from bouquet.errors import ConfigError
from bouquet.experiments.onnx_model import onnx_of
from bouquet.ragged import one_after_another
from client_app.node.histories import histories_of, interactions_of
from tests.runs.helpers import run_here, small_settings

SMALL = {"num_server_rounds": 2, "recommendations": 60, "max_length": 4, "user_learning_rate": 0.0}


@pytest.fixture
def runtime():
    for module in ("torch", "onnx", "onnxscript"):
        pytest.importorskip(module, reason="it comes with the extra onnx")
    return pytest.importorskip("onnxruntime", reason="it is for the developers")


def test_a_sequence_model_recommends_elsewhere_what_the_run_recommends(tmp_path, runtime):
    """Each user's newest four items go in, shorter histories padded, and the best unknown items come out."""
    settings = small_settings(tmp_path, backbone="sasrec", sasrec_blocks=1, **SMALL)
    directory = run_here(tmp_path / "run", settings, 2)
    config = parsed(settings).run
    interactions = interactions_of(config)
    histories = histories_of(interactions, config)
    graph = runtime.InferenceSession(onnx_of(directory))
    assert [entry.name for entry in graph.get_inputs()] == ["items", "lengths"]
    before_test = one_after_another(histories.train, histories.validation)
    known = [before_test.row(row).tolist() for row in range(len(histories.users))]
    read = [items[-4:] for items in known]
    lengths = np.array([len(items) for items in read])
    items = np.array([[*items, *[0] * (4 - len(items))] for items in read])
    (scores,) = graph.run(None, {"items": items, "lengths": lengths})
    lists = directory.reported.read_lists(int(directory.read_summary()["best_round"]))
    place = {int(key): row for row, key in enumerate(histories.users)}
    for key, shown, of_shown in zip(lists.users, lists.items, lists.scores, strict=True):
        mine = scores[place[int(key)]]
        np.testing.assert_allclose(mine[shown[shown >= 0]], of_shown[shown >= 0], atol=1e-5)
        assert set(shown[shown >= 0].tolist()).isdisjoint(known[place[int(key)]])


def test_a_network_scores_a_person_by_its_private_array(tmp_path, runtime):
    """r = h' relu(W' [p, q] + b_1) + b, here with one hidden layer, for two people who are no users."""
    changes = {key: value for key, value in SMALL.items() if key != "max_length"}
    settings = small_settings(tmp_path, backbone="ncf", ncf_hidden="5", **changes)
    directory = run_here(tmp_path / "run", settings, 1)
    graph = runtime.InferenceSession(onnx_of(directory))
    people = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
    (scores,) = graph.run(None, {"user_embedding": people})
    model = directory.reported.read_model(int(directory.read_summary()["best_round"])).arrays
    pairs = np.concatenate(np.broadcast_arrays(people[:, None, :], model["item_embedding"][None, :, :]), axis=2)
    hidden = np.maximum(pairs @ model["weight_1"] + model["bias_1"], 0)
    np.testing.assert_allclose(scores, hidden @ model["output"] + model["output_bias"], rtol=1e-4, atol=1e-6)


def test_a_method_whose_users_share_no_model_has_none(tmp_path, runtime):
    directory = run_here(tmp_path / "run", small_settings(tmp_path, strategy="local", num_server_rounds=1), 1)
    with pytest.raises(ConfigError, match="What all users of local share is no model that scores on its own"):
        onnx_of(directory)
