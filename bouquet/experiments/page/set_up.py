"""What was run: settings, what differs between methods first, versions, and the way to make it again."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from bouquet.config import Scalar, defaults
from bouquet.experiments.page import markup
from bouquet.experiments.page.content import Content, Shown
from bouquet.experiments.page.examples import examples_of
from bouquet.experiments.page.markup import text
from bouquet.experiments.page.results import title_of
from bouquet.experiments.settings import literal, option_classes


def settings_section(content: Content) -> str:
    """Settings of all methods; with one of them, those that are not as they come."""
    methods = content.methods
    by_method = [shown.settings() for shown in methods]
    keys = list(dict.fromkeys(key for settings in by_method for key in settings))
    differing = [key for key in keys if len({_word(settings, key) for settings in by_method}) > 1]
    meaning = _meanings()
    if len(methods) > 1:
        header = ["setting", *(title_of(shown) for shown in methods), "what it is"]
        first = _table("What differs between them.", header, differing, by_method, meaning)
        words = "Everything else is the same." if differing else "All settings are the same; the runs differ in seeds."
    else:
        usual = defaults(option_classes())
        differing = [key for key in keys if key in usual and by_method[0][key] != usual[key]]
        header = ["setting", "value", "default", "what it is"]
        first = _table("What is not at its default.", header, differing, [by_method[0], usual], meaning)
        words = "Everything else is at its default." if differing else "Every setting is at its default."
    everything = markup.table(
        "All settings.",
        ["setting", *(title_of(shown) for shown in methods)],
        [[f"<code>{text(key)}</code>", *(_cell(settings, key) for settings in by_method)] for key in keys],
    )
    return markup.section(
        "settings",
        "Settings",
        first if differing else "",
        markup.paragraph(words),
        f"<details><summary>All settings</summary>{everything}</details>",
        f"<details><summary>Runs, engines and versions</summary>{_runs(methods)}</details>",
    )


def _table(
    caption: str,
    header: Sequence[str],
    keys: Sequence[str],
    columns: Sequence[Mapping[str, Scalar]],
    meaning: Mapping[str, str],
) -> str:
    lines = [
        [f"<code>{text(key)}</code>", *(_cell(column, key) for column in columns), text(meaning.get(key, ""))]
        for key in keys
    ]
    return markup.table(caption, header, lines, wide=[len(header) - 1])


def _word(settings: Mapping[str, Scalar], key: str) -> str:
    value = settings.get(key, "–")
    return value if isinstance(value, str) and value else literal(value)


def _cell(settings: Mapping[str, Scalar], key: str) -> str:
    return text(_word(settings, key))


def _meanings() -> dict[str, str]:
    found: dict[str, str] = {}
    for part in option_classes():
        for name, field in part.model_fields.items():
            found.setdefault(name.replace("_", "-"), field.description or "")
    return found


def _runs(methods: Sequence[Shown]) -> str:
    lines = []
    for shown in methods:
        for folder, run in zip(shown.folders, shown.result.runs, strict=True):
            engine, versions = folder.engine(), _versions(folder.config.read_text())
            where = " ".join(str(engine[name]) for name in ("engine", "model") if name in engine)
            nodes = f"{engine['nodes']} nodes" if "nodes" in engine else ""
            lines.append(
                [
                    title_of(shown),
                    str(run.summary["seed"]),
                    text(", ".join(filter(None, [where, nodes]))),
                    text(", ".join(f"{name} {number}" for name, number in versions.items())),
                ]
            )
    return markup.table("Every run.", ["method", "seed", "engine", "versions"], lines, wide=[2, 3])


def _versions(document: str) -> dict[str, Any]:
    return dict(tomllib.loads(document).get("versions", {}))


def examples_section(content: Content, count: int) -> str:
    """What a few users would be shown by the first method that kept it; empty where none did."""
    for shown in content.methods:
        run, folder = shown.first, shown.folders[0]
        found = examples_of(folder, int(run.summary.get("best_round") or 0), count)
        if found:
            lists = "".join(
                f"<div><h3>User {text(example.user)}</h3><ol>"
                f"{''.join(f'<li>{text(item)}</li>' for item in example.items)}</ol></div>"
                for example in found
            )
            words = f"What {title_of(shown)} would show to {len(found)} of the users, best first."
            return markup.section(
                "examples", "Recommendations", markup.paragraph(words), f'<div class="lists">{lists}</div>'
            )
    return ""
