"""`bouquet.split` and `bouquet.evaluate`: a program of somebody else's, in a notebook, on the ground of a run."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import bouquet
from tests.api.test_run import SMALL, people

COLUMNS = {"user_column": "person", "item_column": "film", "time_column": "when"}


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    return bouquet.split(people(), out=tmp_path_factory.mktemp("ground") / "split", **COLUMNS)


def test_every_interaction_is_in_one_part_and_the_newest_are_hidden(split):
    given = people().rename(columns={"person": "user", "film": "item"})
    parts = pd.concat([split.train, split.validation, split.test])
    assert sorted(map(tuple, parts[["user", "item"]].values)) == sorted(map(tuple, given[["user", "item"]].values))
    newest = given.sort_values("when").groupby("user")["item"].last()
    assert (split.test.set_index("user")["item"].sort_index() == newest.sort_index()).all()
    assert set(split.users["user"]) == set(given["user"])
    assert split.about["settings"]["dataset"] == "file"


def test_scores_of_a_notebook_get_the_figures_of_a_run_and_its_tests(split, tmp_path):
    """Popularity, counted here, is the row that a run has beside it, to the last bit."""
    run = bouquet.run(
        "sequential-rules",
        people(),
        out=tmp_path / "run",
        progress=False,
        compare_with=["popularity"],
        **COLUMNS,
        **SMALL,
    )
    counts = split.train["item"].value_counts()
    pairs = pd.MultiIndex.from_product([split.users["user"], split.items["item"]], names=["user", "item"]).to_frame(
        False
    )
    scores = pairs.assign(score=pairs["item"].map(counts).fillna(0.0))
    brought = bouquet.evaluate(scores, split, out=tmp_path / "brought", name="counted", train_negatives="honest")
    rows = run.comparison[run.comparison["row"] == "popularity"].set_index(["candidates", "metric"])["value"]
    ours = brought.metrics[brought.metrics["part"] == "test"].set_index(["candidates", "metric"])["value"]
    np.testing.assert_array_equal(ours[rows.index], rows)
    compared = bouquet.compare([run, brought])
    assert compared["difference"].iloc[1] == pytest.approx(compared["value"].iloc[1] - compared["value"].iloc[0])


def test_a_messy_table_gives_the_split_of_a_clean_one(split, tmp_path, capsys):
    """Times of two forms, a person that is not there, titles; what is left out is told."""
    table = people()
    dates = pd.to_datetime(table["when"], unit="s").astype(str)
    table["when"] = table["when"].astype(object).where(table.index % 2 == 0, dates)
    table["title"] = "The " + table["film"]
    messy = pd.concat([table, pd.DataFrame({"person": [None, "person-1"], "film": "film 1", "when": [1, "soon"]})])
    with pytest.raises(bouquet.DataError, match=r"row 561: user is missing\. 2 of 562 rows are broken"):
        bouquet.split(messy, out=tmp_path / "refused", **COLUMNS)
    capsys.readouterr()
    found = bouquet.split(messy, out=tmp_path / "split", skip_broken_rows=True, **COLUMNS)
    assert "2 of 562 rows cannot be read and are left out: row 561: user is missing; row 562" in capsys.readouterr().err
    pd.testing.assert_frame_equal(found.train, split.train)
    pd.testing.assert_frame_equal(found.test, split.test)
    assert (found.items["title"] == "The " + found.items["item"]).all()


def test_a_blind_split_has_nothing_of_what_is_hidden(tmp_path):
    blind = bouquet.split(people(), out=tmp_path / "split", blind=True, **COLUMNS)
    assert len(blind.train) == 40 * 12
    with pytest.raises(bouquet.DataError, match="blind"):
        _ = blind.test


def test_what_cannot_be_is_a_sentence(split, tmp_path):
    with pytest.raises(bouquet.ConfigError, match="already holds a split"):
        bouquet.split(people(), out=split.path, **COLUMNS)
    with pytest.raises(bouquet.DataError, match="is not the folder of a split"):
        bouquet.evaluate(pd.DataFrame(), bouquet.Split(tmp_path), out=tmp_path / "out")
    stranger = pd.DataFrame({"user": ["nobody"], "item": ["film 1"], "score": [1.0]})
    with pytest.raises(bouquet.DataError, match="nobody"):
        bouquet.evaluate(stranger, split, out=tmp_path / "out")
