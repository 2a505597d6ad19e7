"""What a command says to the program that called it."""

from __future__ import annotations

import pytest

from bouquet.errors import ERROR_FILE, BouquetError, ConfigError, Diverged, MissingPackage, RunFailed, tell, told


@pytest.mark.parametrize("kind", [ConfigError, MissingPackage, RunFailed, Diverged, BouquetError])
def test_who_calls_a_command_gets_the_error_that_ended_it(tmp_path, monkeypatch, kind):
    """A narrower error, too: who catches `RunFailed` catches training that ran away."""
    monkeypatch.setenv(ERROR_FILE, str(tmp_path / "error.json"))
    assert told(tmp_path / "error.json") is None
    tell(kind("It ended."))
    found = told(tmp_path / "error.json")
    assert type(found) is kind
    assert str(found) == "It ended."


def test_an_error_of_a_kind_that_is_not_known_here_is_told_by_its_sentence(tmp_path):
    (tmp_path / "error.json").write_text('{"kind": "Elsewhere", "sentence": "It ended."}')
    found = told(tmp_path / "error.json")
    assert type(found) is BouquetError
    assert str(found) == "It ended."
