"""One user about whom something impossible is said costs nobody else: the others of its node stay in the round."""

import numpy as np
import pytest
from flwr.app import Array

import client_app.node.host
from bouquet.errors import RunFailed
from bouquet.methods import METHODS
from bouquet.randomness import user_keys
from bouquet.testing import Faulty
from bouquet.wire import EVALUATE, TRAIN
from tests.runs.helpers import WITH_PLUG_INS, last_checkpoint, method, run_here, small_settings
from tests.runs.test_failures import changed_reply

ALL = [*sorted(METHODS), *WITH_PLUG_INS]
TRAINED = [name for name in ALL if name in WITH_PLUG_INS or METHODS[name].kind == "gradients"]
BAD = user_keys(["7"])[0]


@pytest.fixture
def a_damaged_user(monkeypatch):
    """User 7's private arrays begin with numbers that no training survives."""
    real = client_app.node.host.drawn_private

    def drawn(name, spec, seed, users, out):
        real(name, spec, seed, users, out)
        out[users == BAD] = np.nan

    monkeypatch.setattr(client_app.node.host, "drawn_private", drawn)


@pytest.mark.usefixtures("a_damaged_user")
@pytest.mark.parametrize("strategy", TRAINED)
def test_a_user_whose_training_diverges_is_left_out_alone(tmp_path, strategy):
    """39 of 40 go on, the same on one node, on seven, and where the user has a node of its own."""
    runs = {}
    for nodes in (1, 7, 40):
        settings = small_settings(tmp_path, **method(strategy), optimizer="sgd", num_server_rounds=4)
        runs[nodes] = run_here(tmp_path / str(nodes), settings, nodes)
        for line in runs[nodes].rounds():
            assert (line["users"], line["asked"]) == (39, 40)
            (failure,) = line["failures"]
            assert f"user {int(BAD):016x}: training diverged" in failure["reason"]
            assert failure["users"] == 1
    first = runs[1]
    assert np.isfinite(list(first.read_summary()["test"]["full"].values())).all()
    for directory in runs.values():
        for name, values in last_checkpoint(first).shared.items():
            np.testing.assert_allclose(last_checkpoint(directory).shared[name], values, atol=2e-5)
        found, expected = directory.read_users(), first.read_users()
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_allclose(found[1], expected[1], atol=1e-5)
        versions = dict(zip(*(values.tolist() for values in versions_of(directory)), strict=True))
        assert versions.pop(int(BAD)) == 0
        assert set(versions.values()) == {4}


def versions_of(directory):
    checkpoint = last_checkpoint(directory)
    return checkpoint.users, checkpoint.versions


@pytest.mark.usefixtures("a_damaged_user")
def test_without_the_user_the_others_learn_the_same(tmp_path):
    """The shared table is that of a run in which this user's node fails before it trains."""
    settings = small_settings(tmp_path, num_server_rounds=3)
    left_out = run_here(tmp_path / "left out", settings, 1)

    def asleep(message, answer):
        raise RuntimeError("asleep")

    absent = run_here(tmp_path / "absent", settings, 40, Faulty, fault=asleep, bad={7})
    for name, values in last_checkpoint(absent).shared.items():
        np.testing.assert_allclose(last_checkpoint(left_out).shared[name], values, atol=1e-6)


def put(record, name, place, value):
    """A fault that changes one user's entry of an array of a reply."""

    def apply(content):
        values = content.array_records[record][name].numpy().copy()
        values[place] = value
        content.array_records[record][name] = Array(values)

    return changed_reply(apply)


LIES = {
    "performance -1": ({"strategy": "cf-fedsr"}, TRAIN, put("reports", "performance", (3, 0), -1.0)),
    "performance 3e38": ({"strategy": "cf-fedsr"}, TRAIN, put("reports", "performance", (3, 1), 3e38)),
    "performance NaN": ({"strategy": "cf-fedsr"}, TRAIN, put("reports", "performance", (3, 1), np.nan)),
    "interests far away": (
        {"strategy": "cf-fedsr", "fraction_train": 0.9},
        TRAIN,
        put("reports", "representation", (3, 0), 1e6),
    ),
    "interests at evaluation": (
        {"strategy": "cf-fedsr", "fraction_train": 0.9},
        EVALUATE,
        put("reports", "representation", (3, 0), np.inf),
    ),
    "features of length 9": ({"strategy": "fedca"}, TRAIN, put("reports", "features", (3, 0, 0), 9.0)),
    "values that are not finite": ({"strategy": "fedca"}, TRAIN, put("update", "item_embedding/values", 0, np.inf)),
    "an endless loss": ({"strategy": "fedca"}, TRAIN, put("users", "loss", 3, np.inf)),
    "an update below nothing": ({"strategy": "fedca"}, TRAIN, put("users", "upload_bytes", 3, -1)),
    "an update beyond all": ({"strategy": "fedca"}, TRAIN, put("users", "upload_bytes", 3, 2**62)),
    "a metric of 2": ({}, EVALUATE, put("users", "metrics", (3, 0, 0, 0), 2.0)),
}


@pytest.mark.parametrize("name", LIES)
def test_one_impossible_report_leaves_out_one_user(tmp_path, name):
    changes, kind, fault = LIES[name]
    settings = small_settings(tmp_path, **changes, num_server_rounds=4)
    directory = run_here(tmp_path / "run", settings, 2, Faulty, fault=fault, bad={1}, kind=kind)
    assert directory.read_summary()["status"] == "completed"
    for line in directory.rounds():
        failures = line["failures"] if kind == TRAIN else line.get("evaluation_failures", [{"users": 1}])
        assert [failure["users"] for failure in failures] == [1]
        if kind == TRAIN:
            assert line["users"] == line["asked"] - 1
    for values in (*last_checkpoint(directory).shared.values(), *last_checkpoint(directory).extra.values()):
        assert values.dtype.kind != "f" or np.isfinite(values).all()


def test_where_nobody_is_left_the_run_fails_with_the_reason(tmp_path):
    """Rates that no vector survives: every user diverges, and the last line says what to do."""
    settings = small_settings(tmp_path, learning_rate=1e30, user_learning_rate=1e30)
    with pytest.raises(RunFailed, match="only 0 of 40 users gave a valid reply.*diverged.*smaller learning-rate"):
        run_here(tmp_path / "run", settings, 2)


def test_a_model_that_fine_tuning_breaks_is_left_out_of_the_evaluation(tmp_path, monkeypatch):
    """Scores that are not finite are no metrics of anybody; the other users keep theirs."""
    import client_app.node.tasks

    real = client_app.node.tasks.scorer

    def scorer(*arguments, **options):
        scores = real(*arguments, **options)
        return lambda rows: np.where((rows == 2)[:, None], np.float32(np.nan), scores(rows))

    monkeypatch.setattr(client_app.node.tasks, "scorer", scorer)
    directory = run_here(tmp_path / "run", small_settings(tmp_path, num_server_rounds=2), 1)
    (failure,) = directory.rounds()[-1]["evaluation_failures"]
    assert "scores that are not finite" in failure["reason"]
    missing = np.isnan(directory.read_users()[1]).all(axis=(1, 2, 3))
    assert missing.sum() == 1
