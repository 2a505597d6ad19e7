"""The documents say what is so: links lead somewhere, commands and settings exist, examples run."""

from __future__ import annotations

import json
import re
import shlex
import sys
import tomllib
import types
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import click
import pytest
import typer.main

import bouquet
from bouquet import __version__
from bouquet.cli.explain import settings
from bouquet.cli.main import app
from bouquet.config import check, wrong_options
from bouquet.experiments.search_file import RowEntry, SearchFile, read_search_file, rows_of
from bouquet.experiments.settings import option_classes, parse_pairs, validate
from bouquet.experiments.table_file import Row, TableFile
from bouquet.methods import METHODS, PLUG_INS
from bouquet.methods.manifest import Method
from bouquet.wire import EVALUATE_ARRAYS, REPORTS, ROSTER_ARRAYS, TRAIN_ARRAYS
from data_partition import DATASETS
from models.centralized import CENTRALIZED
from strategies.federation.base import BaseStrategy
from tests.conftest import REPOSITORY
from tests.runs.helpers import run_here, small_settings

DOCUMENTS = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
# Files that a page tells its reader to write.
TO_BE_WRITTEN = {"bouquet/methods/clipped.py", "strategies/clipped.py"}
TOP = "bouquet|client_app|configs|data_partition|docs|models|server_app|strategies|tests"
PAPERS = ("FedCA", "Fed3CR", "HeteFedRec", "PLGC", "CF-FedSR")
ALL = {**METHODS, **PLUG_INS}

each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))


@dataclass(frozen=True)
class Code:
    """Text that a document sets as code: a fenced block with its language, or words in back-ticks (language "")."""

    language: str
    text: str
    inline: bool


FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`]+)`")


def codes(document: Path) -> Iterator[Code]:
    """All code of a document."""
    text = document.read_text()
    for match in FENCE.finditer(text):
        yield Code(match[1], match[2], inline=False)
    for match in INLINE.finditer(FENCE.sub("", text)):
        yield Code("", " ".join(match[1].split()), inline=True)


def commands(document: Path) -> Iterator[tuple[list[str], bool]]:
    """Every command line as words, and whether it stands in running text, where arguments may be left out."""
    for code in codes(document):
        if code.inline and re.match(r"(bouquet|flwr|make) [a-z]", code.text):
            yield words_of(code.text), True
        if code.language == "console":
            for line in re.sub(r"\\\n\s*", "", code.text).splitlines():
                if line.startswith("$ "):
                    yield words_of(line.removeprefix("$ ")), False


def words_of(line: str) -> list[str]:
    """The words of a command line, without variables in front of it and comments behind it."""
    words = shlex.split(line, comments=True)
    while words and re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    return words


@cache
def program(name: str) -> click.Command:
    """The command line of a program."""
    if name == "flwr":
        from flwr.cli.app import app as flower

        return typer.main.get_command(flower)
    return typer.main.get_command(app)


def parsed(words: list[str], incomplete: bool) -> dict[str, object]:
    """The parameters of a command line, parsed by the program itself and not carried out."""
    command, rest = program(words[0]), words[1:]
    context = click.Context(command)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        found = command.get_command(context, rest[0])
        assert found is not None, f"there is no command '{' '.join(words[: len(words) - len(rest) + 1])}'"
        command, rest = found, rest[1:]
    try:
        return command.make_context(words[0], rest).params
    except (click.MissingParameter, click.BadOptionUsage):
        if incomplete:
            return {}
        raise
    except click.exceptions.NoArgsIsHelpError:
        return {}


# -- tests -----------------------------------------------------------------------------------------------------------


@each_document
def test_links_lead_somewhere(document):
    text = FENCE.sub("", document.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?://|mailto:", target):
            continue
        name, _, heading = unquote(target).partition("#")
        path = (document.parent / name).resolve() if name else document
        assert path.exists(), f"{document.name} links to {target}, which is not there"
        if heading:
            assert heading in headings(path), f"{document.name} links to {target}, and there is no such heading"


def headings(path: Path) -> set[str]:
    """The names under which headings can be linked to."""
    found = re.findall(r"^#+ (.+)$", FENCE.sub("", path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@each_document
def test_commands_exist_with_their_options(document):
    for words, incomplete in commands(document):
        if words[0] not in ("bouquet", "flwr"):
            continue
        try:
            parameters = parsed(words, incomplete)
        except click.ClickException as error:
            pytest.fail(f"{document.name}: {shlex.join(words)}: {error.format_message()}")
        overrides = parameters.get("override") or parameters.get("run_config_overrides") or []
        for text in overrides if isinstance(overrides, list | tuple) else []:
            if str(text).endswith(".toml"):
                assert (REPOSITORY / str(text)).exists(), f"{document.name}: there is no {text}"
            else:
                check_settings(parse_pairs(str(text)), f"{document.name}: {shlex.join(words)}")


def check_settings(given: dict[str, Any], where: str) -> None:
    """Settings that an example gives must be valid, and those that an example of an error gives must exist."""
    if given.get("strategy") == "fcaf":
        given = given | {"strategy": "fcf"}
    try:
        check(given, option_classes())
        if given.get("dataset") != "file" or "data-file" in given:
            validate({key: value for key, value in given.items() if key != "resume"})
    except Exception as error:
        pytest.fail(f"{where}: {error}")


@each_document
def test_make_targets_exist(document):
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    for words, _ in commands(document):
        if words and words[0] == "make":
            assert set(words[1:]) <= targets, f"{document.name}: {shlex.join(words)}"


@each_document
def test_settings_in_running_text_exist(document):
    """`key = value` and `key=value` in back-ticks, where the value is one that TOML knows."""
    known = {setting.key for setting in settings()}
    for code in codes(document):
        match = re.fullmatch(r"([a-z][a-z0-9-]*) ?= ?(\S.*)", code.text) if code.inline else None
        if match:
            assert match[1] in known, f"{document.name}: `{code.text}`: there is no setting '{match[1]}'"
            beside = {"update-clip": 1.0} if match[1] == "update-noise" else {}
            check_settings({**beside, **parse_pairs(code.text.replace(" = ", "="))}, document.name)


@each_document
def test_settings_in_toml_examples_exist(document, tmp_path):
    for code in codes(document):
        if code.language != "toml":
            continue
        example = tomllib.loads(code.text)
        if "trials" in example:
            (tmp_path / "search.toml").write_text(code.text)
            rows_of(read_search_file(tmp_path / "search.toml"), tmp_path, [])
        elif "rows" in example:
            for row in TableFile.model_validate(example).rows:
                check_settings({**example["settings"], **row.settings}, document.name)
        else:
            check_settings(example, document.name)


@each_document
def test_files_of_the_repository_that_are_named_exist(document):
    for code in codes(document):
        for name in re.findall(rf"(?<![\w/.<-])(?:{TOP})/[\w./-]+\.(?:py|toml|md)\b", code.text):
            if name not in TO_BE_WRITTEN:
                assert (REPOSITORY / name).exists(), f"{document.name} names {name}, which is not there"


@each_document
def test_no_document_names_a_path_of_a_machine(document):
    found = re.findall(r"(?<![\w.~])/(?:work|root|tmp|home|Users|mnt|opt)/\S*", document.read_text())
    assert found == []


def test_everything_that_has_a_name_is_in_the_documents():
    table = (REPOSITORY / "docs" / "how-to" / "make-a-results-table.md").read_text()
    for name in [*CENTRALIZED, *(field.replace("_", "-") for field in Row.model_fields if field != "label")]:
        assert name in table, f"make-a-results-table.md does not know {name}"
    search = (REPOSITORY / "docs" / "how-to" / "search-settings.md").read_text()
    for name in [*SearchFile.model_fields, *RowEntry.model_fields]:
        assert name.replace("_", "-") in search, f"search-settings.md does not know {name}"
    datasets = (REPOSITORY / "docs" / "reference" / "datasets.md").read_text()
    for name, dataset in DATASETS.items():
        line = next((line for line in datasets.splitlines() if line.startswith(f"| `{name}` |")), "")
        assert line, f"datasets.md does not know {name}"
        for word in (*dataset.files, *dataset.extras, dataset.terms.partition(" (Kaggle")[0]):
            assert word in line, f"datasets.md, {name}: {word}"
    figures = (REPOSITORY / "docs" / "results" / "README.md").read_text()
    for path in (REPOSITORY / "configs" / "tables").glob("*.toml"):
        if path.stem.startswith(tuple(f"{name.lower()}-" for name in PAPERS)):
            assert f"`{path.stem}`" in figures, f"results/README.md does not know {path.stem}"
    wire = (REPOSITORY / "docs" / "reference" / "wire-format.md").read_text()
    for name in ROSTER_ARRAYS | TRAIN_ARRAYS | EVALUATE_ARRAYS | REPORTS:
        assert f"`{name}`" in wire, f"wire-format.md does not know {name}"


def test_what_is_called_planned_is_not_there_yet():
    """The sentence in README.md that must change when a method comes."""
    text = " ".join((REPOSITORY / "README.md").read_text().split())
    sentence = text.partition("**not there yet**")[2].partition(".")[0]
    for name in PAPERS:
        assert (name in sentence) == (name.lower() not in ALL), f"README.md must say whether {name} is there"


def test_the_example_of_a_strategy_runs_and_the_summary_is_as_documented(tmp_path, monkeypatch):
    """The modules on the page, entered as the page says, give the same run on 1 and 5 nodes."""
    page = REPOSITORY / "docs" / "how-to" / "add-a-strategy.md"
    blocks = [code.text for code in codes(page) if code.language == "python"]
    modules = [types.ModuleType(name) for name in ("bouquet.methods.clipped", "strategies.clipped")]
    for module, source in zip(modules, blocks, strict=True):
        # Pydantic looks up annotations in the module of a class.
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(compile(source, module.__name__, "exec"), module.__dict__)
    method = modules[0].CLIPPED
    monkeypatch.setitem(METHODS, method.name, method)
    assert wrong_options(method.name, method.options) == ""
    given = small_settings(tmp_path, strategy="clipped", clipped_norm=0.05, clipped_rate=40.0)
    summaries = [run_here(tmp_path / str(nodes), given, nodes).read_summary() for nodes in (1, 5)]
    assert summaries[0]["test"]["full"]["MRR"] == pytest.approx(summaries[1]["test"]["full"]["MRR"], abs=1e-6)
    assert summaries[0]["bytes"]["up_per_user_round"] > 0

    files = (REPOSITORY / "docs" / "reference" / "files.md").read_text()
    documented = files.partition("### `summary.json`")[2].partition("### ")[0]
    for key in summaries[0]:
        assert f"`{key}`" in documented, f"files.md does not know '{key}' of summary.json"
    lines = files.partition("### `metrics.jsonl`")[2].partition("### ")[0]
    for line in (tmp_path / "1" / "metrics.jsonl").read_text().splitlines():
        for key in json.loads(line):
            assert f"`{key}`" in lines, f"files.md does not know '{key}' of metrics.jsonl"


def test_the_page_about_python_runs(tmp_path, monkeypatch, capsys):
    """Its blocks one after another, as in a notebook; it knows every public name and what a run has."""
    monkeypatch.chdir(tmp_path)
    page = REPOSITORY / "docs" / "reference" / "python.md"
    notebook: dict[str, Any] = {}
    for code in codes(page):
        if code.language == "python":
            exec(compile(code.text, page.name, "exec"), notebook)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("<Run of fcf on synthetic: HR@10 0.")
    assert printed[-1] == "There is no setting 'learning-rte'. Did you mean 'learning-rate'?"
    text = page.read_text()
    assert printed[-1] in text
    for name in (*bouquet.__all__, *(name for name in dir(notebook["run"]) if not name.startswith("_"))):
        assert re.search(rf"(bouquet\.|`|`, `){name}\b", text) or name == "__version__", (
            f"python.md does not know {name}"
        )


def test_the_page_about_strategies_knows_what_a_method_decides():
    page = (REPOSITORY / "docs" / "how-to" / "add-a-strategy.md").read_text()
    own = {"update", "weighting", "traveling", "select_users", "personal", "aggregate", "returning"}
    for name in own | {
        "reports",
        "prepare",
        "extra_arrays",
        "restore_extra",
        "finish",
        "users_joined",
        "users_forgotten",
    }:
        assert hasattr(BaseStrategy, name)
        assert f"`{name}" in page
    for field in fields(Method):
        assert f"`{field.name}`" in page, f"add-a-strategy.md does not know {field.name} of a manifest"


def test_the_tutorial_shows_the_files_of_its_package():
    folder = REPOSITORY / "examples" / "my-method"
    test_links_lead_somewhere(folder / "README.md")
    files = [path.read_text() for path in folder.rglob("*") if path.suffix in (".py", ".toml")]
    shown = [code.text for code in codes(folder / "README.md") if code.language in ("python", "toml")]
    assert len(shown) >= 5
    for text in shown:
        assert any(text.strip() in file for file in files), f"no file of the example has:\n{text}"


def test_the_citation_file_is_valid_and_current():
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with Ray")
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["cff-version"] == "1.2.0"
    assert str(citation["version"]) == __version__
    images = re.findall(r":-bouquet(?:-device)?:([\d.]+)", (REPOSITORY / "docker-compose.yml").read_text())
    assert images
    assert images == [__version__] * len(images)
    assert citation["license"] == tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["license"]
    references = {reference["abbreviation"]: reference for reference in citation["references"]}
    assert set(references) == set(PAPERS)
    for reference in references.values():
        assert {"type", "title", "authors"} <= set(reference)


def test_the_checks_find_mistakes(tmp_path):
    """They would be worth nothing if they let these pass."""
    page = tmp_path / "page.md"
    page.write_text("`bouquet run --bananas` and `learning-rte = 0.1` and [gone](gone.md)\n")
    with pytest.raises(AssertionError, match=r"gone\.md"):
        test_links_lead_somewhere(page)
    with pytest.raises(AssertionError, match="learning-rte"):
        test_settings_in_running_text_exist(page)
    with pytest.raises(pytest.fail.Exception, match="bananas"):
        test_commands_exist_with_their_options(page)
    page.write_text("```console\n$ bouquet fly\n```\n")
    with pytest.raises(AssertionError, match="bouquet fly"):
        test_commands_exist_with_their_options(page)
    page.write_text("```console\n$ bouquet run -c 'seeed=1'\n```\n")
    with pytest.raises(pytest.fail.Exception, match="seeed"):
        test_commands_exist_with_their_options(page)
    page.write_text("""```console\n$ flwr run . --run-config 'num-rounds=1'\n```\n""")
    with pytest.raises(pytest.fail.Exception, match="num-rounds"):
        test_commands_exist_with_their_options(page)
