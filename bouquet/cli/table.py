"""`bouquet table`: all runs of a results table, one after another, and the table.

    DIR/cells/<row>/seed-<s>/   one results folder per cell
    DIR/table.md, DIR/table.csv written when no cell is missing
    DIR/<name>/…, DIR/tables.md of several tables: the folder of each, and all in one page

A table that was stopped goes on where it was: finished cells are kept, a cell with a checkpoint is resumed. With
`--cells`, finished cells of these settings come out of a folder, whoever ran them, and new ones go there.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from enum import Enum
from pathlib import Path

from rich.console import Console

from bouquet.cli.beforehand import refuse_folder, refuse_runs
from bouquet.cli.run import engine_of, execute
from bouquet.cli.screen import Screen
from bouquet.config import RunConfig, lookup, parsed
from bouquet.errors import BouquetError, ConfigError, MissingPackage, RunFailed
from bouquet.experiments.baselines import evaluate_centralized
from bouquet.experiments.ground import ground_of, summary_of
from bouquet.experiments.kept_cells import to_run, write_cell
from bouquet.experiments.kept_folder import differences, kept_cell_of, refuse_unfit
from bouquet.experiments.kept_runs import of_run
from bouquet.experiments.settings import read_config_file
from bouquet.experiments.table_cells import Cell, cells_of
from bouquet.experiments.table_figure import CSV, PNG
from bouquet.experiments.table_file import read_table_file
from bouquet.experiments.table_report import command_line, write_table
from bouquet.files import locked, write_atomically
from bouquet.ready_made import TABLES, ready_made
from bouquet.reporting.run_directory import RunDirectory
from models.centralized import POOLED


class State(Enum):
    """What is left to do for a cell."""

    START = "start"
    RESUME = "resume"
    DONE = "done"


class CellScreen(Screen):
    """The screen of a run that is part of a table."""

    def stopped(self, directory: RunDirectory, config: RunConfig, command: str = "bouquet table") -> None:
        """How to go on after Ctrl-C."""
        self.console.print("\nStopped. The same command goes on here.")


def tables_command(
    files: Sequence[Path],
    out: Path,
    overrides: Sequence[str],
    nodes: int,
    engine: str,
    only: Sequence[str],
    kept: Path | None,
) -> None:
    """`table_command` of one file, or of several one after another, each in a folder of its own, and their page.

    Raises:
        ConfigError: a file is wrong, before the first one is run; two have one name.
        BouquetError, KeyboardInterrupt: as for `table_command`. What comes before is written.
    """
    if len(files) == 1:
        table_command(files[0], out, overrides, nodes, engine, only, kept)
        return
    places = {file: out / file.stem for file in files}
    if len(set(places.values())) < len(files):
        raise ConfigError("Two of the tables have one name, and so they would have one folder.")
    for file, place in places.items():
        found = ready_made(file, TABLES)
        cells = cells_of(read_table_file(found), found.parent, place, overrides)
        _refuse_lacking(_chosen(cells, only), kept)
    for file, place in places.items():
        table_command(file, place, overrides, nodes, engine, only, kept)
    pages = [re.sub("^#", "##", (place / "table.md").read_text(), flags=re.MULTILINE) for place in places.values()]
    write_atomically(out / "tables.md", "\n".join(pages))
    Console(highlight=False, soft_wrap=True, markup=False).print(f"All in one page: {out / 'tables.md'}")


def table_command(
    file: Path, out: Path, overrides: Sequence[str], nodes: int, engine: str, only: Sequence[str], kept: Path | None
) -> None:
    """Run what is missing, then write the table.

    Args:
        kept: folder that cells with the same settings are taken from, and finished ones are kept in.
        only: rows to run; empty: all. The table then has the rows that are complete.
    Raises:
        BouquetError: the file is wrong, a finished cell has other settings, or a cell failed. Finished cells stay.
        KeyboardInterrupt: it was stopped.
    """
    engine = engine_of(engine)
    place = ready_made(file, TABLES)
    table = read_table_file(place)
    cells = cells_of(table, place.parent, out, overrides)
    for name in only:
        lookup({row.name: row for row in table.rows}, "row", name)
    chosen = _chosen(cells, only)
    if kept is not None:
        refuse_unfit(table, cells)
    _refuse_lacking(chosen, kept)
    console = Console(highlight=False, soft_wrap=True, markup=False)
    refuse_folder(out)
    out.mkdir(parents=True, exist_ok=True)
    with locked(out / ".lock", ConfigError(f"Another bouquet table is at work in {out}.")):
        taken: set[Path] = set()
        if kept is not None:
            taken = {cell.path for cell in chosen if state_of(cell) is not State.DONE and _take(cell, kept, console)}
        states = {cell.path: state_of(cell) for cell in cells}
        starting = [cell for cell in chosen if states[cell.path] is State.START and not cell.row.centralized]
        refuse_runs({f"Cell {cell.title}": parsed(cell.settings).run for cell in starting}, nodes)
        for number, cell in enumerate(chosen, start=1):
            state = states[cell.path]
            words = ": kept" if cell.path in taken else ": done" if state is State.DONE else ""
            console.print(f"[{number}/{len(chosen)}] {cell.title}{words}")
            if state is not State.DONE:
                _run(cell, state, nodes, engine)
            _free(cell)
            if kept is not None and cell.path not in taken and kept_cell_of(cell, kept)[0] is None:
                write_cell(kept, of_run(RunDirectory(cell.path)))
        written = write_table(table, cells, out, command_line(file, out, overrides))
    files = ["table.md", "table.csv", *([CSV, PNG] if table.figure is not None else []), "table.tex"]
    shown = [str(out / name) for name in files if (out / name).exists()]
    console.print(f"\n{written}\nWritten: {', '.join(shown[:-1])} and {shown[-1]}")


def _chosen(cells: Sequence[Cell], only: Sequence[str]) -> list[Cell]:
    return [cell for cell in cells if not only or cell.row.name in only]


def _refuse_lacking(cells: Sequence[Cell], kept: Path | None) -> None:
    """Before the first run: refuse a cell that would have to be run without a package that it needs.

    Raises:
        MissingPackage: names the row, the package and the extra.
    """
    for cell in cells:
        if cell.lacks is None or state_of(cell) is State.DONE:
            continue
        if kept is None or kept_cell_of(cell, kept)[0] is None:
            raise MissingPackage(f"Row '{cell.row.name}': {cell.lacks}")


def _take(cell: Cell, kept: Path, console: Console) -> bool:
    """Put a kept cell in the place of a run; says in a line why those of the same method and seed do not fit."""
    found, reason = kept_cell_of(cell, kept)
    if found is None:
        if reason:
            console.print(reason)
        return False
    shutil.rmtree(cell.path, ignore_errors=True)
    to_run(found, RunDirectory(cell.path))
    return True


def state_of(cell: Cell) -> State:
    """What is left to do for a cell.

    Raises:
        ConfigError: the folder holds results, or a checkpoint, of other settings.
        DataError: its summary is damaged.
    """
    directory = RunDirectory(cell.path)
    if not directory.summary.exists():
        return State.START
    completed = directory.read_summary().get("status") == "completed"
    if not completed and not any(directory.checkpoints.glob("*.safetensors")):
        return State.START
    _require_same_settings(cell, directory)
    return State.DONE if completed else State.RESUME


def _require_same_settings(cell: Cell, directory: RunDirectory) -> None:
    stored, model = read_config_file(directory.config), str(directory.engine().get("model", ""))
    for key, before, now in differences(cell, stored, model):
        raise ConfigError(
            f"{cell.path} was run with {key} = {before!r}, and the table now says {now!r}. Change it back, remove "
            "that folder, or name another --out."
        )


def _run(cell: Cell, state: State, nodes: int, engine: str) -> None:
    """Raises: BouquetError: the cell failed; the sentence names it."""
    directory = RunDirectory(cell.path)
    try:
        if cell.row.centralized:
            _run_centralized(cell, directory)
        elif state is State.RESUME:
            # Private state lies where the nodes of the stopped run were.
            nodes = int(directory.engine().get("nodes", nodes))
            directory.check_config()
            execute({**cell.settings, "resume": str(directory.path)}, nodes, engine, CellScreen())
        else:
            with directory.command():
                pass  # else what another run is at work on would be removed
            shutil.rmtree(cell.path, ignore_errors=True)
            execute({**cell.settings, "out": str(directory.path)}, nodes, engine, CellScreen())
    except ConfigError as error:
        raise ConfigError(f"Cell {cell.title}: {error}") from error
    except (BouquetError, OSError, ValueError) as error:
        raise RunFailed(f"Cell {cell.title}: {error}") from error


def _run_centralized(cell: Cell, directory: RunDirectory) -> None:
    config = parsed(cell.settings).run
    directory.create(cell.settings, {"engine": "centralized", "model": cell.row.centralized})
    try:
        model = POOLED[cell.row.centralized]
        ground = ground_of(cell.settings)
        values, chosen = evaluate_centralized(model(), ground.histories, config)
    except Exception as error:
        directory.write_summary({"status": "failed", "error": str(error)})
        raise
    directory.write_users(ground.histories.users, values, ground.histories.train.lengths)
    directory.write_summary(summary_of(ground, cell.row.centralized, values, chosen) | {"seed": config.seed})


def _free(cell: Cell) -> None:
    """Remove what only an unfinished cell needs, model and lists too: it is most of the disk space."""
    directory = RunDirectory(cell.path)
    for folder in (directory.checkpoints, directory.nodes, directory.reported.path):
        shutil.rmtree(folder, ignore_errors=True)
    directory.remove_locks()
