"""From files and the command line to one checked configuration."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from bouquet.config import (
    DataOptions,
    Options,
    RoundOptions,
    RunConfig,
    Scalar,
    Settings,
    check,
    defaults,
    lookup,
    refuse_broken,
)
from bouquet.config.options import kebab
from bouquet.errors import ConfigError
from bouquet.methods import METHODS, PLUG_INS
from bouquet.ready_made import RUNS, ready_made
from bouquet.reporting.run_directory import RunDirectory
from client_app.node.groups import models_of
from client_app.personalization import check_order
from data_partition import DATASETS
from models import BACKBONES
from strategies import strategy_of

NAMES: dict[str, Mapping[str, Any]] = {
    "strategy": METHODS,
    "personalization": PLUG_INS,
    "backbone": BACKBONES,
    "dataset": DATASETS,
}
"""The settings whose values are names, with their tables."""

OF_A_FILE = ("user-column", "item-column", "time-column", "title-column", "skip-broken-rows")
"""The settings that say how a data-file is read."""

_PAIR = re.compile(r"""\s*(?P<key>[A-Za-z0-9_-]+)\s*=\s*(?P<value>"[^"]*"|'[^']*'|[^\s]+)""")


def option_classes() -> list[type[Options]]:
    """Every class of settings: those of all runs, and those of each method."""
    methods = {options for _, _, options in option_owners()} - {Options}
    return [RunConfig, *sorted(methods, key=lambda options: options.__name__)]


def option_owners() -> list[tuple[str, str, type[Options]]]:
    """Which value of which setting ("strategy", "fedavg") has which class of settings."""
    plug_ins = [plug_in for plug_in in PLUG_INS.values() if plug_in is not None]
    return [
        *(("strategy", method.name, method.options) for method in METHODS.values()),
        *(("personalization", plug_in.name, plug_in.options) for plug_in in plug_ins),
        *(("backbone", name, kind.options_class) for name, kind in BACKBONES.items()),
    ]


def same_as() -> dict[str, str]:
    """The settings of which 0 means "the same as" another, and that one."""
    found = {}
    for options in option_classes():
        for name, field in options.model_fields.items():
            if isinstance(field.json_schema_extra, dict) and "same-as" in field.json_schema_extra:
                found[kebab(name)] = str(field.json_schema_extra["same-as"])
    return found


def resolve(config_file: Path | None, overrides: Sequence[str]) -> dict[str, Scalar]:
    """All settings: the defaults, then the file's, then those given with -c.

    Raises:
        ConfigError: a key is unknown, a value is of the wrong type, or settings cannot go together.
    """
    given = given_settings(config_file, overrides)
    validate(given)
    return with_defaults(given)


def with_defaults(given: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """All settings: those that are given, and for the others the defaults, which the method may have of its own."""
    method = METHODS[str(given.get("strategy", RoundOptions().strategy))]
    return defaults(option_classes()) | dict(method.defaults) | dict(given)


def given_settings(config_file: Path | None, overrides: Sequence[str]) -> dict[str, Scalar]:
    """Those settings that the file or -c names, unchecked; -c wins.

    Raises:
        ConfigError: the file or a text cannot be read.
    """
    given: dict[str, Scalar] = {}
    if config_file is not None:
        given |= read_config_file(ready_made(config_file, RUNS))
    for text in overrides:
        given |= parse_pairs(text)
    return given


def validate(given: Mapping[str, Scalar]) -> None:
    """Check names, types, ranges and combinations.

    Raises:
        ConfigError: one sentence about the first thing that is wrong.
    """
    config = check(given, option_classes())[0]
    assert isinstance(config, RunConfig)
    for kind, table in NAMES.items():
        # Who names what both bouquet and a package have must say which is meant: by uninstalling the package.
        refuse_broken(table, kind, str(given.get(kind, "")))
    lookup(METHODS, "strategy", config.strategy)
    # What server and nodes refuse when they make their parts is refused here, by the same code.
    settings = Settings(given)
    models_of(settings, num_items=1)
    strategy_of(settings, RunDirectory(""))
    if config.dataset != "file":
        # Of a file only who reads it knows whether it has times: here, or on a node.
        check_order(settings, lookup(DATASETS, "dataset", config.dataset).has_time)
    elif not config.data_file:
        raise ConfigError("dataset = 'file' needs data-file, the path of your own CSV, TSV or Parquet file.")
    if config.data_file and config.dataset != "file":
        raise ConfigError("data-file is only read with dataset = 'file'; leave one of the two out.")
    plain, flat = DataOptions().to_flat(), config.to_flat()
    for key in OF_A_FILE:
        if config.dataset != "file" and flat[key] != plain[key]:
            raise ConfigError(f"{key} is read with dataset = 'file'; leave it out.")
    if config.resume and config.out:
        raise ConfigError("A resumed run goes on in its own folder; leave out 'out' or 'resume'.")
    own_keys = keys_of(config)
    everything = defaults(option_classes())
    for key, value in given.items():
        # A results folder may list what other methods have, at their defaults.
        if key not in own_keys and key not in RunConfig().to_flat() and value != everything[key]:
            owners = sorted({name for _, name, options in option_owners() if key in options().to_flat()})
            chosen = [config.strategy, config.backbone, config.personalization]
            uses = ", ".join(name for name in chosen if name != "none")
            raise ConfigError(f"'{key}' is a setting of {', '.join(owners)}, and this run uses {uses}.")


def keys_of(config: RunConfig) -> set[str]:
    """The settings of the methods that a run uses."""
    chosen = {("strategy", config.strategy), ("backbone", config.backbone)}
    chosen.add(("personalization", config.personalization))
    return {key for kind, name, options in option_owners() if (kind, name) in chosen for key in options().to_flat()}


def read_config_file(path: Path) -> dict[str, Scalar]:
    """The settings of a TOML file: at its top level, or in a table [run] as a results folder has it.

    Raises:
        ConfigError: the file is missing or is no TOML.
    """
    try:
        document = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"There is no configuration file {path}.") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as TOML: {error}.") from None
    table = document.get("run", document)
    return dict(table)


def parse_pairs(text: str) -> dict[str, Scalar]:
    """'key=value key="some text"' as a dictionary; a bare word is text.

    Raises:
        ConfigError: the text is not made of pairs.
    """
    pairs: dict[str, Scalar] = {}
    place = 0
    while text[place:].strip():
        match = _PAIR.match(text, place)
        if not match:
            raise ConfigError(f"-c takes key=value pairs separated by blanks, and '{text[place:].strip()}' is none.")
        pairs[match["key"]] = _value(match["value"])
        place = match.end()
    return pairs


def _value(text: str) -> Scalar:
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    if not isinstance(value, str | int | float | bool):
        return text
    return value


def literal(value: object) -> str:
    """A value as TOML writes it."""
    return tomli_w.dumps({"value": value}).removeprefix("value = ").rstrip()
