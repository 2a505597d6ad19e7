"""Which package may import which, what must stay off a device's start, and that a method is named in its own files."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import bouquet.extend
from bouquet.config import check
from bouquet.errors import ConfigError
from bouquet.experiments.settings import option_classes
from bouquet.methods import METHODS, PLUG_INS, parts
from bouquet.methods.manifest import Method
from tests.conftest import REPOSITORY
from tests.loaded import loaded_by

PACKAGES = ("bouquet", "client_app", "data_partition", "models", "server_app", "strategies")
MAY_IMPORT = {
    "bouquet.cli": set(PACKAGES) | {"bouquet.cli", "bouquet.experiments"},
    "bouquet.experiments": set(PACKAGES) | {"bouquet.experiments"},
    # The one place that other packages import from, and what they test with: everything, and nobody here imports them.
    "bouquet.extend": set(PACKAGES),
    "bouquet.testing": set(PACKAGES) | {"bouquet.testing", "bouquet.experiments"},
    "bouquet": {"bouquet"},
    # What a notebook imports: none of the packages whose names it may have itself. tests/api looks at what is loaded.
    "bouquet.__init__": {"bouquet", "bouquet.api"},
    "bouquet.api": {"bouquet", "bouquet.api", "bouquet.experiments"},
    "bouquet.__main__": {"bouquet.cli"},
    "data_partition": {"data_partition", "bouquet"},
    "models": {"models", "bouquet"},
    "client_app": {"client_app", "models", "data_partition", "bouquet"},
    "strategies": {"strategies", "bouquet"},
    "server_app": {"server_app", "strategies", "bouquet"},
}
WITHOUT_FLOWER = {"data_partition", "models"}
# What Flower documents. The one file that imports what it does not says why.
OF_FLOWER = {"flwr.app", "flwr.clientapp", "flwr.clientapp.typing", "flwr.serverapp", "flwr.serverapp.strategy"}
INSIDE_FLOWER = "bouquet/engines/inside.py"
# A device imports `client_app.app` whenever messages come after a rest.
NEVER_ON_A_DEVICE = {"ray", "matplotlib", "sklearn", "cvxpy", "strategies", "server_app"}
# What only some models and data sets take.
ONLY_WHERE_NEEDED = {"torch", "pandas", "pyarrow"}
ONLY_IF_FLOWER_DOES = {"typer", "rich", "click", "grpc", "sqlalchemy", "requests"}


def sources(root: Path) -> list[Path]:
    """The modules of all packages."""
    return sorted(path for package in PACKAGES for path in (root / package).rglob("*.py"))


def part_of(module: str) -> str:
    """The part of the program that a module of ours belongs to, or the top package of one that is not ours."""
    inside = ".".join(module.split(".")[:2])
    return inside if inside in MAY_IMPORT else module.split(".")[0]


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
            elif imported == "flwr" and name.rpartition(".")[0] not in OF_FLOWER and place.as_posix() != INSIDE_FLOWER:
                found.append(f"{place}:{line}: only {INSIDE_FLOWER} may import {name}")
    return found


def test_imports_follow_the_arrows():
    assert len(sources(REPOSITORY)) > 50
    assert violations(REPOSITORY) == []


@pytest.mark.parametrize(
    ("place", "code", "complaint"),
    [
        ("strategies/bad.py", "import client_app.node.host", "strategies must not import client_app.node.host"),
        ("client_app/bad.py", "from strategies import base", "client_app must not import strategies.base"),
        ("models/bad.py", "def f():\n    from flwr.app import Message", "models must not import anything of Flower"),
        ("data_partition/deep/bad.py", "import flwr", "data_partition must not import anything of Flower"),
        ("server_app/bad.py", "def f():\n    import client_app", "server_app must not import client_app"),
        ("bouquet/bad.py", "if False:\n    from models import Backbone", "bouquet must not import models.Backbone"),
        ("bouquet/engines/bad.py", "from ..cli import run", "bouquet must not import bouquet.cli.run"),
        ("client_app/bad.py", "from bouquet import cli", "client_app must not import bouquet.cli"),
        ("bouquet/experiments/bad.py", "import bouquet.cli", "bouquet.experiments must not import bouquet.cli"),
        ("strategies/bad.py", "import_module('models.mf')", "strategies must not import models.mf"),
        ("strategies/bad.py", "from bouquet.extend import Method", "strategies must not import bouquet.extend.Method"),
        ("bouquet/bad.py", "from bouquet import testing", "bouquet must not import bouquet.testing"),
        (
            "client_app/bad.py",
            "def f():\n    from flwr.supercore import log",
            "only bouquet/engines/inside.py may import flwr.supercore.log",
        ),
        ("server_app/bad.py", "import flwr.proto", "only bouquet/engines/inside.py may import flwr.proto"),
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
        (
            "server_app/fine.py",
            "from strategies import BaseStrategy\nfrom . import other\nfrom flwr.serverapp import Grid",
        ),
        ("bouquet/extend.py", "import strategies.averaging, client_app.personalization.base"),
        ("client_app/fine.py", "from data_partition import load\nfrom flwr.clientapp import ClientApp"),
    ],
)
def test_an_allowed_import_is_not(tmp_path, place, code):
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    path.write_text(code + "\n")
    assert violations(tmp_path) == []


def circle(root: Path) -> list[str]:
    """Modules that import each other, for type checkers alone or within functions too; empty if none do."""
    modules = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in sources(root)
    }
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        named = {imported for _, imported in imports(path, root)}
        # `from package import module` names a module, and `from module import name` what is in one.
        found = {other if other in modules else other.rpartition(".")[0] for other in named}
        graph[name] = (found & modules.keys()) - {name}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_import_runs_in_a_circle(tmp_path):
    assert circle(REPOSITORY) == []
    for place, code in {
        "one": "from strategies import two",
        "two": "def f():\n    from strategies.one import g",
    }.items():
        (tmp_path / "strategies").mkdir(exist_ok=True)
        (tmp_path / "strategies" / f"{place}.py").write_text(code + "\n")
    assert set(circle(tmp_path)) == {"strategies.one", "strategies.two"}


# -- what is loaded ----------------------------------------------------------------------------------------------------


def test_a_device_imports_nothing_that_it_does_not_need():
    loaded = loaded_by("import client_app.app, client_app.node.training")
    of_flower = loaded_by("import flwr.app, flwr.clientapp")
    assert not loaded & (NEVER_ON_A_DEVICE | ONLY_WHERE_NEEDED)
    assert not (loaded & ONLY_IF_FLOWER_DOES) - of_flower


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.kind == "sums"])
def test_a_device_that_only_counts_needs_nothing_but_numpy(name):
    module, _, _ = METHODS[name].device.partition(":")
    loaded = loaded_by(f"import client_app.app, client_app.sums.nodes, {module}")
    assert not loaded & {"torch", "numba", "pandas", "pyarrow", "scipy", *NEVER_ON_A_DEVICE}


def test_models_and_data_do_without_flower():
    """Not only in their own lines: nothing that they import does it either."""
    assert not loaded_by("import models, models.centralized, data_partition") & {"flwr", "ray"}


def test_a_manifest_of_another_package_loads_neither_half():
    loaded = loaded_by("from bouquet.extend import ConfigError, Field, Method, Options, PlugIn, ServerOptimizerOptions")
    assert not loaded & {"torch", "strategies", "client_app", "models", "server_app", "flwr", "pandas"}


def test_each_half_of_another_package_loads_its_own_side_only():
    server = loaded_by("from bouquet.extend import BaseStrategy, FedAvg, ServerOptimizer, mean_change, TrainReply")
    assert "strategies" in server
    assert not server & {"client_app", "models", "torch"}
    device = loaded_by("from bouquet.extend import Backbone, Given, Personalization, SequenceBackbone")
    assert "client_app" in device
    assert not device & NEVER_ON_A_DEVICE


def test_a_device_does_not_look_for_other_packages_where_the_method_is_built_in():
    code = "from bouquet.methods import METHODS; from models import BACKBONES; METHODS['fedavg'], BACKBONES['mf']"
    watch = "import bouquet.installed as i; i.entries = None"
    assert "models" in loaded_by(f"{watch}; {code}; import client_app.app, client_app.node.training")


def test_type_checkers_see_the_names_that_there_are():
    tree = ast.parse(Path(bouquet.extend.__file__).read_text())
    (typed,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.asname: part.module for part in typed.body for alias in part.names}
    assert seen == bouquet.extend._PLACES
    for name in bouquet.extend.__all__:
        assert getattr(bouquet.extend, name).__class__ is not None


# -- one home for each method ------------------------------------------------------------------------------------------

ALL = {name: made for name, made in {**METHODS, **PLUG_INS}.items() if made is not None}
# The methods of these names are also rows that others are compared with. An engine and a way of mixing are called
# "local" too, and it is a word, as ease is. So a text is looked at only where it is nothing but the name, and here it
# means something else.
EASE = {
    "bouquet/cli/screen.py": "the row",
    "bouquet/experiments/baselines.py": "the row",
    "bouquet/experiments/comparison.py": "the row",
    "models/centralized/__init__.py": "the row",
}
LOCAL = {
    "bouquet/cli/beforehand.py": "the engine",
    "bouquet/cli/run.py": "the engine",
    "bouquet/cli/screen.py": "the engine, and the row",
    "bouquet/engines/release.py": "files of a TLS certificate",
    "bouquet/experiments/baselines.py": "the row",
    "bouquet/methods/manifest.py": "what a method is compared with where it does not say otherwise",
    "bouquet/methods/plgc.py": "a way of mixing",
    "bouquet/testing/runs.py": "the engine",
    "client_app/personalization/plgc.py": "a way of mixing",
}
WORDS = {"ease": EASE, "local": LOCAL}
ALLOWED = {
    ("bouquet/config/run.py", "fedavg"): "the default of 'strategy'",
    ("bouquet/experiments/baselines.py", "fedavg"): "the row beside methods that train nothing",
    ("bouquet/cli/screen.py", "ials"): "the row",
    ("models/centralized/__init__.py", "ials"): "the row",
    ("bouquet/methods/fed3cr.py", "ace"): "a value of fed3cr-enhancement: the plug-in is a part of this method",
    ("client_app/personalization/fed3cr.py", "ace"): "the same",
    ("bouquet/methods/plgc.py", "fedrap"): "the one method whose own two tables it can mix",
    **{("bouquet/methods/local.py", name): "what to choose instead" for name in ("fcf", "fedavg", "fedrap", "pfedrec")},
}


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Every text in the code of a file, but for those that stand alone as a statement, as docstrings do."""
    tree = ast.parse(path.read_text(), str(path))
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.lineno, node.value


def homes(name: str) -> set[str]:
    """The files of a method: its manifest, its halves, and what begins with its name beside these."""
    method = ALL[name]
    places = [method.device, method.strategy if isinstance(method, Method) else None]
    found = {place.partition(":")[0].replace(".", "/") + ".py" for place in places if place}
    folders = ("bouquet/methods", "strategies", "strategies/sums", "client_app/personalization", "client_app/sums")
    for folder in folders:
        found |= {f"{folder}/{path.name}" for path in (REPOSITORY / folder).glob(f"{name.replace('-', '_')}*.py")}
    for path in (REPOSITORY / "bouquet" / "methods").glob("*.py"):
        if re.search(rf'^    name="{name}",$', path.read_text(), re.MULTILINE):
            found.add(f"bouquet/methods/{path.name}")
    return found


def strangers(root: Path) -> list[str]:
    """Every text of the program that names a method, or one of its settings, in another file than the method's own."""
    found = []
    for path in sources(root):
        place = path.relative_to(root).as_posix()
        for line, text in texts(path):
            for name in ALL:
                if name in WORDS:
                    named = text == name and place not in WORDS[name]
                else:
                    named = re.search(rf"(?<![\w-]){name}(?!\w)", text) is not None
                if named and (place, name) not in ALLOWED and place not in homes(name):
                    found.append(f"{place}:{line}: {name}")
    return found


def test_no_method_is_named_outside_its_own_files():
    assert strangers(REPOSITORY) == []
    for name, places in WORDS.items():
        for place in places:
            assert name in {text for _, text in texts(REPOSITORY / place)}, f"{place} needs no exception any more"
    for place, name in ALLOWED:
        assert any(name in text for _, text in texts(REPOSITORY / place)), f"{place} needs no exception any more"


@pytest.mark.parametrize("code", ["if strategy == 'fedca': pass", "raise E(f'{x}: take fedca-solver')", "A = {'ace'}"])
def test_a_planted_name_is_found(tmp_path, code):
    (tmp_path / "bouquet").mkdir()
    (tmp_path / "bouquet" / "bad.py").write_text(f'"""Of fedca."""\n{code}\n')
    assert len(strangers(tmp_path)) == 1


@pytest.mark.parametrize("name", ALL)
def test_the_settings_of_a_method_begin_with_its_name(name):
    """Or they are of a part that several hold, or of a plug-in that the method builds on."""
    shared = {field for part in vars(parts).values() if hasattr(part, "model_fields") for field in part.model_fields}
    shared |= {field for plug_in in PLUG_INS.values() if plug_in for field in plug_in.options.model_fields}
    for field in ALL[name].options.model_fields:
        assert field.startswith(f"{name.replace('-', '_')}_") or field in shared, field


FORMERLY = {old: new for part in option_classes() for old, new in part.formerly.items()}


@pytest.mark.parametrize("old", FORMERLY)
def test_a_key_that_was_renamed_is_refused_with_the_new_one(old):
    with pytest.raises(ConfigError, match=rf"There is no setting '{old}'. It is now .*'{FORMERLY[old]}'"):
        check({old: 1}, option_classes())
    assert FORMERLY[old].replace("-", "_") in {field for part in option_classes() for field in part.model_fields}
