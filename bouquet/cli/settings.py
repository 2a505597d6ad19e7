"""From files and the command line to one checked configuration."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bouquet.config import DataOptions, Options, RunConfig, Scalar, check, defaults, lookup
from bouquet.errors import ConfigError
from client_app.personalization import DEVICE_SIDES, PERSONALIZATIONS, check_combination
from data_partition import DATASETS
from models import BACKBONES
from strategies import STRATEGIES

_PAIR = re.compile(r"""\s*(?P<key>[A-Za-z0-9_-]+)\s*=\s*(?P<value>"[^"]*"|'[^']*'|[^\s]+)""")


def option_classes() -> list[type[Options]]:
    """Every class of settings: those of all runs, and those of each method."""
    named = [*STRATEGIES.values(), *PERSONALIZATIONS.values(), *DEVICE_SIDES.values(), *BACKBONES.values()]
    methods = {method.options_class for method in named if method is not None} - {Options}
    return [RunConfig, *sorted(methods, key=lambda options: options.__name__)]


def resolve(config_file: Path | None, overrides: Sequence[str]) -> dict[str, Scalar]:
    """All settings: the defaults, then the file's, then those given with -c.

    Raises:
        ConfigError: a key is unknown, a value is of the wrong type, or settings cannot go together.
    """
    given: dict[str, Scalar] = {}
    if config_file is not None:
        given |= read_config_file(config_file)
    for text in overrides:
        given |= parse_pairs(text)
    validate(given)
    return defaults(option_classes()) | given


def validate(given: Mapping[str, Scalar]) -> None:
    """Check names, types, ranges and combinations.

    Raises:
        ConfigError: one sentence about the first thing that is wrong.
    """
    config = check(given, option_classes())[0]
    assert isinstance(config, RunConfig)
    lookup(STRATEGIES, "strategy", config.strategy)
    lookup(BACKBONES, "backbone", config.backbone)
    check_combination(config)
    if config.dataset != "file":
        lookup(DATASETS, "dataset", config.dataset)
    elif not config.data_file:
        raise ConfigError("dataset = 'file' needs data-file, the path of your own CSV, TSV or Parquet file.")
    if config.data_file and config.dataset != "file":
        raise ConfigError("data-file is only read with dataset = 'file'; leave one of the two out.")
    if config.resume and config.out:
        raise ConfigError("A resumed run goes on in its own folder; leave out 'out' or 'resume'.")
    own_keys = keys_of(config)
    methods: list[tuple[str, Any]]
    methods = [*STRATEGIES.items(), *DEVICE_SIDES.items(), *PERSONALIZATIONS.items(), *BACKBONES.items()]
    everything = defaults(option_classes())
    for key, value in given.items():
        # A results folder may list what other methods have, at their defaults.
        if key not in own_keys and key not in RunConfig().to_flat() and value != everything[key]:
            owners = sorted({n for n, m in methods if m is not None and key in m.options_class().to_flat()})
            chosen = [config.strategy, config.backbone, config.personalization]
            uses = ", ".join(name for name in chosen if name != "none")
            raise ConfigError(f"'{key}' is a setting of {', '.join(owners)}, and this run uses {uses}.")


def keys_of(config: RunConfig) -> set[str]:
    """The settings of the methods that a run uses."""
    used = [
        STRATEGIES[config.strategy],
        BACKBONES[config.backbone],
        PERSONALIZATIONS[config.personalization],
        DEVICE_SIDES.get(config.strategy),
    ]
    return {key for method in used if method is not None for key in method.options_class().to_flat()}


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


def data_options(settings: Mapping[str, Scalar]) -> DataOptions:
    """The part of a configuration that says which data is used."""
    keys = DataOptions().to_flat()
    return DataOptions.model_validate({key: settings[key] for key in keys})
