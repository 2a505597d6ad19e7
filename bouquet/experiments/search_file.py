"""The file of a search: which rows, over which settings, and how many trials each of them has.

title = "…"
trials = 24                          # of every row: the same budget for every method
seed = 0                             # of the sampler and of every run
sampler = "tpe"                      # or "random"
random-trials = 10                   # of a row, before TPE goes by what it has seen
pruner = "median"                    # or "none"
prune-after-trials = 5               # complete trials of a row before one of its trials is pruned
prune-after-rounds = 10              # rounds of a trial before it is pruned

[settings]                           # of all rows; `-c` goes over them
dataset = "ml-100k"

[search]                             # of all rows
learning-rate = {log-uniform = [0.01, 1.0]}
local-epochs = {integer = [1, 5]}

[[rows]]                             # settings over a configuration file, as in the file of a table
name = "fedavg"
label = "FedAvg"
config = "../ml-100k-fedavg.toml"    # relative to this file; may be left out
settings = {batch-size = 512}

[rows.search]                        # of this row, beside those of all, or in place of one of them
embedding-size = {choices = [8, 16, 32]}
weight-decay = {uniform = [0.0, 0.01]}

`search_space` has settings that are drawn only beside a value of another, and factors on another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from bouquet.config import DataOptions, RoundOptions, Scalar, parsed
from bouquet.errors import ConfigError
from bouquet.experiments.search_space import Parameter, draw, settled, space_of
from bouquet.experiments.settings import parse_pairs, read_config_file, validate, with_defaults
from bouquet.experiments.table_cells import RESERVED_KEYS, SHARED_KEYS
from bouquet.experiments.table_file import Part, sentence
from client_app.personalization import check_order
from data_partition import has_time

# What the trials of a row are compared under, and how they are carried out.
_SAME_FOR_ALL = (
    {*DataOptions().to_flat()} - {"negatives-per-positive"}
    | {*RoundOptions().to_flat()} - {"fraction-train", "update-bound"}
    | {"personalization", "backbone", "backend", "device"}
)


class RowEntry(Part):
    """One method whose settings are searched, as it stands in the file."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    label: str = ""
    config: str = ""
    settings: dict[str, Scalar] = Field(default_factory=dict)
    search: dict[str, Any] = Field(default_factory=dict)


class SearchFile(Part):
    """A whole search."""

    title: str
    trials: Annotated[int, Field(ge=1)]
    seed: Annotated[int, Field(ge=0)] = 0
    sampler: Literal["tpe", "random"] = "tpe"
    random_trials: Annotated[int, Field(ge=1)] = 10
    pruner: Literal["median", "none"] = "median"
    prune_after_trials: Annotated[int, Field(ge=1)] = 5
    prune_after_rounds: Annotated[int, Field(ge=0)] = 10
    settings: dict[str, Scalar] = Field(default_factory=dict)
    search: dict[str, Any] = Field(default_factory=dict)
    rows: Annotated[list[RowEntry], Field(min_length=1)]


@dataclass(frozen=True)
class SearchRow:
    """One method whose settings are searched.

    Attributes:
        base: the settings that the file gives it.
        settings: all settings of a trial but those that are searched and the folder of its run.
        space: what is searched.
    """

    name: str
    title: str
    base: Mapping[str, Scalar]
    settings: Mapping[str, Scalar]
    space: Mapping[str, Parameter]


def read_search_file(path: Path) -> SearchFile:
    """Read the file of a search.

    Raises:
        ConfigError: it is missing, no TOML, or something in it is wrong: one sentence about the first thing.
    """
    document = read_config_file(path)
    entries: Any = document.get("rows")
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and "centralized" in entry:
            raise ConfigError(
                f"{path}: row '{entry.get('name', '')}' is centralized: such a row chooses its settings on validation "
                "whenever it is run, so there is nothing to search. Leave it to the table."
            )
    try:
        search = SearchFile.model_validate(document)
    except ValidationError as error:
        raise ConfigError(f"{path}: {sentence(error.errors()[0], SearchFile, RowEntry)}") from None
    names = [row.name for row in search.rows]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{path}: There are two rows '{name}'.")
    return search


def rows_of(search: SearchFile, base: Path, overrides: Sequence[str]) -> list[SearchRow]:
    """Every row with what is searched for it, checked.

    Args:
        base: folder that the rows' configuration files are relative to.
        overrides: texts of `-c`, for all trials.
    Raises:
        ConfigError: settings or ranges are wrong, or rows are on different data.
    """
    over_all: dict[str, Scalar] = {}
    for text in overrides:
        over_all |= parse_pairs(text)
    rows = []
    for entry in search.rows:
        try:
            rows.append(_row(search, entry, base, over_all))
        except ConfigError as error:
            raise ConfigError(f"Row '{entry.name}': {error}") from None
    for row in rows:
        for key in SHARED_KEYS:
            if row.settings[key] != rows[0].settings[key]:
                raise ConfigError(
                    f"All rows of a search are on the same data and split, and '{key}' is "
                    f"{rows[0].settings[key]!r} in row '{rows[0].name}' and {row.settings[key]!r} in row '{row.name}'. "
                    "Put it into [settings]."
                )
    return rows


def _row(search: SearchFile, entry: RowEntry, base: Path, over_all: Mapping[str, Scalar]) -> SearchRow:
    in_file = read_config_file(base / entry.config) if entry.config else {}
    given = {**in_file, **search.settings, **entry.settings, **over_all}
    for key in RESERVED_KEYS:
        if key in given:
            raise ConfigError(f"'{key}' is set by the search for every trial; leave it out.")
    searched = {**search.search, **entry.search}
    if not searched:
        raise ConfigError(
            "there is nothing to search: name its settings in [rows.search], or in [search] for all rows."
        )
    for key in searched:
        if key in search.settings or key in entry.settings or key in over_all:
            raise ConfigError(f"'{key}' is set and searched; leave one of the two out.")
    validate(given)
    everything = with_defaults(given)
    space = space_of(searched, everything)
    _check_space(given, everything, space)
    config = parsed(everything).run
    check_order(parsed(everything), has_time(config.dataset, config.time_column))
    if config.split != "leave-one-out" and config.validation_share == 0:
        raise ConfigError("validation-share is 0: without validation items there is nothing to choose settings by.")
    # A trial that was stopped is run anew, so nothing is kept to resume it from.
    settings = everything | {"seed": search.seed, "checkpoint-every": 0}
    return SearchRow(entry.name, entry.label or entry.name, given, settings, space)


def _check_space(given: Mapping[str, Scalar], everything: Mapping[str, Scalar], space: Mapping[str, Parameter]) -> None:
    """Refuse settings that no run of this row has, and ranges that go further than the setting does."""
    for key in space:
        if key in _SAME_FOR_ALL:
            raise ConfigError(
                f"'{key}' is the same for all trials of a row, so it cannot be searched: set it in [settings], or in "
                "the settings of the row."
            )
    lowest = {key: parameter.values[0] for key, parameter in space.items()}

    def trial(values: Mapping[str, Scalar]) -> dict[str, Scalar]:
        return settled(space, draw(space, lambda key, _: values[key]), everything)

    validate({**given, **trial(lowest)})
    for key, parameter in space.items():
        beside = dict([parameter.condition]) if parameter.condition is not None else {}
        for value in parameter.values[not beside :]:
            try:
                validate({**given, **trial({**lowest, **beside, key: value})})
            except ConfigError as error:
                where = "" if f"'{key}'" in str(error) else f"with {key} = {value!r}, "
                raise ConfigError(f"{where}{error}") from None
