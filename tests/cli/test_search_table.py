"""Tables whose rows take what a search chose, whole or with one thing changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from bouquet.errors import ConfigError
from bouquet.experiments.chosen import read_chosen
from bouquet.experiments.table_cells import cells_of
from bouquet.experiments.table_file import read_table_file
from bouquet.reporting.run_directory import RunDirectory

TABLE = """
title = "With what was chosen"
seeds = [0]
settings-from = "out"

[settings]
num-server-rounds = 2

[[rows]]
name = "plain"
label = "FedAvg"

[[rows]]
name = "even"
settings-from = "out"

[[rows]]
name = "popularity"
centralized = "popularity"

[[rows]]
name = "other"
settings = {min-interactions = 60, max-users = 120}
"""


def cells(folder: Path, text: str = TABLE):
    (folder / "table.toml").write_text(text)
    return cells_of(read_table_file(folder / "table.toml"), folder, folder / "table", [])


def test_a_table_takes_its_settings_from_a_search(copied_search):
    """What was chosen, under what it was chosen under; the table's own settings go over the latter."""
    chosen = read_chosen(copied_search)
    common = TABLE.replace("num-server-rounds = 2", "num-server-rounds = 2\nmin-interactions = 60\nmax-users = 120")
    by_name = {cell.row.name: cell.settings for cell in cells(copied_search.parent, common)}
    assert by_name["plain"]["learning-rate"] == chosen["plain"].settings["learning-rate"]
    assert by_name["even"]["strategy"] == "fcf"
    assert by_name["even"]["embedding-size"] == chosen["even"].settings["embedding-size"]
    assert by_name["even"]["server-learning-rate"] == chosen["even"].settings["server-learning-rate"]
    assert {settings["num-server-rounds"] for name, settings in by_name.items() if name != "popularity"} == {2}
    assert by_name["plain"]["evaluate-every"] == 1
    assert by_name["other"]["evaluate-every"] == 5


def test_the_table_says_where_its_settings_come_from(copied_search, bouquet):
    text = TABLE.replace("num-server-rounds = 2", "num-server-rounds = 2\nmin-interactions = 60\nmax-users = 100")
    text = text.replace(", max-users = 120", "")
    (copied_search.parent / "table.toml").write_text(text)
    out = copied_search.parent / "table"
    ended = bouquet("table", copied_search.parent / "table.toml", "--out", out, "--engine", "local")
    assert ended.status == 0, ended.err
    written = (out / "table.md").read_text()
    assert "Settings chosen by the search in `out`, by NDCG@10 (full) on the validation items: FedAvg (best" in written
    assert "FedAvg (best of 4 trials, searched with max-users = 120" in written
    assert "at an edge of what was searched: " in written
    assert "Not searched: other." in written
    kept = RunDirectory(out / "cells" / "plain" / "seed-0").read_config()
    assert kept["learning-rate"] == read_chosen(copied_search)["plain"].settings["learning-rate"]


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('name = "even"', 'name = "evne"', "There is no row in the search out 'evne'. Did you mean 'even'?"),
        ("num-server-rounds = 2", "learning-rate = 0.1", "'learning-rate' is set here and was chosen by the search in"),
        ("num-server-rounds = 2", 'strategy = "fcf"', "was one of strategy = 'fedavg', and this row has 'fcf'."),
        (
            'settings-from = "out"\n\n[settings]',
            'settings-from = "no"\n\n[settings]',
            "no is not the folder of a search",
        ),
        ('centralized = "popularity"', 'centralized = "popularity"\nsettings-from = "out"', "is centralized: it takes"),
    ],
)
def test_what_a_table_cannot_take(copied_search, old, new, sentence):
    assert old in TABLE
    with pytest.raises(ConfigError) as error:
        cells(copied_search.parent, TABLE.replace(old, new, 1))
    assert sentence in str(error.value)


def test_a_search_that_has_not_ended_is_refused(copied_search):
    chosen = copied_search / "chosen.toml"
    chosen.write_text(chosen.read_text().replace("ended = 4", "ended = 3"))
    with pytest.raises(ConfigError, match="Row 'plain': the search in out has 3 of 4 trials for it; go on with"):
        cells(copied_search.parent)
    chosen.write_text("[rows.plain]\ntrials = 'many'\n")
    with pytest.raises(ConfigError, match=r"chosen\.toml is damaged"):
        cells(copied_search.parent)


VARIANT = """
title = "One thing changed"
seeds = [0]

[settings]
num-server-rounds = 2
min-interactions = 60
max-users = 100

[[rows]]
name = "plain"
label = "FedAvg"
settings-from = "out"

[[rows]]
name = "slow"
label = "slower"
variant-of = "plain"
settings = {learning-rate = 0.001}
"""


def test_a_variant_changes_one_thing_of_what_was_chosen(copied_search, bouquet):
    """All other settings are the row's, chosen or not; it is tested against it, and is said not to be searched."""
    plain, slow = cells(copied_search.parent, VARIANT)
    assert slow.settings["learning-rate"] == 0.001 != plain.settings["learning-rate"]
    assert {**slow.settings, "learning-rate": 0} == {**plain.settings, "learning-rate": 0}
    out = copied_search.parent / "table"
    ended = bouquet("table", copied_search.parent / "table.toml", "--out", out, "--engine", "local")
    assert ended.status == 0, ended.err
    written = (out / "table.md").read_text()
    assert "One thing changed, and nothing searched anew: slower (FedAvg with learning-rate = 0.001)." in written
    assert "Not searched" not in written
    tests = written.partition("Difference to the own base")[2]
    assert [cell.strip() for cell in tests.splitlines()[4].split("|")][1:3] == ["slower", "FedAvg"]


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('variant-of = "plain"', 'variant-of = "plian"', "There is no earlier row 'plian'. Did you mean 'plain'?"),
        ('variant-of = "plain"', 'variant-of = "slow"', "There is no earlier row 'slow'"),
        ('variant-of = "plain"', 'variant-of = "plain"\nsettings-from = "out"', "has the settings of 'plain': leave"),
        ("settings = {learning-rate = 0.001}", "", "is a variant of 'plain' and has no settings of its own"),
        ("{learning-rate = 0.001}", "{max-users = 100}", "'max-users' is 100 in row 'plain', too; leave it out."),
        ("{learning-rate = 0.001}", "{seed = 3}", "'seed' is set by the table for every cell; leave it out."),
        ("{learning-rate = 0.001}", '{split = "ratio"}', "All rows of a table are on the same data and split"),
        ('label = "FedAvg"\nsettings-from = "out"', 'centralized = "ease"', "of 'plain', which is centralized."),
    ],
)
def test_what_a_variant_cannot_be(copied_search, old, new, sentence):
    assert old in VARIANT
    with pytest.raises(ConfigError) as error:
        cells(copied_search.parent, VARIANT.replace(old, new, 1))
    assert sentence in str(error.value)
