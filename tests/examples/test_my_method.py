"""The example of a package with a method, as somebody gets it: wheels beside each other, run by name from anywhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from bouquet.engines.app_folder import PACKAGES
from bouquet.reporting.run_directory import RunDirectory
from bouquet.testing import assert_equal_runs, write_data
from tests.conftest import REPOSITORY

pytestmark = [pytest.mark.flower, pytest.mark.slow]

EXAMPLE = REPOSITORY / "examples" / "my-method"
SETTINGS = "dataset=file time-column=time num-server-rounds=2 evaluate-every=1 embedding-size=4 batch-size=32"


@dataclass(frozen=True)
class Installation:
    """A virtual environment with two wheels, and a folder that is no checkout."""

    python: Path
    folder: Path

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one of its programs, with nothing of this process's ways to find modules."""
        environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")}
        environment["PATH"] = os.pathsep.join([str(self.python.parent), "/usr/bin", "/bin"])
        environment["TMPDIR"] = str(self.folder)
        return subprocess.run(
            [str(self.python.parent / arguments[0]), *arguments[1:]],
            cwd=self.folder, env=environment, capture_output=True, text=True, timeout=400, check=False,
        )  # fmt: skip


def wheel(source: Path, out: Path) -> Path:
    """Build a wheel without the network."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(out), str(source)], check=True, timeout=300)
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def installed():
    """Both wheels in a fresh environment; what they depend on comes from the one that runs the tests.

    Ray puts sockets below the folder, so its path must be short.
    """
    pytest.importorskip("setuptools", reason="wheels are built with setuptools")
    folder = Path(tempfile.mkdtemp(prefix="w", dir="/tmp"))
    for package in PACKAGES:
        shutil.copytree(REPOSITORY / package, folder / "source" / package, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / file, folder / "source")
    shutil.copytree(EXAMPLE, folder / "example", ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    wheels = [wheel(folder / name, folder / f"{name}-wheel") for name in ("source", "example")]
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True, timeout=300)
    python = folder / "venv" / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*install, *map(str, wheels)], check=True, timeout=300)
    # After installing, so that pip sees nothing of the other environment. A folder named in a .pth file comes after
    # site-packages, and .pth files inside it, such as that of an editable checkout, are not read.
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "venv" / "lib" / version / "site-packages"
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    for point in entry_points(group="console_scripts"):
        if point.dist and point.dist.name in ("flwr", "ray", "pytest"):
            script = python.parent / point.name
            call = f"import sys\nfrom {point.module} import {point.attr}\nsys.exit({point.attr}())\n"
            script.write_text(f"#!{python}\n{call}")
            script.chmod(0o755)
    work = folder / "elsewhere"
    work.mkdir()
    write_data(work / "data.csv", 12, 40, 10.0)
    yield Installation(python, work)
    shutil.rmtree(folder)


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
    done = installed("pytest", "-q", "-p", "no:cacheprovider", str(installed.folder.parent / "example" / "tests"))
    assert done.returncode == 0, done.stdout[-3000:]
    assert "passed" in done.stdout
