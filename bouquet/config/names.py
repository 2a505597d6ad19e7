"""Names that settings choose by: what a wrong one is told, and what a package from elsewhere may call its own."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from inspect import get_annotations
from typing import Any, TypeVar

from pydantic import ValidationError

from bouquet.config.options import Options, kebab
from bouquet.config.run import RunConfig
from bouquet.errors import ConfigError
from bouquet.installed import Names

T = TypeVar("T")


def lookup(table: Mapping[str, T], kind: str, name: str) -> T:
    """The entry of a table of names, or a sentence that says which names there are.

    Raises:
        ConfigError: there is no such name, or the package that has it did something wrong.
    """
    if name in table:
        return table[name]
    refuse_broken(table, kind, name)
    raise ConfigError(f"There is no {kind} '{name}'.{did_you_mean(name, table)} Known: {', '.join(sorted(table))}.")


def refuse_broken(table: Mapping[str, Any], kind: str, name: str) -> None:
    """Refuse a name that a package has installed in a way that cannot be used, or that is not its own to give.

    Raises:
        ConfigError: which package, which entry, what is wrong.
    """
    if isinstance(table, Names) and name in table.refused:
        raise ConfigError(f"The {kind} '{name}' {table.refused[name]}")


def wrong_options(name: str, options: object, taken: Iterable[str] = ()) -> str:
    """What is wrong with the settings of a method or a backbone that is not ours, or "".

    Its keys begin with its name, so that no two methods mean different things by one key. A class that builds on one
    of ours has that one's keys as well, with their meaning.

    Args:
        taken: fields that others have, beside those of every run.
    """
    if not (isinstance(options, type) and issubclass(options, Options)):
        return "its options are no class of Options"
    for field in options.model_fields:
        home = next(part for part in options.__mro__ if field in get_annotations(part))
        if home.__module__.partition(".")[0] in ("bouquet", "models"):
            continue
        key = kebab(field)
        if not key.startswith(f"{name}-"):
            return f"its setting '{key}' must begin with its name, as in '{name}-{key}'"
        if field in RunConfig.model_fields or field in taken:
            return f"its setting '{key}' means something else already"
    try:
        options()
    except ValidationError as error:
        return f"its setting '{error.errors()[0]['loc'][0]}' has no default that is allowed"
    return ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """' Did you mean …?' with the nearest known name, in whatever case, or nothing."""
    by_letters = {other.casefold(): other for other in known}
    near = difflib.get_close_matches(name.casefold(), list(by_letters), n=1, cutoff=0.6)
    return f" Did you mean '{by_letters[near[0]]}'?" if near else ""
