"""A small search with two rows, and what tests of searches ask of it."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from bouquet.cli.search import search_command
from bouquet.experiments.search_file import read_search_file, rows_of
from bouquet.experiments.search_study import RowStudy, open_storage
from bouquet.extras import is_there

needs_optuna = pytest.mark.skipif(not is_there("optuna"), reason="optuna comes with the extra search")

SEARCH = """
title = "A small search"
trials = 4
seed = 1
random-trials = 2
prune-after-trials = 1
prune-after-rounds = 1

[settings]
num-server-rounds = 3
evaluate-every = 1
min-interactions = 60
max-users = 120
backend = "numpy"

[search]
learning-rate = {log-uniform = [0.001, 1.0]}

[[rows]]
name = "plain"
label = "FedAvg"

[[rows]]
name = "even"
settings = {strategy = "fcf"}

[rows.search]
server-learning-rate = {log-uniform = [0.001, 0.3]}
embedding-size = {choices = [2, 4, 8]}
"""
# Its first row alone, all of whose trials are drawn at random.
RANDOM = SEARCH.partition('\n[[rows]]\nname = "even"')[0].replace("random-trials = 2", 'sampler = "random"')
RANDOM = RANDOM.replace("trials = 4", 'trials = 4\npruner = "none"', 1)


def search(folder: Path, text: str = SEARCH, jobs: int = 1) -> Path:
    """A search, carried out in this process; its folder."""
    (folder / "search.toml").write_text(text)
    search_command(folder / "search.toml", folder / "out", [], nodes=2, engine="local", jobs=jobs)
    return folder / "out"


def trials_of(out: Path, *without: str) -> list[dict[str, str]]:
    """The lines of trials.csv, without how long they took."""
    with (out / "trials.csv").open() as file:
        return [{k: v for k, v in line.items() if k not in ("seconds", *without)} for line in csv.DictReader(file)]


def study_of(folder: Path, text: str = SEARCH) -> RowStudy:
    """The study of the first row of a search."""
    (folder / "search.toml").write_text(text)
    file = read_search_file(folder / "search.toml")
    return RowStudy(file, rows_of(file, folder, [])[0], open_storage(folder / "search.db"), {})
