"""The figure of a table: every point of its curves as numbers, and a picture of them."""

from __future__ import annotations

import csv
import json
import shutil

import numpy as np
import pytest

from bouquet.errors import ConfigError
from bouquet.experiments.table_cells import cells_of
from bouquet.experiments.table_file import read_table_file
from bouquet.reporting.run_directory import RunDirectory
from tests.cli.conftest import SMALL_TABLE

SHARES = """
title = "Less to learn from"
metrics = ["HR@10"]
candidates = ["full"]
seeds = [0]
figure = {x = "training-share", label = "share of training items", scale = "log"}

[settings]
num-server-rounds = 1
checkpoint-every = 0
min-interactions = 60

[[rows]]
name = "popularity"
label = "Most popular items"
centralized = "popularity"

[[rows]]
name = "popularity-30"
centralized = "popularity"
line = "popularity of"
settings = {training-share = 0.3}

[[rows]]
name = "popularity-100"
centralized = "popularity"
line = "popularity of"

[[rows]]
name = "fedavg-30"
line = "FedAvg"
settings = {training-share = 0.3}

[[rows]]
name = "fedavg-100"
line = "FedAvg"
"""


GROUPS = """
title = "By group"
metrics = ["NDCG@20"]
candidates = ["full"]
seeds = [0, 1]
figure = {x = "group"}

[settings]
num-server-rounds = 1
checkpoint-every = 0
min-interactions = 60
strategy = "hetefedrec"
hetefedrec-sizes = "2,3,4"

[[rows]]
name = "popularity"
centralized = "popularity"

[[rows]]
name = "all-small"
label = "All small"
settings = {hetefedrec-method = "all-small"}

[[rows]]
name = "whole"
label = "HeteFedRec"
"""


def with_figure(folder, figure: str, lines: bool = True):
    """The small table with a figure; both federated rows are points of one curve."""
    text = SMALL_TABLE.replace("seeds = [0, 1]", f"seeds = [0, 1]\nfigure = {figure}")
    if lines:
        text = text.replace('label = "FedAvg"', 'label = "FedAvg"\nline = "FedAvg"')
    file = folder / "table.toml"
    file.write_text(text)
    return file


def points_of(out):
    with (out / "figure.csv").open() as file:
        return {(p["line"], p["x"], p["candidates"], p["metric"]): p for p in csv.DictReader(file)}


@pytest.fixture
def out(small_table, tmp_path):
    """The finished cells of the small table, in a folder that a test may change."""
    shutil.copytree(small_table, tmp_path / "out")
    return tmp_path / "out"


def test_a_setting_of_words_on_the_axis(out, bouquet):
    file = with_figure(out.parent, '{x = "train-negatives", label = "negatives"}')
    ended = bouquet("table", file, "--out", out, "--engine", "local")
    assert ended.status == 0, ended.err
    assert f"{out / 'figure.csv'}, {out / 'figure.png'} and" in ended.out
    found = points_of(out)
    # Two federated rows and a level line, over two candidate sets and two metrics.
    assert len(found) == 12
    values = [
        json.loads((out / "cells" / "fedavg" / f"seed-{seed}" / "summary.json").read_text())["test"]["full"]["NDCG@10"]
        for seed in (0, 1)
    ]
    point = found["FedAvg", "honest", "full", "NDCG@10"]
    assert float(point["mean"]) == pytest.approx(np.mean(values))
    assert float(point["standard error"]) == pytest.approx(abs(values[0] - values[1]) / 2)
    assert point["over"] == "seeds"
    assert ("FedAvg (LEAKY)", "paper", "full", "HR@10") in found
    assert ("Most popular items (not federated)", "", "sampled-99", "HR@10") in found
    assert (out / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert "![Metrics by negatives](figure.png)" in (out / "table.md").read_text()


def test_the_same_cells_give_the_same_picture(out, bouquet):
    file = with_figure(out.parent, '{x = "train-negatives"}')
    assert bouquet("table", file, "--out", out, "--engine", "local").status == 0
    first = (out / "figure.png").read_bytes()
    assert bouquet("table", file, "--out", out, "--engine", "local").status == 0
    assert (out / "figure.png").read_bytes() == first


def test_round_by_round(out, bouquet):
    """Both rounds of each federated row, as the cells' metrics.jsonl has them, averaged over seeds."""
    file = with_figure(out.parent, '{x = "round"}', lines=False)
    assert bouquet("table", file, "--out", out, "--engine", "local").status == 0
    found = points_of(out)
    for number in (1, 2):
        values = [
            RunDirectory(out / "cells" / "fedavg" / f"seed-{seed}").rounds()[number - 1]["test"]["full"]["HR@10"]
            for seed in (0, 1)
        ]
        assert float(found["FedAvg", str(number), "full", "HR@10"]["mean"]) == pytest.approx(np.mean(values))
    assert found["Most popular items (not federated)", "", "full", "HR@10"]["over"] == "users"


def test_how_well_against_how_unequally(out, bouquet):
    """Every row is one point: the variance over users of HR@10 + NDCG@10, by candidate set, and each metric."""
    file = with_figure(out.parent, '{x = "variance"}', lines=False)
    assert bouquet("table", file, "--out", out, "--engine", "local").status == 0
    with (out / "figure.csv").open() as lines:
        found = {(p["line"], p["candidates"], p["metric"]): p for p in csv.DictReader(lines)}
    assert len(found) == 12
    folders = [RunDirectory(out / "cells" / "fedavg" / f"seed-{seed}") for seed in (0, 1)]
    variances = [folder.read_summary()["fairness"]["sampled-99"]["variance"] for folder in folders]
    point = found["FedAvg", "sampled-99", "NDCG@10"]
    assert float(point["x"]) == pytest.approx(np.mean(variances), rel=1e-5)
    values = [folder.read_summary()["test"]["sampled-99"]["NDCG@10"] for folder in folders]
    assert float(point["mean"]) == pytest.approx(np.mean(values))
    # One metric is above another one at the same variance.
    assert point["x"] == found["FedAvg", "sampled-99", "HR@10"]["x"]
    assert found["Most popular items (not federated)", "full", "HR@10"]["x"]
    assert "![Metrics by variance over users of HR@10 + NDCG@10](figure.png)" in (out / "table.md").read_text()


def test_groups_and_training_items(tmp_path, bouquet):
    """HeteFedRec's three groups as summaries have them; training items are a curve of their own beside hidden ones."""
    (tmp_path / "groups.toml").write_text(GROUPS)
    ended = bouquet("table", tmp_path / "groups.toml", "--out", tmp_path / "groups", "--engine", "local")
    assert ended.status == 0, ended.err
    seeds = [json.loads((tmp_path / f"groups/cells/all-small/seed-{seed}/summary.json").read_text()) for seed in (0, 1)]
    found = points_of(tmp_path / "groups")
    assert len(found) == 6, "popularity has no groups"
    for group in (0, 1, 2):
        values = [summary["groups"][group]["test"]["NDCG@20"] for summary in seeds]
        point = found["All small", str(group + 1), "full", "NDCG@20"]
        assert float(point["mean"]) == pytest.approx(np.mean(values))
        assert float(point["standard error"]) == pytest.approx(abs(values[0] - values[1]) / 2)
    training = GROUPS.replace('"group"', '"hetefedrec-method", training = true')
    training = training.replace("label", 'line = "Both"\nlabel')
    (tmp_path / "both.toml").write_text(training.replace("[settings]", "[settings]\nevaluate-training = true"))
    ended = bouquet("table", tmp_path / "both.toml", "--out", tmp_path / "both", "--engine", "local")
    assert ended.status == 0, ended.err
    seeds = [json.loads((tmp_path / f"both/cells/all-small/seed-{seed}/summary.json").read_text()) for seed in (0, 1)]
    found = points_of(tmp_path / "both")
    values = [summary["training"]["full"]["NDCG@20"] for summary in seeds]
    point = found["Both, training items", "all-small", "full", "NDCG@20"]
    assert float(point["mean"]) == pytest.approx(np.mean(values))
    assert len(found) == 5, "of popularity's training items nothing is known"
    assert (tmp_path / "both" / "figure.png").exists()


def test_rows_that_learn_from_less(tmp_path, bouquet):
    """Popularity of all training items is where the row without a line is; of 30 % of them it is elsewhere."""
    (tmp_path / "table.toml").write_text(SHARES)
    ended = bouquet("table", tmp_path / "table.toml", "--out", tmp_path / "out", "--engine", "local")
    assert ended.status == 0, ended.err
    found = {key[:2]: float(point["mean"]) for key, point in points_of(tmp_path / "out").items()}
    assert found["popularity of", "1.0"] == found["Most popular items (not federated)", ""]
    assert found["popularity of", "0.3"] != found["popularity of", "1.0"]
    assert {("FedAvg", "0.3"), ("FedAvg", "1.0")} <= set(found)
    assert "a share of 30 % is kept in rows whose name says so" in (tmp_path / "out" / "table.md").read_text()


@pytest.mark.parametrize(
    ("figure", "lines", "sentence"),
    [
        ('{x = "train-negative"}', True, "no setting for the figure's axis 'train-negative'. Did you mean 'train-neg"),
        ('{x = "train-negatives"}', False, "'figure' has no curve"),
        ('{x = "train-negatives", scale = "square"}', True, "'figure.scale' cannot be 'square'"),
        ('{x = "group"}', False, "Groups have metrics over the full catalogue only"),
        ('{x = "variance", training = true}', False, "Training items are drawn over a setting, not over 'variance'"),
    ],
)
def test_a_figure_that_cannot_be_drawn_is_refused(tmp_path, figure, lines, sentence):
    with pytest.raises(ConfigError, match=sentence):
        read_table_file(with_figure(tmp_path, figure, lines))


def test_a_line_without_a_figure_is_refused(tmp_path):
    file = tmp_path / "table.toml"
    file.write_text(SMALL_TABLE.replace('label = "FedAvg"', 'label = "FedAvg"\nline = "FedAvg"'))
    with pytest.raises(ConfigError, match="row 'fedavg' is on a line, and the table has no figure"):
        read_table_file(file)


def test_a_centralized_row_sets_nothing_but_its_training_share(tmp_path):
    file = tmp_path / "table.toml"
    file.write_text(SHARES.replace("settings = {training-share = 0.3}", "settings = {split-seed = 3}", 1))
    with pytest.raises(
        ConfigError, match="no config, settings-from, variant-of or settings of its own but training-share"
    ):
        cells_of(read_table_file(file), tmp_path, tmp_path / "out", [])
