"""bouquet as somebody gets it: a wheel in a fresh environment, far from the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from bouquet.engines.app_folder import PACKAGES
from tests.conftest import REPOSITORY


@dataclass(frozen=True)
class Installation:
    """A virtual environment with wheels, and a folder that is no checkout."""

    python: Path
    folder: Path

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one of its programs, or one of the system, with nothing of this process's ways to find modules."""
        environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")}
        environment["PATH"] = os.pathsep.join([str(self.python.parent), "/usr/bin", "/bin"])
        environment["TMPDIR"] = str(self.folder)
        program = self.python.parent / arguments[0]
        return subprocess.run(
            [str(program) if program.exists() else arguments[0], *arguments[1:]],
            cwd=self.folder, env=environment, capture_output=True, text=True, timeout=1000, check=False,
        )  # fmt: skip


def wheel(source: Path, out: Path) -> Path:
    """Build a wheel without the network."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(out), str(source)], check=True, timeout=300)
    return next(out.glob("*.whl"))


@contextmanager
def installation(*others: Path) -> Iterator[Installation]:
    """bouquet and other packages in a fresh environment; what they depend on comes from the one that runs the tests.

    Ray puts sockets below the folder, so its path must be short.

    Args:
        others: folders of the packages' sources.
    """
    pytest.importorskip("setuptools", reason="wheels are built with setuptools")
    folder = Path(tempfile.mkdtemp(prefix="w", dir="/tmp"))
    try:
        sources = [folder / "source", *(folder / other.name for other in others)]
        for package in PACKAGES:
            shutil.copytree(REPOSITORY / package, sources[0] / package, ignore=shutil.ignore_patterns("__pycache__"))
        for file in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
            shutil.copy(REPOSITORY / file, sources[0])
        for other, source in zip(others, sources[1:], strict=True):
            shutil.copytree(other, source, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
        wheels = [wheel(source, folder / f"{source.name}-wheel") for source in sources]
        yield _installed(folder, wheels)
    finally:
        shutil.rmtree(folder)


def _installed(folder: Path, wheels: list[Path]) -> Installation:
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
    return Installation(python, work)
