"""The configuration files of the project can be run."""

from __future__ import annotations

import pytest

from bouquet.experiments.settings import resolve
from tests.conftest import REPOSITORY

CONFIGS = sorted((REPOSITORY / "configs").glob("*.toml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_key_and_value_is_allowed(path):
    assert resolve(path, [])["dataset"] in path.stem


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_it_says_how_to_run_it(path):
    assert f"#   bouquet run --config configs/{path.name}" in path.read_text()
