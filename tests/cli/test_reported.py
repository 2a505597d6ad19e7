"""`bouquet recommend --run` and `bouquet export`: the reported model of a finished run."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.cli.conftest import finish, start


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a finished simulation."""
    home = tmp_path_factory.mktemp("reported")
    settings = "num-server-rounds=2 evaluate-every=1 min-interactions=60"
    arguments = ("run", "--engine", "local", "--nodes", "2", "--out", "run", "--compare-with", "", "-c", settings)
    ended = finish(start(*arguments, cwd=home, home=home))
    assert ended.status == 0, ended.err
    return home / "run"


@pytest.fixture
def user(run):
    """Somebody in it."""
    return json.loads((run / "reported" / "users.json").read_text())["users"][3]


def test_a_user_of_a_run_is_recommended_items_with_titles(bouquet, run, user):
    ended = bouquet("recommend", "--run", run, "--user", user, "-k", "3", "--format", "json")
    assert ended.status == 0, ended.err
    found = json.loads(ended.out)
    assert len(found) == 3
    assert (np.diff([entry["score"] for entry in found]) <= 0).all()
    plain = bouquet("recommend", "--run", run, "--user", user, "-k", "3").out
    assert [line.split(maxsplit=1)[1] for line in plain.splitlines()] == [e["title"] or e["item"] for e in found]


def test_what_cannot_be_recommended_is_said(bouquet, run, user, small_table, tmp_path):
    centralized = small_table / "cells" / "popularity" / "seed-0"
    for arguments, sentence in [
        (["--run", run], "--run and --user belong together: give both, or none."),
        (
            ["--run", run, "--user", user, "--model", run],
            "--run recommends from a run and --model from a published model: give one of them.",
        ),
        (
            ["--run", run, "--user", user, "-k", "101"],
            f"{run} kept 100 items of each user, and 101 are asked for: run with recommendations = 101.",
        ),
        (["--run", run, "--user", "Hans im Glück"], f"There is no user 'Hans im Glück' in {run}."),
        (["--run", tmp_path, "--user", user], f"{tmp_path} is not the folder of a run: it has no summary.json."),
        (["--run", centralized, "--user", user], f"{centralized} has no recommendations: a simulation of"),
    ]:
        ended = bouquet("recommend", *arguments)
        assert ended.status > 0
        assert ended.err.startswith(sentence)
        assert len(ended.err.splitlines()) == 1


def test_what_is_exported_is_the_model_with_its_ids(bouquet, run, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    out = tmp_path / "model"
    ended = bouquet("export", run, "--out", out, "-k", "2")
    assert ended.status == 0, ended.err
    arrays = load_file(out / "model.safetensors")
    with (out / "items.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["row"]) for row in rows] == list(range(len(arrays["item_embedding"])))
    table = parquet.read_table(out / "recommendations.parquet").to_pydict()
    assert table["rank"][:4] == [1, 2, 1, 2]
    assert set(table["item"]) <= {row["item"] for row in rows}
    shown = bouquet("recommend", "--run", run, "--user", table["user"][0], "-k", "1", "--format", "json")
    assert [(entry["item"], entry["title"]) for entry in json.loads(shown.out)] == [
        (table["item"][0], table["title"][0])
    ]
    again = bouquet("export", run, "--out", out)
    assert again.status == 2
    assert again.err == f"{out} is there already. Name a new folder.\n"
