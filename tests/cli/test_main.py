"""What the program says of itself."""

from __future__ import annotations

from bouquet import __version__


def test_the_release_and_its_place(bouquet):
    ended = bouquet("--version")
    assert ended.status == 0
    assert ended.out.startswith(f"bouquet {__version__} (/")


def test_a_shell_can_complete_its_commands(monkeypatch, bouquet):
    # What a shell asks when somebody has typed "bouquet expl" and presses the key.
    monkeypatch.setenv("_BOUQUET_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "bouquet expl")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert bouquet().out.split() == ["explain"]
