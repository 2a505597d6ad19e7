"""From plain keys and values to settings that are checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, TypeVar, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from bouquet.config.names import did_you_mean
from bouquet.config.options import Options, Scalar, kebab
from bouquet.config.run import RunConfig
from bouquet.errors import ConfigError

OptionsT = TypeVar("OptionsT", bound=Options)


def check(raw: Mapping[str, Any], parts: Iterable[type[Options]]) -> list[Options]:
    """Parse `raw` into one object per class, refusing keys that no class has.

    Args:
        raw: kebab-case keys to plain values; keys that are left out take their defaults.
        parts: the classes that are allowed to have keys.
    Raises:
        ConfigError: one sentence about the first thing that is wrong.
    """
    parts = list(parts)
    known = [kebab(field) for part in parts for field in part.model_fields]
    for key in raw:
        if key not in known:
            now = " or ".join(sorted({f"'{part.formerly[key]}'" for part in parts if key in part.formerly}))
            hint = f" It is now {now}." if now else did_you_mean(key, known)
            raise ConfigError(f"There is no setting '{key}'.{hint}")
    return [own(raw, part) for part in parts]


def own(raw: Mapping[str, Any], part: type[OptionsT]) -> OptionsT:
    """The settings of one class, out of a configuration that may hold those of others.

    Raises:
        ConfigError: a value has the wrong type or is out of range.
    """
    keys = {kebab(field) for field in part.model_fields}
    try:
        return part.model_validate({key: value for key, value in raw.items() if key in keys})
    except ValidationError as error:
        raise ConfigError(_sentence(error.errors()[0], part)) from None


class Settings:
    """A run's configuration, parsed: what travels through the program in place of plain keys and values.

    Args:
        flat: kebab-case keys to plain values; keys that are left out take their defaults.
    Raises:
        ConfigError: a value of those that every run has is of the wrong type or out of range.

    Attributes:
        flat: as given.
        run: the settings that every run has.
    """

    def __init__(self, flat: Mapping[str, Scalar]) -> None:
        self.flat = dict(flat)
        self._parts: dict[type[Options], Options] = {}
        self.run = self.of(RunConfig)

    def of(self, part: type[OptionsT]) -> OptionsT:
        """The settings of one class.

        Raises:
            ConfigError: one of them is of the wrong type or out of range.
        """
        if part not in self._parts:
            self._parts[part] = own(self.flat, part)
        found = self._parts[part]
        assert isinstance(found, part)
        return found


def parsed(flat: Mapping[str, Scalar]) -> Settings:
    """The settings of a configuration, which a process parses once.

    Raises:
        ConfigError: as `Settings`.
    """
    # 1, 1.0 and true are equal, and not the same setting.
    return _parsed(tuple(sorted((key, type(value).__name__, value) for key, value in flat.items())))


@lru_cache(maxsize=64)
def _parsed(items: tuple[tuple[str, str, Scalar], ...]) -> Settings:
    return Settings({key: value for key, _, value in items})


def defaults(parts: Iterable[type[Options]]) -> dict[str, Scalar]:
    """Every setting with its default, in the order of the classes."""
    flat: dict[str, Scalar] = {}
    for part in parts:
        flat |= part().to_flat()
    return flat


def _sentence(error: ErrorDetails, part: type[Options]) -> str:
    key = str(error["loc"][0])
    given = error["input"]
    field = part.model_fields[key.replace("-", "_")]
    choices = get_args(field.annotation)
    if choices:
        near = did_you_mean(given, choices) if isinstance(given, str) else ""
        return f"'{key}' cannot be {given!r}.{near} Allowed: {', '.join(map(str, choices))}."
    if error["type"] == "string_pattern_mismatch" and isinstance(field.json_schema_extra, dict):
        return f"'{key}' must be {field.json_schema_extra['form']}, not {given!r}."
    wanted = {"str": "text", "int": "a whole number", "float": "a number", "bool": "true or false"}[
        getattr(field.annotation, "__name__", "str")
    ]
    bound = "" if error["type"].endswith(("_type", "_number")) else f" {error['msg'].removeprefix('Input should be ')}"
    return f"'{key}' must be {wanted}{bound}, not {given!r}."
