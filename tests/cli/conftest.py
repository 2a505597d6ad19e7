"""The program, in this process or as one of its own, and a small table and a small search that are finished."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from bouquet.cli.main import main
from tests.cli.searches import search
from tests.conftest import REPOSITORY

# Started from a background job, a program inherits that SIGINT is ignored; a terminal gives it the usual meaning.
PROGRAM = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from bouquet.cli.main import main; main()"
)

SMALL_TABLE = """
title = "A small table"
metrics = ["HR@10", "NDCG@10"]
candidates = ["full", "sampled-99"]
seeds = [0, 1]
against = "fedavg"

[settings]
num-server-rounds = 2
evaluate-every = 1
checkpoint-every = 1
min-interactions = 60

[[rows]]
name = "popularity"
label = "Most popular items"
centralized = "popularity"
printed = {"sampled-99" = {"HR@10" = 0.412}}
printed-source = "a paper, Table 2"

[[rows]]
name = "fedavg"
label = "FedAvg"

[[rows]]
name = "fedavg-paper"
label = "FedAvg"
settings = {train-negatives = "paper"}
"""


@dataclass(frozen=True)
class Ended:
    """How a program ended."""

    status: int
    out: str
    err: str


def start(*arguments: str, cwd: Path, home: Path) -> subprocess.Popen[str]:
    """The program as a process, with an empty cache."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "XDG_CACHE_HOME": str(home / "cache")}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        cwd=cwd,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(process: subprocess.Popen[str]) -> Ended:
    """Wait for a process to end."""
    out, err = process.communicate(timeout=300)
    return Ended(process.returncode, out, err)


@pytest.fixture
def bouquet(monkeypatch, capsys):
    """`bouquet("explain", "seed")` is the program in this process: its status and what it printed."""

    def call(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["bouquet", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return Ended(int(ended.value.code or 0), printed.out, printed.err)

    return call


@pytest.fixture(scope="session")
def small_table(tmp_path_factory):
    """The folder of SMALL_TABLE, finished; the file lies beside it. Tests must leave it as it is."""
    home = tmp_path_factory.mktemp("small-table")
    (home / "table.toml").write_text(SMALL_TABLE)
    ended = finish(start("table", "table.toml", "--out", "out", "--engine", "local", cwd=home, home=home))
    assert ended.status == 0, ended.err
    return home / "out"


@pytest.fixture
def copied_table(small_table, tmp_path):
    """A copy of the finished table that a test may change: (file, folder)."""
    shutil.copytree(small_table, tmp_path / "out")
    return shutil.copy(small_table.parent / "table.toml", tmp_path), tmp_path / "out"


@pytest.fixture(scope="session")
def searched(tmp_path_factory):
    """The folder of SEARCH, finished; tests must leave it as it is."""
    pytest.importorskip("optuna", reason="it comes with the extra search")
    return search(tmp_path_factory.mktemp("searched"))


@pytest.fixture
def copied_search(searched, tmp_path):
    """A copy of it that a test may change; the file lies beside it."""
    shutil.copy(searched.parent / "search.toml", tmp_path)
    return shutil.copytree(searched, tmp_path / "out")
