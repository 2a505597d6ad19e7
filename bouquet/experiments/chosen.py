"""The settings that a search chose for each of its rows, and how a table takes them over.

`chosen.toml` in the folder of a search has, for each row, how its trials went, the best of them (`settings`), and the
settings that it was run under (`base`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import tomli_w
from pydantic import BaseModel, ConfigDict, ValidationError

from bouquet.config import DataOptions, Scalar, lookup
from bouquet.errors import ConfigError
from bouquet.files import write_atomically

NAME = "chosen.toml"
# A row under another of these is another method, whatever else they share.
METHOD_KEYS = ("strategy", "personalization", "backbone")


class ChosenRow(BaseModel):
    """One row of the file.

    Attributes:
        trials: how many it shall have.
        ended: how many of them have ended, those that were pruned or failed among them.
        validation, best_round: of the best trial.
        edges: the settings whose chosen value lies at an edge of what was searched, in words.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        alias_generator=lambda name: name.replace("_", "-"),
        populate_by_name=True,
    )

    trials: int
    ended: int
    pruned: int = 0
    failed: int = 0
    validation: float = 0.0
    best_round: int = 0
    edges: list[str] = []
    settings: dict[str, Scalar] = {}
    base: dict[str, Scalar] = {}


@dataclass(frozen=True)
class Chosen:
    """What a row of a table takes from a search.

    Attributes:
        source: the folder of the search, as the file of the table names it.
    """

    source: str
    row: ChosenRow

    def under(self, in_file: Mapping[str, Scalar], explicit: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """The settings of a row of a table: what the search was run under, those that are given, and what it chose.

        Args:
            in_file: of the row's configuration file.
            explicit: of the table, of the row and of `-c`.
        Raises:
            ConfigError: a setting is chosen and given, or the search was one of another method.
        """
        for key in self.row.settings:
            if key in explicit:
                raise ConfigError(
                    f"'{key}' is set here and was chosen by the search in {self.source}; leave it or settings-from out."
                )
        merged = {**self.row.base, **in_file, **explicit, **self.row.settings}
        for key in METHOD_KEYS:
            if merged[key] != self.row.base[key]:
                raise ConfigError(
                    f"the search in {self.source} was one of {key} = {self.row.base[key]!r}, and this row has "
                    f"{merged[key]!r}."
                )
        return merged

    def elsewhere(self, settings: Mapping[str, Scalar]) -> str:
        """What of the ground that the search was on is not that of a row with these settings; "" if nothing is."""
        kept = {key: value for key, value in self.row.base.items() if key in DataOptions().to_flat()}
        return ", ".join(f"{key} = {value!r}" for key, value in kept.items() if settings[key] != value)


def write_chosen(folder: Path, rows: Mapping[str, ChosenRow]) -> None:
    """Write `chosen.toml`."""
    document = {"rows": {name: row.model_dump(by_alias=True) for name, row in rows.items()}}
    head = "# Written by `bouquet search`; a table takes these settings with settings-from.\n\n"
    write_atomically(folder / NAME, head + tomli_w.dumps(document))


def read_chosen(folder: Path) -> dict[str, ChosenRow]:
    """What `write_chosen` wrote.

    Raises:
        ConfigError: there is none, or it is damaged.
    """
    path = folder / NAME
    try:
        document = tomllib.loads(path.read_text())
        return {name: ChosenRow.model_validate(row) for name, row in document["rows"].items()}
    except FileNotFoundError:
        raise ConfigError(
            f"settings-from: {folder} is not the folder of a search: it has no {NAME}. `bouquet search` writes it."
        ) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, KeyError, AttributeError, ValidationError) as error:
        raise ConfigError(f"{path} is damaged ({str(error).splitlines()[0]}).") from None


def chosen_for(row: str, own: str, of_all: str, base: Path) -> Chosen | None:
    """What a row of a table takes from a search, if it takes anything.

    Args:
        own, of_all: `settings-from` of the row and of the table, "" for none. A row that a search for the whole table
            does not know keeps its settings.
        base: folder that they are relative to.
    Raises:
        ConfigError: there is no such search, it does not know the row, or has not ended.
    """
    source = own or of_all
    if not source:
        return None
    rows = read_chosen(base / source)
    if row not in rows and not own:
        return None
    found = lookup(rows, f"row in the search {source}", row)
    if found.ended < found.trials:
        raise ConfigError(
            f"the search in {source} has {found.ended} of {found.trials} trials for it; go on with `bouquet search`."
        )
    if not found.settings:
        raise ConfigError(f"the search in {source} has no complete trial for it, so nothing was chosen.")
    return Chosen(source, found)


def sentences(rows: Iterable[tuple[str, Chosen | None, Mapping[str, Scalar]]]) -> list[str]:
    """What stands below a table about where the settings of its rows come from; nothing where no search is named.

    Args:
        rows: titles, what was taken over, and all settings.
    """
    rows = list(rows)
    by_source: dict[str, list[str]] = {}
    for title, chosen, settings in rows:
        if chosen:
            words = [f"best of {chosen.row.trials} trials"]
            if ground := chosen.elsewhere(settings):
                words.append(f"searched with {ground}")
            if chosen.row.edges:
                words.append(f"at an edge of what was searched: {'; '.join(chosen.row.edges)}")
            by_source.setdefault(chosen.source, []).append(f"{title} ({', '.join(words)})")
    found = [
        f"Settings chosen by the search in `{source}`, by NDCG@10 (full) on the validation items: {', '.join(words)}."
        for source, words in by_source.items()
    ]
    if found and len({chosen.row.trials for _, chosen, _ in rows if chosen}) > 1:
        found.append("These rows did not have the same number of trials.")
    if found and (others := [title for title, chosen, _ in rows if chosen is None]):
        found.append(f"Not searched: {', '.join(others)}.")
    return found
