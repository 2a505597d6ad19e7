"""Runs where packages are missing: the plain install does what `make run` does, and who needs more is told which extra.

A package is hidden from a process of its own, which then finds it as little as if it were not installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib

import pytest

from bouquet.errors import ERROR_FILE, MissingPackage, told
from bouquet.extras import EXTRAS
from tests.conftest import REPOSITORY

HIDING = """
import importlib.abc, sys

hidden = sys.argv[1].split(",")

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
from bouquet.cli.main import main
sys.argv = ["bouquet", *sys.argv[2:]]
main()
"""


def without(hidden, *arguments, **environment):
    """The program where some modules are not there."""
    command, env = [sys.executable, "-c", HIDING, ",".join(hidden), *arguments], {**os.environ, **environment}
    return subprocess.run(command, cwd=REPOSITORY, env=env, capture_output=True, text=True, timeout=300, check=False)


def test_every_module_comes_with_an_extra_and_no_extra_is_forgotten():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert set(extras) == {*EXTRAS.values(), "device", "all", "dev"}
    everything = extras["all"][0].removeprefix("bouquet[").removesuffix("]").split(",")
    # Of the programs that follow runs each is large, and nobody has all of them; few write a graph for other programs.
    assert set(everything) == set(EXTRAS.values()) - {"tensorboard", "mlflow", "wandb", "onnx"}
    assert "bouquet[all]" in extras["dev"]
    packages = {"sklearn": "scikit-learn", "dp_accounting": "dp-accounting", "ray": "flwr[simulation]"}
    for module, extra in EXTRAS.items():
        package = packages.get(module, module)
        assert any(line.startswith(package) for line in extras[extra]), module
        assert not any(line.startswith(package) for line in project["dependencies"]), module


@pytest.mark.parametrize("strategy", ["sequential-rules", "fedavg"])
def test_the_plain_install_runs(tmp_path, strategy):
    arguments = (
        [f'strategy="{strategy}"', "num-server-rounds=2"] if strategy == "fedavg" else [f'strategy="{strategy}"']
    )
    given = [part for argument in arguments for part in ("-c", argument)]
    done = without(
        EXTRAS, "run", *given, "--out", str(tmp_path / "run"), "--compare-with", "popularity ease"
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "4 nodes · one process" in done.stdout
    assert "EASE, all data pooled" in done.stdout


@pytest.mark.parametrize(
    ("table", "page"),
    [("champions-ml-100k", "champions"), ("searched-ml-100k", "searched"), ("hetefedrec-ml-100k", "hetefedrec")],
)
def test_a_table_is_made_again_from_the_kept_cells_that_come_with_the_project(tmp_path, table, page):
    """Pooled models and devices that need torch or scikit-learn are among its rows; the page has what comes."""
    results, out = REPOSITORY / "docs/results", tmp_path / "out"
    shutil.copytree(results / "cells/ml-100k", tmp_path / "cells/ml-100k")
    file = REPOSITORY / f"configs/tables/{table}.toml"
    done = without(EXTRAS, "table", str(file), "--out", str(out), "--cells", str(tmp_path / "cells"))
    assert done.returncode == 0, done.stderr
    shown = (results / f"{page}.md").read_text().splitlines()
    rows = [line for line in (out / "table.md").read_text().splitlines() if line.startswith("| ")]
    assert len(rows) > 10
    assert [row for row in rows if row not in shown] == []


@pytest.mark.parametrize("several", [False, True])
def test_a_table_whose_cells_are_not_all_kept_is_refused_before_anything_is_done(tmp_path, several):
    """Also where it is the second of two, whose first needs nothing."""
    file = str(REPOSITORY / "configs/tables/hetefedrec-ml-100k.toml")
    first = tmp_path / "first.toml"
    first.write_text(
        'title = "One"\n[settings]\ndataset = "synthetic"\n[[rows]]\nname = "popularity"\nlabel = "Popular"\n'
        'centralized = "popularity"\n'
    )
    files, out = [*([str(first)] if several else []), file], tmp_path / "out"
    arguments = ("table", *files, "--out", str(out), "--cells", str(tmp_path / "cells"), "--engine", "local")
    done = without(["torch"], *arguments)
    assert done.returncode == 2, done.stdout
    assert done.stderr == (
        "Row 'ncf-all-small': client_app.personalization.hetefedrec:Decorrelation needs torch, which is not installed: "
        'pip install "bouquet[torch]".\n'
    )
    assert not out.exists()


def test_a_caller_is_told_that_it_was_a_package(tmp_path):
    """It is a `ConfigError`, which `bouquet.run` raises from what its process says."""
    arguments = ("run", "--engine", "local", "-c", 'backbone="ncf"', "--out", str(tmp_path / "run"))
    done = without(["torch"], *arguments, **{ERROR_FILE: str(tmp_path / "error.json")})
    assert done.returncode == 2, done.stderr
    found = told(tmp_path / "error.json")
    assert type(found) is MissingPackage
    assert f"{found}\n" == done.stderr


MISSING = {
    "ray": (("--engine", "flower"), "Flower's simulation (--engine flower) needs ray"),
    "torch": (("-c", 'backbone="ncf"'), "What is trained here (fedavg, ncf, on cpu) needs torch"),
    "torch, asked for": (
        ("-c", 'backend="torch"'),
        "What is trained here (fedavg, mf, backend torch, on cpu) needs torch",
    ),
    "torch, of a method": (("-c", 'personalization="plgc"'), "client_app.personalization.plgc:"),
    "torch, of a row": (("--compare-with", "mf-bpr"), "The row mf-bpr needs torch"),
    "pandas": (("-c", 'dataset="ml-100k"'), "Reading ml-100k needs pandas"),
    "pyarrow": (("-c", 'dataset="file" data-file="{here}/events.parquet"'), "Reading events.parquet needs pyarrow"),
    "cvxpy": (("-c", 'strategy="fedca" fedca-solver="cvxpy"'), "fedca-solver 'cvxpy' needs cvxpy"),
    "tensorboard": (("-c", 'tracker="tensorboard"'), "tracker 'tensorboard' needs tensorboard"),
    "sklearn": (("-c", 'strategy="cf-fedsr" fraction-train=0.5'), "Choosing users from clusters"),
}


@pytest.mark.parametrize("case", MISSING)
def test_who_needs_more_is_told_which_extra_before_anything_is_done(tmp_path, case):
    arguments, sentence = MISSING[case]
    (tmp_path / "events.parquet").touch()
    given = ["-c", "num-server-rounds=1", *(argument.replace("{here}", str(tmp_path)) for argument in arguments)]
    module = case.split(",")[0]
    done = without([module], "run", "--engine", "local", *given, "--out", str(tmp_path / "run"))
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(sentence)
    assert done.stderr.endswith(f'which is not installed: pip install "bouquet[{EXTRAS[module]}]".\n')
    assert not (tmp_path / "run").exists()
