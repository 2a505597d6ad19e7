"""The cells of a table: each row under each seed, with all the settings that it depends on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bouquet.config import RunConfig, Scalar, check, parsed
from bouquet.errors import ConfigError, MissingPackage
from bouquet.experiments.baselines import ANOTHER_ROW
from bouquet.experiments.chosen import Chosen, chosen_for
from bouquet.experiments.comparison import is_seedless
from bouquet.experiments.settings import option_classes, parse_pairs, read_config_file, validate, with_defaults
from bouquet.experiments.table_file import Row, TableFile
from client_app.node.histories import no_order
from client_app.personalization import check_order
from data_partition import has_time
from models.centralized import IN_ORDER

# What a centralized row depends on, beside its seed. Its negatives are always honest and it has no nodes.
CENTRALIZED_KEYS = (
    "dataset",
    "data-dir",
    "data-file",
    "user-column",
    "item-column",
    "time-column",
    "min-interactions",
    "max-users",
    "repeats",
    "split",
    "validation-share",
    "training-share",
    "hold-out",
    "split-seed",
    "test-history",
)
# Rows whose users are not the same, hide other items, or may read different things, are no table.
SHARED_KEYS = (
    "dataset",
    "data-file",
    "min-interactions",
    "max-users",
    "repeats",
    "split",
    "validation-share",
    "hold-out",
    "split-seed",
    "test-history",
)
# These belong to the cell.
RESERVED_KEYS = ("seed", "out", "resume", "state-dir")


@dataclass(frozen=True)
class Cell:
    """One row under one seed.

    Attributes:
        row: as the file has it, but without printed figures where `-c` takes another data set than theirs.
        path: its results folder.
        settings: everything that it depends on; for a federated row a whole configuration.
        chosen: what of it a search chose, for the row itself.
        seedless: another seed gives the same numbers.
        lacks: why it cannot be run here. Its settings are not checked further, and a kept cell has been run with them.
    """

    row: Row
    seed: int
    path: Path
    settings: Mapping[str, Scalar]
    chosen: Chosen | None = None
    seedless: bool = False
    lacks: MissingPackage | None = None

    @property
    def title(self) -> str:
        """What the cell is called on the screen."""
        return f"{self.row.name}, seed {self.seed}"


def cells_of(table: TableFile, base: Path, out: Path, overrides: Sequence[str]) -> list[Cell]:
    """Every cell of the table, row by row.

    Args:
        base: folder that the rows' configuration files are relative to.
        out: folder of the table.
        overrides: texts of `-c`, for all cells.
    Raises:
        ConfigError: settings are wrong, or rows are on different data.
    """
    over_all: dict[str, Scalar] = {}
    for text in overrides:
        over_all |= parse_pairs(text)
    cells: list[Cell] = []
    by_name: dict[str, dict[str, Scalar]] = {}
    own_data: dict[str, Scalar] = {}
    for row in table.rows:
        try:
            own = row.centralized or row.variant_of
            chosen = None if own else chosen_for(row.name, row.settings_from, table.settings_from, base)
            if row.variant_of:
                settings, lacks = _varied(row, by_name[row.variant_of], over_all)
            else:
                settings, lacks = _row_settings(row, base, table.settings, over_all, chosen)
            by_name[row.name] = settings
            own_data[row.name] = own_data.get(row.variant_of) or _own_data(row, base, table.settings)
        except ConfigError as error:
            raise ConfigError(f"Row '{row.name}': {error}") from None
        seedless = is_seedless(row.centralized or str(settings["strategy"]), not row.centralized, settings)
        elsewhere = "dataset" in over_all and over_all["dataset"] != own_data[row.name]
        shown = row.model_copy(update={"printed": {}, "printed_source": ""}) if elsewhere else row
        seeds = row.seeds or table.seeds
        for seed in seeds[:1] if seedless else seeds:
            path = out / "cells" / row.name / f"seed-{seed}"
            cells.append(Cell(shown, seed, path, settings | {"seed": seed}, chosen, seedless, lacks))
    _require_shared(cells)
    return cells


def _own_data(row: Row, base: Path, common: Mapping[str, Scalar]) -> Scalar:
    """The data set that a row has without `-c`, which its printed figures are of."""
    in_file = read_config_file(base / row.config) if row.config else {}
    return {**in_file, **common, **row.settings}.get("dataset", RunConfig().dataset)


def _row_settings(
    row: Row, base: Path, common: Mapping[str, Scalar], over_all: Mapping[str, Scalar], chosen: Chosen | None
) -> tuple[dict[str, Scalar], MissingPackage | None]:
    """All settings of a row but its seed: defaults, its configuration file, the table's, the row's, then `-c`.

    Returns:
        The settings, and what is missing here to check and to run them.
    """
    in_file = read_config_file(base / row.config) if row.config else {}
    explicit = {**common, **row.settings, **over_all}
    given = chosen.under(in_file, explicit) if chosen else {**in_file, **explicit}
    for key in RESERVED_KEYS:
        if key in given:
            raise ConfigError(f"'{key}' is set by the table for every cell; leave it out.")
    if row.centralized:
        check(given, option_classes())
        given = {key: value for key, value in given.items() if key in CENTRALIZED_KEYS}
    lacks = _lacking(validate, given)
    everything = with_defaults(given)
    lacks = lacks or _lacking(_require_order, row, everything)
    return {key: everything[key] for key in CENTRALIZED_KEYS} if row.centralized else everything, lacks


def _varied(
    row: Row, settings: Mapping[str, Scalar], over_all: Mapping[str, Scalar]
) -> tuple[dict[str, Scalar], MissingPackage | None]:
    """The settings of another row but for what this one says, then `-c`; as `_row_settings`."""
    varied = {**settings, **row.settings, **over_all}
    for key, value in row.settings.items():
        if key not in over_all and settings.get(key) == value:
            raise ConfigError(f"'{key}' is {value!r} in row '{row.variant_of}', too; leave it out.")
    for key in RESERVED_KEYS:
        if key in row.settings:
            raise ConfigError(f"'{key}' is set by the table for every cell; leave it out.")
    return varied, _lacking(validate, varied) or _lacking(_require_order, row, varied)


def _lacking(check: Callable[..., None], *of: object) -> MissingPackage | None:
    """The package that a check of settings would need; a table of kept cells is made without it."""
    try:
        check(*of)
    except MissingPackage as error:
        return error
    return None


def _require_order(row: Row, settings: Mapping[str, Scalar]) -> None:
    """Before any cell is run: what reads the order of histories needs times."""
    config = parsed(settings).run
    in_time = has_time(config.dataset, config.time_column)
    if not row.centralized:
        check_order(parsed(settings), in_time)
    elif row.centralized in IN_ORDER and not in_time:
        raise ConfigError(no_order(row.centralized, config, ANOTHER_ROW))


def _require_shared(cells: Sequence[Cell]) -> None:
    first = cells[0]
    for cell in cells:
        for key in SHARED_KEYS:
            if cell.settings[key] != first.settings[key]:
                raise ConfigError(
                    f"All rows of a table are on the same data and split, and '{key}' is {first.settings[key]!r} "
                    f"in row '{first.row.name}' and {cell.settings[key]!r} in row '{cell.row.name}'. Put it into "
                    "[settings]."
                )
