"""Methods, backbones and data sets of other packages: found by name, and refused in a sentence."""

from __future__ import annotations

import subprocess
import sys

import pytest

import bouquet.installed
from bouquet.config import Options, lookup
from bouquet.errors import ConfigError
from bouquet.experiments.settings import resolve
from bouquet.extend import Backbone, Dataset, Field, Method, PlugIn, RawData, ServerOptimizerOptions
from bouquet.installed import Entry, Names
from bouquet.methods import METHODS, PLUG_INS
from data_partition import DATASETS, load
from models import BACKBONES
from tests.conftest import REPOSITORY

TABLES = {"strategy": METHODS, "personalization": PLUG_INS, "backbone": BACKBONES, "dataset": DATASETS}


class MineOptions(ServerOptimizerOptions):
    """Of a method that is not ours."""

    mine_rate: float = Field(1.0, gt=0, description="A rate.")


MINE = Method("mine", "Mine", MineOptions, "strategies.averaging:FedAvg")


@pytest.fixture
def install(monkeypatch):
    """`install(group, name=object)` adds entry points, as if packages had them."""
    groups: dict[str, list[Entry]] = {}
    monkeypatch.setattr(bouquet.installed, "entries", lambda group: groups.get(group, []))

    def add(group, package="theirs 1.0", problem="", **values):
        for name, value in values.items():
            name = name.replace("_", "-")
            groups.setdefault(group, []).append(Entry(name, package, f"{name} = theirs:IT", value, problem))
        for table in TABLES.values():
            table.__dict__.pop("_installed", None)

    yield add
    for table in TABLES.values():
        table.__dict__.pop("_installed", None)


def refusal(kind, name):
    with pytest.raises(ConfigError) as caught:
        lookup(TABLES[kind], kind, name)
    return str(caught.value)


def test_a_method_of_another_package_is_one_of_all(install):
    install("bouquet.methods", mine=MINE)
    assert lookup(METHODS, "strategy", "mine") is MINE
    assert list(METHODS)[-1] == "mine"
    assert len(METHODS) == len(list(METHODS))
    assert "mine" not in PLUG_INS
    settings = resolve(None, ['strategy="mine" mine-rate=2.0'])
    assert settings["mine-rate"] == 2.0
    with pytest.raises(ConfigError, match="'mine-rate' is a setting of mine, and this run uses fcf, mf"):
        resolve(None, ['strategy="fcf" mine-rate=2.0'])


def test_a_plug_in_is_among_the_personalizations(install):
    class TheirOptions(Options):
        """Of a plug-in."""

        theirs_rate: float = 1.0

    install("bouquet.methods", theirs=PlugIn("theirs", "Theirs", TheirOptions, "theirs:It", "nothing", "nothing"))
    assert lookup(PLUG_INS, "personalization", "theirs").title == "Theirs"
    assert "theirs" not in METHODS
    with pytest.raises(ConfigError, match="names 'theirs:It', which cannot be imported: No module named 'theirs'"):
        resolve(None, ['personalization="theirs"'])


def test_a_backbone_and_a_data_set(install):
    class Theirs(Backbone):
        """Of which nothing is asked yet."""

    install("bouquet.backbones", theirs=Theirs)
    assert lookup(BACKBONES, "backbone", "theirs") is Theirs
    read = DATASETS["wikipedia"].read
    install("bouquet.datasets", shop=Dataset("shop", "Shop", (), read, True, "ours"))
    assert lookup(DATASETS, "dataset", "shop").title == "Shop"


def test_a_data_set_of_another_package_is_loaded(install, tmp_path):
    import pandas as pd

    def read(folder):
        return RawData(pd.read_csv(folder / "shop.csv"), in_order=True)

    (tmp_path / "shop.csv").write_text("user,item,time\na,x,1\na,y,2\nb,y,1\nb,x,3\n")
    install("bouquet.datasets", shop=Dataset("shop", "Shop", ("shop.csv",), read, True, "ours"))
    assert load("shop", str(tmp_path)).num_items == 2


class Foreign(Options):
    """Whose keys could be anybody's."""

    rate: float = 1.0


class Stolen(Options):
    """Keys that every run has, under a name that seems to allow it."""

    update_clip: float = 1.0


class NoDefault(Options):
    """A run without this method would not know it."""

    mine_rate: float


WRONG = {
    "another type": ("strategy", "mine", {"name": "mine"}, "it is of the type dict, and neither a Method nor a PlugIn"),
    "another name": ("strategy", "yours", MINE, "its manifest calls it 'mine'"),
    "foreign keys": (
        "strategy",
        "mine",
        Method("mine", "", Foreign, ""),
        "its setting 'rate' must begin with its name, as in 'mine-rate'",
    ),
    "keys of all": (
        "strategy",
        "update",
        Method("update", "", Stolen, ""),
        "its setting 'update-clip' means something else already",
    ),
    "no default": (
        "strategy",
        "mine",
        Method("mine", "", NoDefault, ""),
        "its setting 'mine-rate' has no default that is allowed",
    ),
    "no options": ("strategy", "mine", Method("mine", "", dict, ""), "its options are no class of Options"),
    "no backbone": ("backbone", "mine", Options, "it is no class of Backbone"),
    "no data set": ("dataset", "mine", 3, "it is of the type int, and no Dataset"),
    "no reader": ("dataset", "mine", Dataset("mine", "", (), None, True, ""), "it has no reader"),
}
GROUPS = {"strategy": "bouquet.methods", "backbone": "bouquet.backbones", "dataset": "bouquet.datasets"}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_to_who_asks_for_it(install, case):
    kind, name, value, why = WRONG[case]
    install(GROUPS[kind], **{name: value})
    start = f"The {kind} '{name}' of theirs 1.0 ('{name} = theirs:IT' in {GROUPS[kind]}) cannot be used: "
    assert refusal(kind, name) == f"{start}{why}."
    assert name not in list(TABLES[kind])
    assert resolve(None, ['strategy="fcf"'])["strategy"] == "fcf"


def test_a_name_of_ours_stays_ours_and_who_names_it_hears_of_it(install):
    install("bouquet.methods", fcf=Method("fcf", "", MineOptions, ""))
    assert METHODS["fcf"].title.startswith("FCF")
    assert resolve(None, [])["strategy"] == "fedavg"
    with pytest.raises(ConfigError, match="strategy 'fcf' of theirs 1.0 .* bouquet has one of this name itself"):
        resolve(None, ['strategy="fcf"'])
    install("bouquet.methods", plgc=Method("plgc", "", MineOptions, ""))
    assert "bouquet has a method of this name itself" in refusal("strategy", "plgc")


def test_one_name_of_two_packages_is_neither_ones(install):
    install("bouquet.methods", mine=MINE)
    install("bouquet.methods", package="others 2.0", mine=MINE)
    assert "has one of this name, too" in refusal("strategy", "mine")


def test_a_typing_mistake_is_met_with_names_of_all_packages(install):
    install("bouquet.methods", my_method=Method("my-method", "", Options, "strategies.averaging:FedAvg"))
    assert "Did you mean 'my-method'?" in refusal("strategy", "my-metod")


def test_other_tables_are_plain():
    with pytest.raises(ConfigError, match=r"There is no fruit 'aple'. Did you mean 'apple'\? Known: apple."):
        lookup({"apple": 1}, "fruit", "aple")


def test_a_built_in_name_reads_no_entry_points(monkeypatch):
    def never(group):
        raise AssertionError(group)

    monkeypatch.setattr(bouquet.installed, "entries", never)
    names = Names({"a": 1}, "bouquet.nothing", lambda name, value: "")
    assert names["a"] == 1
    assert "a" in names
    with pytest.raises(AssertionError, match=r"bouquet\.nothing"):
        names.get("b")


def python(folder, code, *arguments):
    """Run code where the distribution `theirs` is installed, in a process of its own."""
    path = f"import sys; sys.path[:0] = [{str(folder)!r}, {str(REPOSITORY)!r}]"
    command = [sys.executable, "-c", f"{path}; {code}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=folder)


@pytest.fixture
def distribution(tmp_path):
    """`distribution(source)` is a folder with a package of one module, whose entry 'mine' is theirs:IT."""

    def write(source):
        (tmp_path / "theirs.py").write_text(source)
        about = tmp_path / "theirs-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text("[bouquet.methods]\nmine = theirs:IT\n")
        return tmp_path

    return write


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import nowhere\n", "importing it raises ModuleNotFoundError: No module named 'nowhere'"),
        ("1 / 0\n", "importing it raises ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit()\n", "importing it raises SystemExit"),
        ("broken broken\n", "importing it raises SyntaxError: invalid syntax"),
        ("", "importing it raises AttributeError: module 'theirs' has no attribute 'IT'"),
    ],
)
def test_a_real_package_that_cannot_be_imported(distribution, source, why):
    """One sentence from the program, and other names go on."""
    folder = distribution(source)
    program = "from bouquet.cli.main import main; main()"
    done = python(folder, program, "run", "-c", 'strategy="mine"')
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("The strategy 'mine' of theirs 1.0 ('mine = theirs:IT' in bouquet.methods) cannot be used: ")
    assert why in line
    explained = python(folder, program, "explain", "strategy")
    assert explained.returncode == 0
    assert "cannot be used" in explained.stdout


WHOLE = """
from bouquet.extend import FedAvg, Field, Method, ServerOptimizerOptions

class Mine(FedAvg):
    pass

IT = Method("mine", "Mine", ServerOptimizerOptions, "theirs:Mine")
"""


@pytest.mark.parametrize("first", ["import theirs", "import bouquet.methods", "import strategies, client_app.app"])
def test_a_package_may_import_bouquet_before_and_after(distribution, first):
    """A method in one file imports the server's half with its manifest, which bouquet may be about to read."""
    code = f"{first}; from bouquet.methods import METHODS; from bouquet.methods.manifest import class_at"
    code += "; import theirs; made = METHODS['mine']"
    done = python(distribution(WHOLE), f"{code}; assert made is theirs.IT; print(class_at(made.strategy))")
    assert done.stdout.strip() == "<class 'theirs.Mine'>", done.stderr
