"""The pages that are written from what the code declares, and the settings in pyproject.toml, are current.

`python -m tests.test_generated_pages` writes them anew.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import tomli_w

from bouquet.cli.explain import allowed, settings
from bouquet.config import Settings, defaults
from bouquet.experiments.settings import literal, option_classes
from bouquet.methods import METHODS, PLUG_INS
from bouquet.methods.manifest import Method, class_at
from bouquet.needs import bytes_of
from bouquet.reporting.run_directory import RunDirectory
from client_app.node.groups import models_of
from models import BACKBONES, Backbone
from strategies import strategy_of
from strategies.federation.needs import reply_bytes
from strategies.federation.roster import Roster
from tests.conftest import REPOSITORY

CONFIGURATION = REPOSITORY / "docs" / "reference" / "configuration.md"
METHODS_PAGE = REPOSITORY / "docs" / "methods" / "README.md"


def configuration_page() -> str:
    """docs/reference/configuration.md, from the classes that check a configuration."""
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for setting in settings():
        lines = groups.setdefault((setting.group, setting.owners), [])
        cells = (f"`{setting.key}`", f"`{literal(setting.field.default)}`", allowed(setting), setting.field.description)
        lines.append("| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |")
    parts = [
        "# Configuration",
        "<!-- Generated: `.venv/bin/python -m tests.test_generated_pages` writes this page anew. -->",
        "Every setting, its default, and what it can be. Give them with `-c 'key=value key=\"some text\"'`, in a TOML\n"
        "file with `--config`, or both: defaults, then the file, then `-c`. `bouquet explain KEY` says the same. A\n"
        "`config.toml` from a results folder is such a file.",
    ]
    for (group, owners), lines in groups.items():
        of_whom = f"Settings of {', '.join(owners)}." if owners else "Every run has these."
        parts += [
            f"## {group}",
            of_whom,
            "\n".join(["| key | default | allowed | meaning |", "| --- " * 4 + "|", *lines]),
        ]
    return "\n\n".join(parts) + "\n"


def project_settings() -> str:
    """pyproject.toml with every setting and its default in `[tool.flwr.app.config]`."""
    text = (REPOSITORY / "pyproject.toml").read_text()
    head = "[tool.flwr.app.config]\n"
    before, _, after = text.partition(head)
    return before + head + tomli_w.dumps(defaults(option_classes())) + after[after.index("\n[") :]


def methods_page() -> str:
    """docs/methods/README.md, from the manifests."""
    ordered = sorted(METHODS.values(), key=lambda method: method.name)
    methods = [
        "| `strategy` | method | leaves a device | stays there | plug-ins | sequence models |",
        "| --- " * 6 + "|",
        *(
            f"| {linked(m.name)} | {m.title} | {m.sends} | {m.keeps} | {yes(m.plug_ins)} | {yes(m.sequences)} |"
            for m in ordered
        ),
    ]
    traffic = [
        "| `strategy` | the server sees of an update | KB down | KB up | a row in the tables of |",
        "| --- | --- | ---: | ---: | --- |",
        *(
            f"| `{m.name}` | {SEES[class_at(m.strategy).update]} | {' | '.join(kilobytes(m))} | "
            f"{', '.join(m.compared_by) or '–'} |"
            for m in ordered
        ),
    ]
    plug_ins = [
        "| `personalization` | plug-in | leaves a device, too | stays there, too |",
        "| --- " * 4 + "|",
        *(f"| {linked(p.name)} | {p.title} | {p.sends} | {p.keeps} |" for p in PLUG_INS.values() if p),
    ]
    backbones = [
        "| `backbone` | model | reads a history |",
        "| --- " * 3 + "|",
        *(f"| `{name}` | {first_sentence(b)} | {reading(b)} |" for name, b in sorted(BACKBONES.items())),
    ]
    parts = [
        "# Methods",
        "<!-- Generated: `.venv/bin/python -m tests.test_generated_pages` writes this page anew. -->",
        "What a run can be put together from. Histories never leave a device; the\n"
        "[wire format](../reference/wire-format.md) has every array, `bouquet explain` every setting.",
        "## Strategies",
        "\n".join(methods),
        "## What travels, and who compares with it\n\nA device of one person in a round of training, in thousands of "
        "bytes, computed for the size of\nMovieLens-100K (1,682 items, 104 training interactions), `mf` with "
        "`embedding-size = 16`, and the defaults. The papers\nare those of the methods here; they count numbers "
        "of 64 bits and whole tables up, which is more.",
        "\n".join(traffic),
        "## Plug-ins\n\nBefore a strategy that takes them, nearer to the arrays that travel.",
        "\n".join(plug_ins),
        "## Backbones",
        "\n".join(backbones),
    ]
    return "\n\n".join(parts) + "\n"


SEES = {"sum": "a sum over a node's users", "rows": "each user's rows", "cells": "counts of a node's users"}


def kilobytes(method: Method) -> tuple[str, str]:
    """What a user with as many items as one of MovieLens-100K gets and gives in a round, on a node of its own."""
    if method.kind == "sums" or method.sizes:  # depends on who is alike, or on the group
        return "–", "–"
    items, users = 1682, 40
    run = Settings({"strategy": method.name})
    (model,) = models_of(run, items)
    strategy = strategy_of(run, RunDirectory(Path("of nothing")))
    keys = np.arange(1, users + 1, dtype=np.uint64)
    strategy.roster = Roster(keys, np.full(users, 104), keys, users, 104 * users, 0, items, "", model.shared)
    strategy.prepare()
    shared = strategy.initial(strategy.traveling(model.shared))
    own = sum(values.nbytes for values in strategy.personal(np.arange(1)).values())
    down = strategy.down_bytes(strategy.needed(shared), np.arange(users)).mean() + own
    told = sum(4 * math.prod(report.shape) for report in strategy.reports(1, shared).values())
    whole = bytes_of(strategy.returning(model.shared))
    up = (whole if strategy.dense_updates else reply_bytes(strategy) / users) + told
    return f"{down / 1000:.0f}", f"{up / 1000:.0f}"


def linked(name: str) -> str:
    """A method's name, with its page where it has one."""
    return f"[`{name}`]({name}.md)" if (METHODS_PAGE.parent / f"{name}.md").exists() else f"`{name}`"


def yes(fact: bool) -> str:
    return "yes" if fact else "no"


def reading(backbone: type[Backbone]) -> str:
    """How a backbone reads what a user did."""
    if backbone.sequential:
        return "in order"
    return "as a set" if backbone.reads_history else "no"


def first_sentence(backbone: type[Backbone]) -> str:
    """Of the module of a backbone, which names the paper."""
    text = " ".join((sys.modules[backbone.__module__].__doc__ or "").split("\n\n")[0].split())
    return text.rstrip(".")


def test_the_generated_pages_are_current():
    assert METHODS_PAGE.read_text() == methods_page(), "stale; write it: .venv/bin/python -m tests.test_generated_pages"


def test_the_configuration_page_is_current():
    current = CONFIGURATION.exists() and CONFIGURATION.read_text() == configuration_page()
    assert current, f"{CONFIGURATION} is stale; write it again with: .venv/bin/python -m tests.test_generated_pages"


if __name__ == "__main__":
    CONFIGURATION.write_text(configuration_page())
    (REPOSITORY / "pyproject.toml").write_text(project_settings())
    METHODS_PAGE.write_text(methods_page())
    print(f"Written: {CONFIGURATION}, {METHODS_PAGE} and the settings in pyproject.toml")
