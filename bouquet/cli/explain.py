"""`bouquet explain`: what a setting means, read from the classes that check it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

from pydantic.fields import FieldInfo

from bouquet.cli.compare import table_of, wide_console
from bouquet.config import Options, did_you_mean
from bouquet.errors import ConfigError
from bouquet.experiments.settings import NAMES, literal, option_classes, option_owners
from bouquet.installed import Names
from data_partition import FILE

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
    table_of_names = NAMES.get(key)
    for name, why in table_of_names.refused.items() if isinstance(table_of_names, Names) else ():
        console.print(f"\nThe {key} '{name}' {why}", markup=False)


def settings() -> list[Setting]:
    """Every setting, grouped: those of all runs first, then each method's own.

    A key that several classes share with one meaning, as a class and its sub-class do, is listed once.
    """
    found: dict[tuple[str, str], Setting] = {}
    for options in option_classes():
        owners = _owners(options)
        for name, field in options.model_fields.items():
            setting = Setting(name.replace("_", "-"), _first_line(_home(options, name)), owners, field)
            meaning = (setting.key, f"{field.description} {field.annotation} {field.default!r} {field.metadata}")
            if meaning in found:
                together = dict.fromkeys([*found[meaning].owners, *owners])
                setting = Setting(setting.key, found[meaning].group, tuple(together), field)
            found[meaning] = setting
    return list(found.values())


def allowed(setting: Setting) -> str:
    """The values that a setting takes, in words."""
    if setting.key == "dataset":
        return ", ".join([*NAMES["dataset"], FILE])
    if setting.key in NAMES:
        return ", ".join(sorted(NAMES[setting.key]))
    choices = get_args(setting.field.annotation)
    if choices:
        return ", ".join(map(str, choices))
    extra = setting.field.json_schema_extra
    if isinstance(extra, dict) and "form" in extra:
        return str(extra["form"])
    words = [TYPES[setting.field.annotation]]
    for bound in setting.field.metadata:
        words += [f"{text} {getattr(bound, name)}" for name, text in BOUNDS.items() if hasattr(bound, name)]
    return ", ".join(words)


def _home(options: type[Options], name: str) -> type[Options]:
    """The class that a reader knows a setting by: what a class is put together from, as `RunConfig` is."""
    return next(part for part in options.__mro__ if issubclass(part, Options) and name in part.__annotations__)


def _owners(options: type[Options]) -> tuple[str, ...]:
    return tuple(f"{kind} {name}" for kind, name, part in option_owners() if part is options)


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
