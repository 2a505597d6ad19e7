"""`bouquet table`: all runs of a results table, one after another, and the table.

    DIR/cells/<row>/seed-<s>/   one results folder per cell
    DIR/table.md, DIR/table.csv written when no cell is missing

A table that was stopped goes on where it was: finished cells are kept, a cell with a checkpoint is resumed.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from enum import Enum
from pathlib import Path

from rich.console import Console

from bouquet.cli.beforehand import refuse_folder, refuse_runs
from bouquet.cli.run import engine_of, execute
from bouquet.cli.screen import Screen
from bouquet.config import RunConfig, Scalar, defaults, lookup, parsed
from bouquet.errors import BouquetError, ConfigError, RunFailed
from bouquet.experiments.baselines import evaluate_centralized
from bouquet.experiments.comparison import CIRCUMSTANCES
from bouquet.experiments.ground import ground_of, summary_of
from bouquet.experiments.settings import option_classes, read_config_file
from bouquet.experiments.table_figure import CSV, PNG
from bouquet.experiments.table_file import Cell, cells_of, read_table_file
from bouquet.experiments.table_report import command_line, write_table
from bouquet.files import locked
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


def table_command(
    file: Path, out: Path, overrides: Sequence[str], nodes: int, engine: str, only: Sequence[str]
) -> None:
    """Run what is missing, then write the table.

    Args:
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
    chosen = [cell for cell in cells if not only or cell.row.name in only]
    console = Console(highlight=False, soft_wrap=True, markup=False)
    refuse_folder(out)
    out.mkdir(parents=True, exist_ok=True)
    with locked(out / ".lock", ConfigError(f"Another bouquet table is at work in {out}.")):
        states = {cell.path: state_of(cell) for cell in cells}
        starting = [cell for cell in chosen if states[cell.path] is State.START and not cell.row.centralized]
        refuse_runs({f"Cell {cell.title}": parsed(cell.settings).run for cell in starting}, nodes)
        for number, cell in enumerate(chosen, start=1):
            state = states[cell.path]
            console.print(f"[{number}/{len(chosen)}] {cell.title}{': done' if state is State.DONE else ''}")
            if state is not State.DONE:
                _run(cell, state, nodes, engine)
            _free(cell)
        written = write_table(table, cells, out, command_line(file, out, overrides))
    files = ["table.md", "table.csv", *([CSV, PNG] if table.figure is not None else []), "table.tex"]
    shown = [str(out / name) for name in files if (out / name).exists()]
    console.print(f"\n{written}\nWritten: {', '.join(shown[:-1])} and {shown[-1]}")


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
    model = directory.engine().get("model", "")
    # A setting that is younger than the cell had its default.
    stored = defaults(option_classes()) | read_config_file(directory.config)
    compared: list[tuple[str, Scalar, Scalar]] = [("model", model, cell.row.centralized)]
    compared += [(key, stored[key], value) for key, value in cell.settings.items() if key not in CIRCUMSTANCES]
    for key, before, now in compared:
        if before != now:
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
