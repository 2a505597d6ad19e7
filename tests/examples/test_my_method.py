"""The example of a package with a method, as somebody gets it: wheels beside each other, run by name from anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from bouquet.reporting.run_directory import RunDirectory
from bouquet.testing import assert_equal_runs, write_data
from tests.conftest import REPOSITORY
from tests.examples.wheels import installation

pytestmark = [pytest.mark.flower, pytest.mark.slow]

EXAMPLE = REPOSITORY / "examples" / "my-method"
SETTINGS = "dataset=file time-column=time num-server-rounds=2 evaluate-every=1 embedding-size=4 batch-size=32"


@pytest.fixture(scope="module")
def installed():
    """Both wheels in a fresh environment."""
    with installation(EXAMPLE) as made:
        write_data(made.folder / "data.csv", 12, 40, 10.0)
        yield made


def test_the_wheels_are_what_is_imported(installed):
    code = "import bouquet, bouquet.extend, my_method, strategies; print(bouquet.__file__, my_method.__file__)"
    done = installed("python", "-c", f"{code}; print(strategies.__file__)")
    assert done.returncode == 0, done.stderr
    inside = str(installed.python.parent.parent)
    assert [path.startswith(inside) for path in done.stdout.split()] == [True, True, True]


def test_types_come_with_the_wheel(installed):
    done = installed("python", "-c", "import bouquet; print(bouquet.__path__[0])")
    assert (Path(done.stdout.strip()) / "py.typed").exists()


def test_a_device_loads_no_server_and_a_server_no_device(installed):
    start = "import sys; from bouquet.methods import METHODS; from bouquet.methods.manifest import class_at"
    end = "print(*({'strategies', 'my_method.server', 'client_app', 'my_method.device'} & sys.modules.keys()))"
    for first, side, loaded in (
        ("client_app.app", "device", {"client_app", "my_method.device"}),
        ("server_app.app", "strategy", {"strategies", "my_method.server"}),
    ):
        done = installed("python", "-c", f"import {first}; {start}; class_at(METHODS['my-method'].{side}); {end}")
        assert set(done.stdout.split()) == loaded, done.stderr


def test_it_is_explained(installed):
    done = installed("bouquet", "explain", "my-method-mu")
    assert done.returncode == 0, done.stderr
    assert "strategy my-method" in done.stdout
    assert "my-method" in installed("bouquet", "explain", "strategy").stdout


def test_it_runs_by_name_on_both_engines(installed):
    for engine in ("local", "flower"):
        given = f'strategy="my-method" my-method-mu=0.1 data-file="{installed.folder}/data.csv" {SETTINGS}'
        command = ["bouquet", "run", "--engine", engine, "--nodes", "3", "--compare-with", "", "-c", given]
        done = installed(*command, "--out", engine)
        assert done.returncode == 0, done.stdout + done.stderr
    local, flower = (RunDirectory(installed.folder / engine) for engine in ("local", "flower"))
    summary = flower.read_summary()
    assert (summary["status"], summary["strategy"], summary["rounds"]) == ("completed", "my-method", 2)
    assert_equal_runs(flower, local, exact=False)
    assert summary["failures"] == 0


def test_its_own_tests_pass(installed):
    done = installed("pytest", "-q", "-p", "no:cacheprovider", str(installed.folder.parent / EXAMPLE.name / "tests"))
    assert done.returncode == 0, done.stdout[-3000:]
    assert "passed" in done.stdout
