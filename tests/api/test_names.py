"""Other projects have a `models` and a `strategies`, too: nothing of ours takes theirs for its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bouquet.own_packages import PACKAGES
from bouquet.reporting.run_directory import RunDirectory
from tests.conftest import REPOSITORY

OWN = "WHOSE = 'the caller'\n"
# As a notebook would: its own packages first, then a run, then its own packages again.
NOTEBOOK = """
import models, strategies
import bouquet
run = bouquet.run("sequential-rules", nodes=2, engine="local", out="run", progress=False, max_users=60)
import models.backbone
assert (models.WHOSE, strategies.WHOSE, models.backbone.WHOSE) == ("the caller",) * 3
assert run.model.arrays and len(run.recommend(run.per_user["user"][0], 3)) == 3
"""


@pytest.fixture
def project(tmp_path):
    """A folder with packages of these names, in which everything is started, and which is first on the path."""
    for name in ("models", "strategies", "client_app"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(OWN)
    (tmp_path / "models" / "backbone.py").write_text(OWN)
    return tmp_path


def python(folder: Path, *arguments: str, root: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder), ".", str(root)])
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_notebook_keeps_its_packages_and_trains_with_ours(project):
    done = python(project, "-c", NOTEBOOK)
    assert done.returncode == 0, done.stderr
    assert RunDirectory(project / "run").read_summary()["status"] == "completed"


def test_the_command_takes_our_packages(project):
    done = python(project, "-m", "bouquet", "explain", "backbone")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("backbone: The scoring model.")


def test_half_a_method_cannot_be_imported_there_and_why_is_said(project):
    done = python(project, "-c", "from bouquet.extend import Method; from bouquet.extend import Backbone")
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: 'models' is {project / 'models'} here, and bouquet needs its own package of that name, "
        f"{REPOSITORY / 'models'}. Start from another folder, or rename yours: the command `bouquet` and `bouquet.run` "
        "do not mind it."
    )


def test_a_package_that_was_installed_over_ours_is_named(tmp_path):
    for package in PACKAGES:
        shutil.copytree(REPOSITORY / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "models" / "__init__.py").write_text(OWN)
    done = python(tmp_path, "-m", "bouquet", "explain", "backbone", root=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"{tmp_path / 'models'} is not bouquet's package 'models', or not all of it (")
    assert done.stderr.endswith("install bouquet in an environment of its own.\n")
    assert len(done.stderr.splitlines()) == 1
