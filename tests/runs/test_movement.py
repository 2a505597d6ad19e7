"""How far private tables moved: what a run writes into its summary, against the files that it left."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file

from bouquet.arrays import ArraySpec, initial_private, initial_shared
from bouquet.reporting.run_directory import RunDirectory
from client_app.node import movement as module
from client_app.node.movement import movement
from tests.cli.conftest import bouquet  # noqa: F401

SMALL = "min-interactions=150 num-server-rounds=2 evaluate-every=2 embedding-size=4 checkpoint-every=0"


@pytest.fixture
def moved(bouquet, tmp_path):  # noqa: F811
    """`moved("strategy=…")` is a small run: its folder, and `moved` of its summary."""

    def call(*settings: str, name="run"):
        arguments = ("--engine", "local", "--nodes", "2", "--compare-with", "", "--out", tmp_path / name, "-c", SMALL)
        ended = bouquet("run", *arguments, *(word for text in settings for word in ("-c", text)))
        assert ended.status == 0, ended.err
        directory = RunDirectory(tmp_path / name)
        return directory, directory.read_summary().get("moved")

    return call


def newest_of(directory, name):
    """Keys and newest values of all users, straight from the files: [k], [k, …]."""
    keys, values = [], []
    for index in directory.nodes.glob("*/*/index.safetensors"):
        told = load_file(index)
        slots = told["rounds"].argmax(axis=0)
        assert (told["rounds"].max(axis=0) > 0).all()
        keys.append(told["users"])
        values.append(np.load(index.parent / f"{name}.npy")[slots, np.arange(len(slots))])
    return np.concatenate(keys), np.concatenate(values).astype(np.float64)


def relative(now, before):
    norm = lambda values: np.sqrt((values.reshape(len(values), -1) ** 2).sum(axis=1))  # noqa: E731
    return (norm(now - before) / norm(before)).mean()


def test_own_tables_against_their_initial_values(moved):
    """FedRAP: every user's own table and embedding have initial values of their own."""
    directory, found = moved('strategy="fedrap"')
    assert (set(found["tables"]), set(found["others"])) == ({"personal_item_embedding"}, {"user_embedding"})
    for part, name in (("tables", "personal_item_embedding"), ("others", "user_embedding")):
        users, now = newest_of(directory, name)
        assert found["users"] == len(users) > 5
        spec = ArraySpec(now.shape[1:], "normal", directory.read_config()["init-scale"], by_item=part == "tables")
        expected = relative(now, initial_private(name, spec, 0, users).astype(np.float64))
        assert found[part][name] == pytest.approx(expected, rel=1e-5)
        assert found[part][name] > 1e-4


def test_local_tables_of_a_plug_in_begin_with_the_common_one(moved):
    """PLGC: V^l of every user begins as the initial common table."""
    directory, found = moved('strategy="fedavg" personalization="plgc"')
    assert set(found["tables"]) == {"item_embedding"}
    users, now = newest_of(directory, "item_embedding")
    spec = ArraySpec(now.shape[1:], "normal", directory.read_config()["init-scale"], by_item=True)
    before = initial_shared({"item_embedding": spec}, 0)["item_embedding"].astype(np.float64)
    assert found["tables"]["item_embedding"] == pytest.approx(relative(now, np.repeat(before[None], len(users), 0)))


def test_a_table_that_cannot_move_has_not_moved(moved):
    """Rates of 1e-9 leave float32 values of about .01 as they are."""
    _, found = moved('strategy="fedrap" learning-rate=1e-9')
    assert found["tables"]["personal_item_embedding"] < 1e-6


def test_tuned_tables_against_what_they_were_tuned_from(moved):
    """PFedRec keeps rows: the distance is theirs alone, the norm that of the whole common table, in one round V⁰."""
    directory, found = moved('strategy="pfedrec" num-server-rounds=1 evaluate-every=1')
    (index, *_) = sorted(directory.nodes.glob("*/*/index.safetensors"))
    origin = load_file(next(index.parent.glob("origin-*")))["item_embedding"].astype(np.float64)
    changes = []
    for index in directory.nodes.glob("*/*/index.safetensors"):
        told = load_file(index)
        rows = np.load(index.parent / "own_rows.npy")
        for user, count in enumerate(told["touched"].max(axis=0)):
            stored = rows[told["rounds"][:, user].argmax(), user]
            items, values = stored[:count].view(np.int32), stored[count : count * 5].reshape(count, 4)
            changes.append(np.linalg.norm(values - origin[items]) / np.linalg.norm(origin))
    assert found["tables"]["item_embedding"] == pytest.approx(np.mean(changes), rel=1e-5)


def test_methods_without_own_tables_have_none(moved):
    assert moved('strategy="fedavg"')[1] is None


def test_no_more_is_read_than_allowed(moved, monkeypatch):
    """Users evenly spaced: the same kind of mean over fewer of them; and none over fewer than five."""
    directory, found = moved('strategy="fedrap"')
    settings = directory.read_config() | {"state-dir": str(directory.nodes)}
    table = 8 * 4 * 801
    monkeypatch.setattr(module, "MOST_BYTES", 2 * 4 * table)
    few = movement(settings, 2)
    assert few["users"] == 8 < found["users"]
    ratio = few["tables"]["personal_item_embedding"] / found["tables"]["personal_item_embedding"]
    assert 0.5 < ratio < 2
    monkeypatch.setattr(module, "MOST_BYTES", 2 * table)
    assert movement(settings, 2) == {}
