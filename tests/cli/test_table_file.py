"""Files of tables: mistakes are one sentence each, settings go over one another, and those of the project are sound."""

from __future__ import annotations

import pytest

from bouquet.errors import ConfigError
from bouquet.experiments.table_cells import cells_of
from bouquet.experiments.table_file import read_table_file
from tests.cli.conftest import SMALL_TABLE
from tests.conftest import REPOSITORY


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("seeds = [0, 1]", 'seeds = [0]\npart = "validation"\nextra = ["traffic"]', "'extra' are columns of the test"),
        ("against", "aganst", "there is no key 'aganst'. Did you mean 'against'?"),
        ('title = "A small table"', "", "'title' is missing."),
        ('label = "Most popular items"', "label = 3", "'label' in row 1 cannot be 3: input should be a valid string."),
        ('label = "Most popular items"', "lable = 3", "there is no key 'lable' in row 1. Did you mean 'label'?"),
        ('"HR@10", ', '"HR@11", ', "There is no metric 'HR@11'. Did you mean 'HR@10'?"),
        ('"full", ', '"all", ', "There is no candidate set 'all'."),
        ('{"HR@10" =', '{"HR" =', "There is no metric 'HR'."),
        ("seeds = [0, 1]", "seeds = [1, 1]", "A seed stands twice in seeds."),
        ('name = "fedavg"', 'name = "fedavg"\nseeds = [2, 2]', "A seed stands twice in seeds."),
        ("seeds = [0, 1]", "seeds = [-1]", "'seeds.0' cannot be -1: input should be greater than or equal to 0."),
        ('against = "fedavg"', 'against = "fedca"', "There is no row 'fedca'."),
        ('label = "FedAvg"\n', 'base = "fedca"\n', "There is no row 'fedca'."),
        ('label = "FedAvg"\n', 'base = "fedavg"\n', "row 'fedavg' is its own base."),
        ('name = "fedavg-paper"', 'name = "fedavg"', "There are two rows 'fedavg'."),
        ('name = "fedavg-paper"', 'name = "../x"', "'name' in row 3 cannot be '../x'"),
        ('centralized = "popularity"', 'centralized = "popular"', "There is no centralized model 'popular'."),
        ('label = "Most popular items"', "settings = {split-seed = 1}", "row 'popularity' is centralized"),
        ("num-server-rounds", "num-server-round", "There is no setting 'num-server-round'."),
        ("evaluate-every = 1", "seed = 1", "'seed' is set by the table for every cell; leave it out."),
        (
            "settings = {train",
            "settings = {split-seed = 1, train",
            "'split-seed' is 0 in row 'popularity' and 1 in row",
        ),
        (
            "settings = {train",
            'settings = {test-history = "training", train',
            "'test-history' is 'known' in row 'popularity' and 'training' in row",
        ),
        ('label = "FedAvg"\n', 'config = "absent.toml"\n', "There is no configuration file"),
    ],
)
def test_mistakes_in_the_file(tmp_path, old, new, sentence):
    path = tmp_path / "table.toml"
    assert old in SMALL_TABLE
    path.write_text(SMALL_TABLE.replace(old, new, 1))
    with pytest.raises(ConfigError) as error:
        cells_of(read_table_file(path), tmp_path, tmp_path / "out", [])
    assert sentence in str(error.value)


def test_settings_go_over_one_another(tmp_path):
    """Configuration file, then the table, then the row, then -c."""
    (tmp_path / "base.toml").write_text(
        "embedding-size = 4\nlocal-epochs = 4\nlearning-rate = 0.4\nweight-decay = 0.4\nbatch-size = 4\n"
    )
    path = tmp_path / "table.toml"
    path.write_text(
        'title = "t"\n[settings]\nlocal-epochs = 5\nlearning-rate = 0.5\nweight-decay = 0.5\n'
        '[[rows]]\nname = "a"\nconfig = "base.toml"\nsettings = {learning-rate = 0.6, weight-decay = 0.6}\n'
    )
    cells = cells_of(read_table_file(path), tmp_path, tmp_path / "out", ["weight-decay=0.7"])
    assert [cell.settings["seed"] for cell in cells] == [0, 1, 2]
    keys = ("embedding-size", "local-epochs", "learning-rate", "weight-decay", "batch-size", "optimizer")
    assert [cells[0].settings[key] for key in keys] == [4, 5, 0.6, 0.7, 4, "sgd"]


@pytest.mark.parametrize("path", sorted((REPOSITORY / "configs" / "tables").glob("*.toml")), ids=lambda path: path.stem)
def test_tables_of_the_project_are_sound(path, tmp_path):
    cells = cells_of(read_table_file(path), path.parent, tmp_path, ['data-dir="/data"'])
    assert {cell.settings["data-dir"] for cell in cells} == {"/data"}
