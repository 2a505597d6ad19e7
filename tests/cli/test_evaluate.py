"""`bouquet data export` and `bouquet evaluate`: a program that is not ours, beside rows and runs."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix

from bouquet.experiments.baselines import centralized_row
from bouquet.experiments.exported import read_ground, write_ground
from bouquet.experiments.ground import ground_of
from bouquet.experiments.settings import resolve
from bouquet.reporting.run_directory import RunDirectory
from models.centralized import EASE, EASEParameters
from tests.cli.test_extras import without

SETTINGS = "min-interactions=60"  # those of the small table


def table_of(ground, scores):
    """One row per user and item."""
    users, items = np.meshgrid(ground.user_ids, ground.item_ids, indexing="ij")
    return pd.DataFrame({"user": users.ravel(), "item": items.ravel(), "score": scores.ravel()})


def ease_scores(split, regularization):
    """Scores of pooled EASE as a program beside ours would write them: by part, because it reads histories."""
    ground = read_ground(split)
    train = ground.histories.train
    shape = (len(ground.user_ids), len(ground.item_ids))
    matrix = csr_matrix((np.ones(len(train.values)), train.values, train.indptr), shape=shape)
    model = EASE(EASEParameters(regularization=regularization)).fit(matrix)
    tables = [
        table_of(ground, scores).assign(part=part)
        for part, scores in ((part, model.scores_after(known)) for part, known in ground.known.items())
    ]
    return pd.concat(tables)


@pytest.fixture(scope="module")
def brought(tmp_path_factory):
    """A folder with the split of the small table, and EASE's scores for it. Tests must leave it as it is."""
    home = tmp_path_factory.mktemp("brought")
    ground = ground_of(resolve(None, [SETTINGS]))
    write_ground(ground, home / "split")
    chosen = centralized_row(ground.config, "ease")["chosen"]
    ease_scores(home / "split", chosen["regularization"]).to_parquet(home / "ease.parquet")
    return home


@pytest.fixture
def evaluated(brought, bouquet, tmp_path):
    """`evaluated("--compare-with", "")` evaluates the scores of EASE."""

    def call(*arguments, scores="ease.parquet"):
        split = ["--split", brought / "split"] if "-c" not in arguments else []
        return bouquet("evaluate", brought / scores, *split, "--out", tmp_path / "out", *arguments)

    return call


def test_what_is_exported_is_the_split_of_the_run(brought, tmp_path, bouquet):
    ended = bouquet("data", "export", "synthetic", "--out", tmp_path / "split", "-c", SETTINGS)
    assert ended.status == 0, ended.err
    counts = [line.split(": ")[1].split(" rows")[0] for line in ended.out.splitlines()[:4]]
    files = {file.name: file for file in (brought / "split").iterdir()}
    tables = ("train", "validation", "test", "candidates")
    assert counts == [f"{len(pd.read_parquet(files[f'{name}.parquet'])):,}" for name in tables]
    assert f"bouquet evaluate scores.parquet --split {tmp_path / 'split'}" in ended.out
    assert {name: file.read_bytes() for name, file in files.items()} == {
        file.name: file.read_bytes() for file in (tmp_path / "split").iterdir()
    }
    assert bouquet("data", "export", "synthetic", "--out", tmp_path / "split").status == 2
    ended = bouquet("data", "export", "--blind", "--out", tmp_path / "blind", "-c", SETTINGS)
    assert ended.status == 0, ended.err
    assert "test.parquet" not in ended.out


def test_a_row_of_ours_is_the_same_from_outside(small_table, brought, evaluated, tmp_path, bouquet):
    """EASE's scores, written and read back, give EASE's row to the last digit; runs stand beside it."""
    run, leaky = (small_table / "cells" / name / "seed-0" for name in ("fedavg", "fedavg-paper"))
    ended = evaluated("--compare-with", f"popularity ease {run} {leaky}", "--name", "brought")
    assert ended.status == 0, ended.err
    rows = json.loads((tmp_path / "out" / "comparison.json").read_text())
    summary = RunDirectory(tmp_path / "out").read_summary()
    assert {key: summary[key] for key in ("test", "validation", "standard_error")} == {
        key: rows["ease"][key] for key in ("test", "validation", "standard_error")
    }
    assert (summary["leaky"], summary["remarks"]) == (False, [])
    lines = ended.out.splitlines()
    assert any(line.startswith("these scores (brought) ") for line in lines)
    assert [line.split()[0] for line in lines if line.startswith("fedavg")] == ["fedavg", "fedavg,"]
    assert any(line.startswith("fedavg, LEAKY ") for line in lines)
    tested = "user by user (a sign-flip test over users only, p adjusted for 4 tests)"
    assert f"in NDCG@10 (full), {tested}" in ended.out
    equal = "ease .000 ± .000 .000 to .000 1.000 231"
    assert any(" ".join(line.split()[1:]) == equal for line in lines), ended.out

    ended = bouquet("compare", tmp_path / "out", run)
    assert ended.status == 0, ended.err
    assert "brought, scores of another program" in ended.out
    assert bouquet("report", tmp_path / "out").out.startswith("\nHow good is it? (test items ranked among all unseen")


def test_settings_name_the_split_as_well_as_a_folder(evaluated, brought, tmp_path):
    assert evaluated("-c", SETTINGS, "--compare-with", "").status == 0
    users, values = RunDirectory(tmp_path / "out").read_users()
    assert not (tmp_path / "out" / "comparison.json").exists()
    assert len(users) == len(values) == len(pd.read_parquet(brought / "split" / "users.parquet"))


def test_where_people_come_back_to_items_what_they_did_last_is_a_usual_row(evaluated, tmp_path):
    assert evaluated("-c", f'{SETTINGS} repeats="keep"').status == 0
    rows = RunDirectory(tmp_path / "out").read_json("comparison.json")
    assert list(rows) == ["popularity", "ease", "most-recent"]


def test_what_is_leaky_says_so(evaluated, bouquet, tmp_path):
    ended = evaluated("--train-negatives", "paper", "--compare-with", "popularity")
    assert ended.status == 0, ended.err
    assert "LEAKY. Training negatives were never what a user touches later" in ended.out
    assert "paper, LEAKY" in bouquet("compare", tmp_path / "out").out


def test_what_is_too_good_is_doubted(brought, bouquet, tmp_path):
    """An oracle."""
    ground = read_ground(brought / "split")
    scores = np.zeros((len(ground.user_ids), len(ground.item_ids)))
    test = ground.histories.test
    scores[test.row_of_value, test.values] = 1
    table_of(ground, scores).to_csv(tmp_path / "oracle.csv", index=False)
    ended = bouquet("evaluate", tmp_path / "oracle.csv", "--split", brought / "split", "--out", tmp_path / "out")
    assert ended.status == 0, ended.err
    assert "these scores (oracle)    1.000 ± .000      1.000           1.000" in ended.out
    assert "Caution. HR@10 (full) is more than 3 times that of any row beside it" in ended.out
    assert "Caution." in bouquet("report", tmp_path / "out").out


def test_a_short_list_has_no_tests_beyond_its_end(brought, bouquet, tmp_path):
    table = pd.read_parquet(brought / "ease.parquet").query("part == 'validation'").drop(columns="part")
    train = pd.read_parquet(brought / "split" / "train.parquet").assign(known=True)
    table = table.merge(train, how="left", on=["user", "item"]).query("known.isna()")
    table.sort_values("score", ascending=False).groupby("user").head(8).to_parquet(tmp_path / "lists.parquet")
    command = ("evaluate", tmp_path / "lists.parquet", "--split", brought / "split", "--compare-with", "popularity")
    ended = bouquet(*command, "--out", tmp_path / "ten")
    assert ended.status == 0, ended.err
    assert "– ± –" in ended.out
    assert "so figures go up to @5, and there is no MRR." in ended.out
    assert "No tests: the scores do not reach NDCG@10 (full)." in ended.out
    assert "Difference to these scores in HR@5" in bouquet(*command, "--out", tmp_path / "five", "--metric", "HR@5").out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--compare-with", "easy"), "--compare-with takes folders of finished runs and rows of pooled data"),
        (("--compare-with", "."), "is not the folder of a run"),
        (("--metric", "NDCG"), "There is no metric 'NDCG'. Did you mean 'NDCG@5'?"),
        (("--train-negatives", "hones"), "no way of drawing training negatives 'hones'. Did you mean 'honest'?"),
        (("-c", SETTINGS, "--split", "x"), "The split in the folder of --split has its settings; leave -c out."),
        (("-c", "split-seed=1 max-users=9"), "ease.parquet, row "),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_sentence_and_leaves_nothing(evaluated, tmp_path, arguments, sentence):
    ended = evaluated(*arguments)
    assert ended.status in (1, 2)
    assert sentence in ended.err
    assert (len(ended.err.splitlines()), ended.out) == (1, "")
    assert not (tmp_path / "out").exists()


def test_a_split_must_be_named(brought, bouquet):
    ended = bouquet("evaluate", brought / "ease.parquet")
    assert ended.err.startswith("Name the split that the scores are for: --split with a folder")


def test_a_run_on_other_ground_is_refused_before_scores_are_read(small_table, bouquet, tmp_path):
    run = small_table / "cells" / "fedavg" / "seed-0"
    ended = bouquet("evaluate", "none.parquet", "-c", "min-interactions=61", "--compare-with", run)
    assert ended.status == 2
    assert ended.err.startswith(
        f"These scores cannot be compared with {run}: 'min-interactions' is 61 in the one and 60"
    )


@pytest.mark.parametrize("command", ["export", "evaluate"])
def test_without_pyarrow_the_extra_is_named(tmp_path, command):
    arguments = {
        "export": ("data", "export", "synthetic", "--out", str(tmp_path / "split")),
        "evaluate": ("evaluate", "scores.parquet", "--split", str(tmp_path)),
    }[command]
    done = without(["pyarrow"], *arguments)
    assert done.returncode == 2
    assert done.stderr.endswith('Parquet files needs pyarrow, which is not installed: pip install "bouquet[data]".\n')
    assert not (tmp_path / "split").exists()
