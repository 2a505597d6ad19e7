"""`bouquet search`: settings of many methods, with the same number of trials for each, chosen on validation.

    DIR/search.db               the trials, in SQLite, as Optuna keeps them
    DIR/trials.csv, search.md   the same for readers
    DIR/chosen.toml             what a table takes over with settings-from
    DIR/runs/                   the runs of trials that are at work; each is removed when it has ended

A search that was stopped, at whatever moment, goes on where it was: trials that have ended are kept, a trial that was
running is run anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bouquet.cli.beforehand import refuse_folder, refuse_nodes
from bouquet.cli.run import engine_of
from bouquet.cli.search_jobs import await_workers, work_in_processes
from bouquet.cli.search_trials import Search
from bouquet.config import parsed
from bouquet.errors import ConfigError, RunFailed
from bouquet.experiments.search_file import SearchRow, read_search_file, rows_of
from bouquet.experiments.search_report import best_of
from bouquet.experiments.table_report import command_line
from bouquet.extras import need
from bouquet.files import locked
from client_app.node.histories import interactions_of
from client_app.node.needs import refuse_missing_device


def search_command(file: Path, out: Path, overrides: Sequence[str], nodes: int, engine: str, jobs: int) -> None:
    """Run the trials that are missing, then say what was chosen.

    Args:
        jobs: how many trials are run at once, each in a process of its own.
    Raises:
        BouquetError: the file is wrong, the folder has a search under other settings, or a row has no complete trial.
        KeyboardInterrupt: it was stopped.
    """
    need("optuna", "`bouquet search`")
    engine = engine_of(engine)
    search = read_search_file(file)
    rows = rows_of(search, file.parent, overrides)
    refuse_folder(out)
    _check_nodes(rows, nodes)
    out.mkdir(parents=True, exist_ok=True)
    with locked(out / ".lock", ConfigError(f"Another bouquet search is at work in {out}.")):
        await_workers(out)
        at_work = Search(search, rows, out, nodes, engine, command_line(file, out, overrides, "search"))
        at_work.begin()
        try:
            if jobs == 1:
                at_work.work()
            else:
                work_in_processes(at_work, jobs)
        except KeyboardInterrupt:
            at_work.console.print("\nStopped. The same command goes on here.")
            raise
        written = at_work.end()
    at_work.console.print(f"\n{written}\nWritten: {out / 'search.md'}, {out / 'trials.csv'} and {out / 'chosen.toml'}")
    for study in at_work.studies:
        if best_of(study.trials()) is None:
            reason = next((trial.error for trial in study.trials() if trial.error), "all were pruned")
            raise RunFailed(f"Row '{study.row.name}' has no complete trial: {reason}")


def _check_nodes(rows: Sequence[SearchRow], nodes: int) -> None:
    """Raises: ConfigError: the trials of a row could not start."""
    interactions = interactions_of(parsed(rows[0].settings).run)  # all rows are on the same data
    for row in rows:
        config = parsed(row.settings).run
        try:
            refuse_nodes(interactions, config, nodes)
            refuse_missing_device(config)
        except ConfigError as error:
            raise ConfigError(f"Row '{row.name}': {error}") from None
