"""`bouquet explain` knows every setting."""

from __future__ import annotations

import pytest

from bouquet.cli.explain import allowed, settings
from bouquet.config import defaults
from bouquet.experiments.settings import option_classes


def setting(key):
    (found,) = [entry for entry in settings() if entry.key == key]
    return found


def test_every_setting_is_listed_once(bouquet):
    assert {entry.key for entry in settings()} == set(defaults(option_classes()))
    ended = bouquet("explain")
    assert ended.status == 0
    keys = [line.split()[0] for line in ended.out.splitlines() if line.startswith("  ") and line[2] != " "]
    assert sorted(keys) == sorted(entry.key for entry in settings())


def test_every_setting_says_what_it_means():
    for entry in settings():
        assert entry.field.description, entry.key
        assert allowed(entry), entry.key


def test_one_setting(bouquet):
    ended = bouquet("explain", "train-negatives")
    assert ended.status == 0
    assert ended.out.startswith("train-negatives: Where training negatives are drawn from")
    assert '"honest"' in ended.out
    assert "honest, paper" in ended.out
    assert "every run" in ended.out


def test_underscores_are_understood(bouquet):
    assert bouquet("explain", "learning_rate").out == bouquet("explain", "learning-rate").out


def test_a_methods_own_setting_names_the_methods():
    owners = setting("server-learning-rate").owners
    assert {"strategy fcf", "strategy fedavg"} <= set(owners)
    assert "strategy local" not in owners
    assert setting("seed").owners == ()


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("learning-rate", "a number, above 0"),
        ("fraction-train", "a number, above 0, at most 1"),
        ("num-server-rounds", "a whole number, at least 1"),
        ("data-dir", "text"),
        ("split", "leave-one-out, ratio, published"),
    ],
)
def test_allowed_values(key, words):
    assert allowed(setting(key)) == words


def test_names_are_allowed_values():
    assert "fedavg" in allowed(setting("strategy")).split(", ")
    assert {"ml-100k", "file"} <= set(allowed(setting("dataset")).split(", "))


def test_an_unknown_setting(bouquet):
    ended = bouquet("explain", "lerning-rate")
    assert ended.status == 2
    assert ended.err == "There is no setting 'lerning-rate'. Did you mean 'learning-rate'?\n"


def test_a_setting_of_a_device_side_belongs_to_its_strategy(bouquet):
    shown = bouquet("explain", "fed3cr-beta-a")
    assert "strategy fed3cr" in shown.out
    refused = bouquet("run", "-c", 'strategy="fcf" fed3cr-beta-a=0.5')
    assert "'fed3cr-beta-a' is a setting of fed3cr, and this run uses fcf, mf." in refused.err
