"""`bouquet explain`: what a setting means, read from the classes that check it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

import tomli_w
from pydantic.fields import FieldInfo

from bouquet.cli.compare import table_of, wide_console
from bouquet.cli.settings import option_classes
from bouquet.config import Options, RunConfig, did_you_mean
from bouquet.errors import ConfigError
from client_app.personalization import DEVICE_SIDES, PERSONALIZATIONS
from data_partition import DATASETS
from models import BACKBONES
from strategies import STRATEGIES

METHODS: dict[str, Mapping[str, Any]] = {
    "strategy": STRATEGIES,
    "personalization": PERSONALIZATIONS,
    "backbone": BACKBONES,
}
TYPES: dict[Any, str] = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


@dataclass(frozen=True)
class Setting:
    """One key in one class of settings.

    Attributes:
        key: kebab-case.
        group: what the class is about.
        owners: "strategy fedavg", …: the methods that have it; empty: every run has it.
        field: the pydantic field.
    """

    key: str
    group: str
    owners: tuple[str, ...]
    field: FieldInfo


def explain_command(key: str) -> None:
    """Print what one setting means, or the list of all.

    Raises:
        ConfigError: there is no such setting.
    """
    everything = settings()
    if not key:
        _print_all(everything)
        return
    key = key.replace("_", "-")
    found = [setting for setting in everything if setting.key == key]
    if not found:
        near = did_you_mean(key, (setting.key for setting in everything))
        raise ConfigError(f"There is no setting '{key}'.{near}")
    console = wide_console()
    for setting in found:
        table = table_of("", "", left=2)
        table.show_header = False
        table.add_row("default", literal(setting.field.default))
        table.add_row("allowed", allowed(setting))
        table.add_row("belongs to", ", ".join(setting.owners) or "every run")
        table.add_row("set it with", f"-c '{key}={literal(setting.field.default)}', or a line in a --config file")
        console.print(f"{key}: {setting.field.description}\n", markup=False)
        console.print(table, markup=False)


def settings() -> list[Setting]:
    """Every setting, grouped: those of all runs first, then each method's own.

    A key that several classes share with one meaning, as a class and its sub-class do, is listed once.
    """
    found: dict[tuple[str, str], Setting] = {}
    for options in option_classes():
        owners = _owners(options)
        for part in _parts(options):
            for name in part.model_fields:
                field = options.model_fields[name]
                setting = Setting(name.replace("_", "-"), _first_line(part), owners, field)
                meaning = (setting.key, f"{field.description} {field.annotation} {field.default!r} {field.metadata}")
                if meaning in found:
                    together = dict.fromkeys([*found[meaning].owners, *owners])
                    setting = Setting(setting.key, found[meaning].group, tuple(together), field)
                found[meaning] = setting
    return list(found.values())


def allowed(setting: Setting) -> str:
    """The values that a setting takes, in words."""
    if setting.key in METHODS:
        return ", ".join(sorted(METHODS[setting.key]))
    if setting.key == "dataset":
        return ", ".join([*DATASETS, "file"])
    choices = get_args(setting.field.annotation)
    if choices:
        return ", ".join(map(str, choices))
    words = [TYPES[setting.field.annotation]]
    for bound in setting.field.metadata:
        words += [f"{text} {getattr(bound, name)}" for name, text in BOUNDS.items() if hasattr(bound, name)]
    return ", ".join(words)


def literal(value: object) -> str:
    """A value as TOML writes it."""
    return tomli_w.dumps({"value": value}).removeprefix("value = ").rstrip()


def _parts(options: type[Options]) -> list[type[Options]]:
    """The classes that a reader knows a class's settings by: `RunConfig` is no more than the sum of its parts."""
    if options is RunConfig:
        return [base for base in RunConfig.__bases__ if issubclass(base, Options)]
    return [options]


def _owners(options: type[Options]) -> tuple[str, ...]:
    return tuple(
        f"{kind} {name}"
        for kind, table in (*METHODS.items(), ("strategy", DEVICE_SIDES))
        for name, method in sorted(table.items())
        if getattr(method, "options_class", None) is options
    )


def _first_line(part: type[Options]) -> str:
    return (part.__doc__ or part.__name__).strip().split("\n")[0].rstrip(".")


def _print_all(everything: list[Setting]) -> None:
    console = wide_console()
    groups: dict[tuple[str, tuple[str, ...]], list[Setting]] = {}
    for setting in everything:
        groups.setdefault((setting.group, setting.owners), []).append(setting)
    for (group, owners), members in groups.items():
        of_whom = f" ({', '.join(owners)})" if owners else ""
        console.print(f"{group}{of_whom}\n", markup=False)
        table = table_of("", "", "", left=3)
        table.show_header = False
        for setting in members:
            table.add_row(f"  {setting.key}", literal(setting.field.default), setting.field.description)
        console.print(table, markup=False)
        console.print()
    console.print("More about one of them: bouquet explain KEY")
