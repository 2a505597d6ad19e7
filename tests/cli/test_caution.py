"""What is known to be wrong with a data set stands beside every one of its figures."""

from __future__ import annotations

import pytest

from data_partition import DATASETS, caution_of

NAME = "amazon-video-games"
TABLE = f"""
title = "T"
seeds = [0]
[settings]
dataset = "{NAME}"
num-server-rounds = 1
[[rows]]
name = "popularity"
centralized = "popularity"
"""


def test_sets_that_need_a_caution():
    assert [name for name in DATASETS if caution_of(name)] == [NAME]
    assert caution_of("file") == caution_of("devices") == ""


@pytest.fixture
def games(tmp_path):
    """A folder of data sets with a small file of this form."""
    folder = tmp_path / "sets" / NAME
    folder.mkdir(parents=True)
    rows = (f"{user} {1 + (user * 7 + place * 3) % 20}" for user in range(1, 13) for place in range(6))
    (folder / "Video.txt").write_text("\n".join(rows) + "\n")
    return folder.parent


def test_it_is_said_wherever_a_figure_is(games, tmp_path, bouquet):
    said = f"Caution. {caution_of(NAME)}"
    data = ("-c", f'dataset="{NAME}" data-dir="{games}" num-server-rounds=1')
    ran = bouquet("run", "--engine", "local", "--out", tmp_path / "run", "--compare-with", "popularity", *data)
    assert ran.status == 0, ran.err
    (tmp_path / "table.toml").write_text(TABLE)
    table = ("table", tmp_path / "table.toml", "--out", tmp_path / "out", "-c", f'data-dir="{games}"')
    printed = [ran, bouquet("report", tmp_path / "run"), bouquet("compare", tmp_path / "run")]
    for ended in [*printed, bouquet("data", "stats", NAME, "--data-dir", games)]:
        assert said in ended.out
    marked = f"**Caution.** {caution_of(NAME)}"
    assert marked in bouquet(*table).out
    after_figures = (tmp_path / "out" / "table.md").read_text().split("| popularity (not federated) ")[1]
    assert after_figures.splitlines()[2] == marked


def test_other_sets_have_none(small_table, bouquet):
    run = small_table / "cells" / "fedavg" / "seed-0"
    for ended in (bouquet("report", run), bouquet("compare", run), bouquet("data", "stats", "synthetic")):
        assert ended.status == 0
        assert "Caution" not in ended.out
    assert "Caution" not in (small_table / "table.md").read_text()
