"""Which package may import which, what must stay off a device's start, and how long a module may be."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

PACKAGES = ("bouquet", "client_app", "data_partition", "models", "server_app", "strategies")
MAY_IMPORT = {
    "bouquet.cli": set(PACKAGES) | {"bouquet.cli"},
    "bouquet": {"bouquet"},
    "data_partition": {"data_partition", "bouquet"},
    "models": {"models", "bouquet"},
    "client_app": {"client_app", "models", "data_partition", "bouquet"},
    "strategies": {"strategies", "bouquet"},
    "server_app": {"server_app", "strategies", "bouquet"},
}
WITHOUT_FLOWER = {"data_partition", "models"}
LONGEST_MODULE = 400
# A device imports `client_app.app` anew for every message.
NEVER_ON_A_DEVICE = {"ray", "matplotlib", "sklearn", "cvxpy", "strategies", "server_app"}
ONLY_IF_FLOWER_DOES = {"typer", "rich", "click", "grpc", "sqlalchemy", "requests"}


def sources(root: Path) -> list[Path]:
    """The modules of all packages."""
    return sorted(path for package in PACKAGES for path in (root / package).rglob("*.py"))


def part_of(module: str) -> str:
    """The part of the program that a module of ours belongs to, or the top package of one that is not ours."""
    inside_cli = module == "bouquet.cli" or module.startswith("bouquet.cli.")
    return "bouquet.cli" if inside_cli else module.split(".")[0]


def imports(path: Path, root: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of every import of a file, wherever it stands, those by `import_module("…")` too."""
    package = path.relative_to(root).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from bouquet import cli` is an import of bouquet.cli.
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def violations(root: Path) -> list[str]:
    """Every import that goes against the arrows."""
    found = []
    for path in sources(root):
        place = path.relative_to(root)
        importer = part_of(".".join(place.with_suffix("").parts))
        for line, name in imports(path, root):
            imported = part_of(name)
            ours = imported.split(".")[0] in PACKAGES
            if ours and imported not in MAY_IMPORT[importer]:
                found.append(f"{place}:{line}: {importer} must not import {name}")
            if imported == "flwr" and importer in WITHOUT_FLOWER:
                found.append(f"{place}:{line}: {importer} must not import anything of Flower")
    return found


def test_imports_follow_the_arrows():
    assert len(sources(REPOSITORY)) > 50
    assert violations(REPOSITORY) == []


@pytest.mark.parametrize(
    ("place", "code", "complaint"),
    [
        ("strategies/bad.py", "import client_app.host", "strategies must not import client_app.host"),
        ("client_app/bad.py", "from strategies import base", "client_app must not import strategies.base"),
        ("models/bad.py", "def f():\n    from flwr.app import Message", "models must not import anything of Flower"),
        ("data_partition/deep/bad.py", "import flwr", "data_partition must not import anything of Flower"),
        ("server_app/bad.py", "def f():\n    import client_app", "server_app must not import client_app"),
        ("bouquet/bad.py", "if False:\n    from models import Backbone", "bouquet must not import models.Backbone"),
        ("bouquet/engines/bad.py", "from ..cli import run", "bouquet must not import bouquet.cli.run"),
        ("client_app/bad.py", "from bouquet import cli", "client_app must not import bouquet.cli"),
        ("strategies/bad.py", "import_module('models.mf')", "strategies must not import models.mf"),
    ],
)
def test_a_planted_import_is_found(tmp_path, place, code, complaint):
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    path.write_text(code + "\n")
    found = violations(tmp_path)
    assert len(found) == 1
    assert found[0].startswith(f"{place}:")
    assert found[0].endswith(complaint)


@pytest.mark.parametrize(
    ("place", "code"),
    [
        ("bouquet/cli/fine.py", "import strategies, client_app.app, models.mf"),
        ("server_app/fine.py", "from strategies import STRATEGIES\nfrom . import other\nimport flwr"),
        ("client_app/fine.py", "from data_partition import load\nimport flwr.clientapp"),
    ],
)
def test_an_allowed_import_is_not(tmp_path, place, code):
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    path.write_text(code + "\n")
    assert violations(tmp_path) == []


def loaded_by(statement: str) -> set[str]:
    """Top-level names of all modules that a fresh process has after a statement."""
    code = f"{statement}\nimport json, sys\nprint(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=True
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_a_device_imports_nothing_that_it_does_not_need():
    loaded = loaded_by("import client_app.app")
    of_flower = loaded_by("import flwr.app, flwr.clientapp")
    assert "torch" in loaded
    assert not loaded & NEVER_ON_A_DEVICE
    assert not (loaded & ONLY_IF_FLOWER_DOES) - of_flower


def test_models_and_data_do_without_flower():
    """Not only in their own lines: nothing that they import does it either."""
    assert not loaded_by("import models, models.centralized, data_partition") & {"flwr", "ray"}


def test_no_module_is_too_long():
    lengths = {str(path.relative_to(REPOSITORY)): len(path.read_text().splitlines()) for path in sources(REPOSITORY)}
    assert {name: length for name, length in lengths.items() if length > LONGEST_MODULE} == {}
