"""The configuration files of the project can be run."""

from __future__ import annotations

import tomllib

import pytest

from bouquet.experiments.settings import literal, resolve
from tests.conftest import REPOSITORY

CONFIGS = sorted((REPOSITORY / "configs").glob("*.toml"))
LOOKS = sorted((REPOSITORY / "configs/looks").glob("*.toml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_key_and_value_is_allowed(path):
    assert resolve(path, [])["dataset"] in path.stem


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_it_says_how_to_run_it(path):
    assert f"#   bouquet run --config configs/{path.name}" in path.read_text()


# The search that each look has its settings from.
CHOSEN = {
    "fedmf": ("ml-100k", "fcf"),
    "fedmf-plgc": ("ml-100k-fedmf-plgc", "fedmf-plgc"),
    "fedmf-mixing": ("ml-100k-plgc-mixing", "mixing"),
    "fed3cr": ("ml-100k-fed3cr", "fed3cr"),
}


@pytest.mark.parametrize("path", LOOKS, ids=lambda path: path.stem)
def test_a_look_is_at_the_best_round_of_what_its_search_chose_and_says_how_to_have_it(path):
    folder, row = CHOSEN[path.stem]
    chosen = tomllib.loads((REPOSITORY / f"configs/chosen/{folder}/chosen.toml").read_text())["rows"][row]
    best = {"num-server-rounds": chosen["best-round"], "evaluate-every": chosen["best-round"], "patience": 0}
    searched = [f"{key}={literal(value)}" for key, value in (chosen["base"] | chosen["settings"] | best).items()]
    assert resolve(path, []) == resolve(None, searched)
    name = path.stem
    assert f"#   bouquet diagnose results/look-{name} --config configs/looks/{name}.toml" in path.read_text()
