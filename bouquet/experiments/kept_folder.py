"""Which kept cell is the one that a table asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bouquet.config import CIRCUMSTANCES, Scalar, defaults
from bouquet.errors import ConfigError
from bouquet.experiments.kept_cells import SUFFIX, KeptCell, read_cell
from bouquet.experiments.kept_runs import revision_of
from bouquet.experiments.settings import option_classes
from bouquet.experiments.table_cells import Cell
from bouquet.experiments.table_file import ROUND, TableFile

Difference = tuple[str, Scalar, Scalar]
"""a setting, what it was, and what it is now"""


def refuse_unfit(table: TableFile, cells: Sequence[Cell]) -> None:
    """Refuse tables that cannot be made from kept cells.

    Raises:
        ConfigError: it draws rounds, or the data are somebody's own.
    """
    if table.figure is not None and table.figure.x == ROUND:
        raise ConfigError("This table draws rounds, which kept cells do not have: leave --cells out.")
    if any(cell.settings["dataset"] == "file" for cell in cells):
        raise ConfigError(
            "Cells of a file of one's own are not kept: they hold metrics of every person in it. Leave --cells out."
        )


def kept_cell_of(cell: Cell, folder: Path) -> tuple[KeptCell | None, str]:
    """The kept cell with the settings of a table's cell.

    Returns:
        The cell, or None and why those of the same method and seed are not taken; "" if there is none.
    Raises:
        DataError: a file is damaged.
    """
    found: list[list[Difference]] = []
    for path in sorted((folder / str(cell.settings["dataset"])).glob(f"{_method_of(cell)}.seed-{cell.seed}.*{SUFFIX}")):
        kept = read_cell(path)
        differing = _differing(cell, kept)
        if not differing:
            return kept, ""
        found.append(differing)
    if not found:
        return None, ""
    nearest = min(found, key=len)
    shown = ", ".join(f"{key} = {before!r} and not {now!r}" for key, before, now in nearest[:3])
    more = f" and {len(nearest) - 3} more" if len(nearest) > 3 else ""
    return None, f"{cell.title} is run: the nearest kept cell has {shown}{more}."


def differences(cell: Cell, stored: Mapping[str, Scalar], model: str) -> list[Difference]:
    """In what the settings of a run are not those of a cell.

    Args:
        stored: as the run's folder has them.
        model: of pooled data; "": it was federated.
    """
    # A setting that is younger than the run had its default.
    before = defaults(option_classes()) | dict(stored)
    pairs: list[Difference] = [("model", model, cell.row.centralized)]
    pairs += [(key, before[key], value) for key, value in cell.settings.items() if key not in CIRCUMSTANCES]
    return [pair for pair in pairs if pair[1] != pair[2]]


def _differing(cell: Cell, kept: KeptCell) -> list[Difference]:
    found = differences(cell, kept.settings, str(kept.engine.get("model", "")))
    now = revision_of(cell.settings, cell.row.centralized)
    return [*found, *([("revision", kept.revision, now)] if kept.revision != now else [])]


def _method_of(cell: Cell) -> str:
    if cell.row.centralized:
        return cell.row.centralized
    plug_in = cell.settings["personalization"]
    return f"{cell.settings['strategy']}{'' if plug_in == 'none' else f'+{plug_in}'}"
