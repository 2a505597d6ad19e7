"""`bouquet run` from its first look at the settings to the rows beside the run."""

import json
import tempfile
from pathlib import Path

import pytest

from bouquet.experiments import baselines as comparison
from bouquet.experiments.baselines import alone, comparison_rows
from bouquet.methods import METHODS, PLUG_INS
from bouquet.reporting.run_directory import RunDirectory
from tests.runs.helpers import pairs, small_settings, write_data

ROUNDS = {"num-server-rounds": 2, "evaluate-every": 1, "checkpoint-every": 0, "embedding-size": 4, "node-timeout": 5.0}
COMBINATIONS = [(strategy, "none") for strategy in METHODS] + [
    (strategy, plug_in)
    for strategy in (name for name, method in METHODS.items() if method.plug_ins)
    for plug_in in PLUG_INS.keys() - {"none"}
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Settings of a run of a second."""
    file = write_data(tmp_path_factory.mktemp("data") / "data.csv", users=30, items=50)
    return ROUNDS | {"dataset": "file", "data-file": str(file), "time-column": "time"}


def settings_of(data, strategy, plug_in="none"):
    sizes = {"hetefedrec-sizes": "2,3,4"} if strategy == "hetefedrec" else {}
    return data | sizes | {"strategy": strategy, "personalization": plug_in}


@pytest.mark.parametrize(("strategy", "plug_in"), sorted(COMBINATIONS))
def test_every_combination_runs_to_the_last_row(bouquet, data, tmp_path, strategy, plug_in):
    settings = settings_of(data, strategy, plug_in)
    ended = bouquet("run", "--engine", "local", "--nodes", "3", "--out", tmp_path / "run", *pairs(settings))
    assert ended.status == 0, ended.err
    rows = RunDirectory(tmp_path / "run").read_json("comparison.json")
    trains = METHODS[strategy].kind == "gradients"
    assert list(rows) == ["local" if trains else "fedavg", "popularity", "ease"]
    assert all("unavailable" not in row for row in rows.values()), rows
    assert ("each user alone" if trains else "federated training, the usual way") in ended.out


def test_where_people_come_back_to_items_what_they_did_last_stands_beside_the_run(bouquet, data, tmp_path):
    """Every event of the file twice, so that each hidden item was had just before: nothing is above the row."""
    lines = Path(data["data-file"]).read_text().splitlines()
    twice = [line for line in lines[1:] for _ in range(2)]
    (tmp_path / "twice.csv").write_text("\n".join([lines[0], *twice]) + "\n")
    settings = data | {"data-file": str(tmp_path / "twice.csv"), "repeats": "keep"}
    ended = bouquet("run", "--engine", "local", "--out", tmp_path / "run", *pairs(settings))
    assert ended.status == 0, ended.err
    rows = RunDirectory(tmp_path / "run").read_json("comparison.json")
    assert list(rows) == ["local", "popularity", "ease", "most-recent"]
    assert rows["most-recent"]["test"]["full"]["HR@5"] == 1.0
    assert "own items, newest first" in ended.out


def test_the_row_alone_has_nothing_of_a_federation(data, tmp_path):
    """With a plug-in, protections, one user a node and as many nodes awaited it is the row of the plain run."""
    plain = small_settings(tmp_path, num_server_rounds=2, strategy="fcf")
    federal = plain | {"personalization": "ace", "exchange": "embedding", "update-clip": 1.0, "update-noise": 0.1}
    federal |= {"decoy-rows": 3, "partition": "one-per-node", "min-nodes": 40, "enough-reply-fraction": 0.9}
    assert comparison_rows(federal, ["local"]) == comparison_rows(plain, ["local"])
    assert alone(federal)["local-epochs"] == federal["local-epochs"]
    assert alone(federal | {"fraction-train": 0.5})["fraction-train"] == 0.5


def test_hetefedrec_alone_keeps_its_sizes(tmp_path):
    settings = small_settings(tmp_path, strategy="hetefedrec")
    assert alone(settings)["hetefedrec-method"] == "standalone"
    assert alone(settings)["strategy"] == "hetefedrec"


def test_a_row_that_fails_leaves_the_run_as_it_is(bouquet, data, tmp_path, monkeypatch):
    """The row alone keeps private state in a temporary folder, and a file is none; the others stand, and the run."""
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    settings = settings_of(data, "fcf")
    ended = bouquet("run", "--engine", "local", "--out", tmp_path / "run", *pairs(settings))
    assert ended.status == 0, ended.err
    rows = json.loads((tmp_path / "run" / "comparison.json").read_text())
    assert rows["local"]["unavailable"].startswith("NotADirectoryError")
    assert "test" in rows["popularity"]
    assert "NotADirectoryError" in ended.out
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "completed"


def test_stopping_a_row_stops_the_command(monkeypatch, tmp_path):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(comparison, "centralized_row", interrupted)
    with pytest.raises(KeyboardInterrupt):
        comparison_rows(small_settings(tmp_path), ["popularity"])


@pytest.mark.parametrize(
    ("arguments", "changes", "sentence"),
    [
        (["--compare-with", "popularity poplarity"], {},
         "There is no row to compare with 'poplarity'. Did you mean 'popularity'? Known: "),
        (["--nodes", "31"], {}, "There are 30 users for 31 nodes: --nodes must be at most 30."),
        (["--nodes", "3"], {"min-nodes": 4}, "min-nodes is 4, and there are 3 nodes"),
        (["--out", "{file}/run"], {},
         "The results cannot be written. {file}/run cannot be a folder: {file} is a file."),
        ([], {"state-dir": "{file}/state"}, "{file}/state cannot be a folder: {file} is a file."),
        (["-c", "secret-draws=true"], {}, "secret-draws needs a secret on every node"),
        ([], {"device": "banana"},
         "'device' must be 'cpu', 'cuda', or 'cuda:N' with the number of a GPU, not 'banana'."),
        ([], {"device": "cuda:99"}, "device is 'cuda:99', and where training would happen there is "),
        ([], {"user-column": "person", "dataset": "synthetic", "data-file": "", "time-column": ""},
         "user-column is read with dataset = 'file'"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_said_before_training(bouquet, data, tmp_path, arguments, changes, sentence):
    file = tmp_path / "file"
    file.write_text("")
    arguments = [argument.format(file=file) for argument in arguments]
    changes = {key: value.format(file=file) if isinstance(value, str) else value for key, value in changes.items()}
    settings = {key: value for key, value in (data | changes).items() if value != ""}
    out = [] if "--out" in arguments else ["--out", tmp_path / "run"]
    ended = bouquet("run", "--engine", "local", *out, *arguments, *pairs(settings))
    assert ended.status != 0
    assert ended.err.startswith(sentence.format(file=file))
    assert ended.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [file], "nothing may be left on the disk"


def test_a_table_and_a_deployment_refuse_more_nodes_than_users(bouquet, tmp_path):
    (tmp_path / "table.toml").write_text(
        'title = "t"\nseeds = [0]\n[settings]\nmax-users = 30\n[[rows]]\nname = "popularity"\n'
        'centralized = "popularity"\n[[rows]]\nname = "fedavg"\n'
    )
    ended = bouquet("table", tmp_path / "table.toml", "--out", tmp_path / "out", "--nodes", "31")
    assert ended.status == 2
    assert ended.err.startswith("Cell fedavg, seed 0: There are 30 users for 31 nodes")
    assert not (tmp_path / "out" / "cells").exists()
    ended = bouquet("deploy", "up", "--dir", tmp_path / "there", "--nodes", "31", "-c", "max-users=30")
    assert (ended.status, ended.err[:36]) == (2, "There are 30 users for 31 nodes: --n")
    assert not (tmp_path / "there").exists()
