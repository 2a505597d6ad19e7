"""The day of a researcher with an installed bouquet, from a folder that has `models` and `strategies` of its own."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess

import pyarrow.parquet
import pytest
from safetensors.numpy import load_file

from bouquet.experiments.chosen import read_chosen
from bouquet.reporting.run_directory import RunDirectory
from tests.conftest import REPOSITORY
from tests.examples.wheels import Installation, installation

pytestmark = [pytest.mark.slow, pytest.mark.flower]

DAY = REPOSITORY / "examples" / "researchers-day"
ROWS = "6000"
SEARCH = """
title = "On Flower"
trials = 2
pruner = "none"

[settings]
num-server-rounds = 2
evaluate-every = 1
max-users = 40
embedding-size = 4

[search]
learning-rate = {log-uniform = [0.01, 1.0]}

[[rows]]
name = "fedavg"
"""


@pytest.fixture(scope="module")
def installed():
    with installation() as made:
        for name in ("models", "strategies", "client_app"):
            (made.folder / name).mkdir()
            (made.folder / name / "__init__.py").write_text("raise ImportError('this is not of bouquet')\n")
        yield made


def elsewhere(installed: Installation, name: str) -> Installation:
    """The same from another folder with the same packages in it."""
    folder = installed.folder.parent / name
    shutil.copytree(installed.folder, folder)
    return Installation(installed.python, folder)


def assert_all_is_there(installed: Installation) -> None:
    """What came of the day, whichever way it went."""
    tuned, counts = (RunDirectory(installed.folder / name) for name in ("fedavg", "counts"))
    chosen = read_chosen(installed.folder / "search")
    assert {row.ended for row in chosen.values()} == {3}
    assert tuned.read_config()["learning-rate"] == chosen["fedavg"].settings["learning-rate"]
    for directory in (tuned, counts):
        summary, data = directory.read_summary(), directory.read_json("data.json")
        assert summary["status"] == "completed"
        assert 0 < data["skipped"] < 200
        assert data["form"] == "as cp1252, separated by semicolons, with times of several forms or units"
        assert summary["interactions"] < data["rows"] - data["skipped"] - data["duplicates"]
    assert {"popularity", "ease"} <= tuned.read_json("comparison.json").keys()
    page = (installed.folder / "report.html").read_text()
    assert "Crème" in page
    assert "sequential-rules" in page
    model = installed.folder / "model"
    assert load_file(model / "model.safetensors")
    with (model / "items.csv").open() as file:
        titles = {row["item"]: row["title"] for row in csv.DictReader(file)}
    assert titles["a0003"] == "Crème; no. 3"
    lists = pyarrow.parquet.read_table(model / "recommendations.parquet")
    # The keenest have nearly all of the few articles.
    assert len(set(lists["user"].to_pylist())) == counts.read_summary()["users"]
    assert set(lists["rank"].to_pylist()) == set(range(1, 11))


def test_the_day_on_the_command_line(installed):
    here = elsewhere(installed, "shell")
    ended = here("bash", str(DAY / "day.sh"), ROWS)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    steps = ["data", "look", "search", "run", "counts", "compare", "report", "recommend", "export"]
    assert re.findall(r"^(\w+): \d+ s, \d+ s of them computing$", ended.stderr, re.MULTILINE) == steps
    assert_all_is_there(here)
    assert "rows cannot be read and are left out, among them line " in (here.folder / "log-look.txt").read_text()
    assert (here.folder / "log-recommend.txt").read_text().count("Crème") > 0


def test_the_day_from_python(installed):
    here = elsewhere(installed, "script")
    ended = here("python", str(DAY / "day.py"), ROWS)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert_all_is_there(here)
    assert re.search(r"^0 +1 +a\d{4} +Crème", ended.stdout, re.MULTILINE)
    assert "rows cannot be read and are left out" in ended.stderr


NOTEBOOK = """
import sys
import nbformat
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], as_version=4)
assert all(not cell.outputs for cell in notebook.cells if cell.cell_type == "code"), "outputs are not kept"
NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
print(notebook.cells[-1].outputs[-1]["data"]["text/plain"])
"""


def test_the_day_in_a_notebook(installed):
    here = elsewhere(installed, "notebook")
    ended = here("env", f"DAY={DAY}", f"ROWS={ROWS}", "python", "-c", NOTEBOOK, str(DAY / "day.ipynb"))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert_all_is_there(here)
    assert "recommendations.parquet" in ended.stdout


def test_a_search_on_flower_and_a_ready_made_one_by_name(installed):
    here = elsewhere(installed, "flower")
    (here.folder / "search.toml").write_text(SEARCH)
    ended = here("bouquet", "search", "search.toml", "--out", "out", "--engine", "flower", "--nodes", "2")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert read_chosen(here.folder / "out")["fedavg"].ended == 2
    ended = here("bouquet", "table", "configs/tables/leak-ml-100k.toml", "--out", "leak", "-c", 'data-dir="none"')
    assert "Row" not in ended.stderr
    assert "none" in ended.stderr
    ended = here("bouquet", "table", "leak-ml-100", "--out", "leak")
    assert ended.stderr == "There is no configuration file leak-ml-100. Did you mean 'leak-ml-100k'?\n"


def test_a_wheel_has_the_ready_made_files(installed):
    """Each of them once, and as it is."""
    code = "from bouquet.ready_made import FOLDER; print(FOLDER)"
    folder = subprocess.run(
        [installed.python, "-c", code], cwd=installed.folder.parent, env={}, capture_output=True, text=True, check=True
    ).stdout.strip()
    assert folder.startswith(str(installed.python.parent.parent))
    ours = {
        path.relative_to(REPOSITORY / "configs"): path.read_text() for path in (REPOSITORY / "configs").rglob("*.toml")
    }
    found = {path.relative_to(folder): path.read_text() for path in type(DAY)(folder).rglob("*.toml")}
    assert found == ours
