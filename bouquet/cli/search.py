"""`bouquet search`: settings of many methods, with the same number of trials for each, chosen on validation.

    DIR/search.db               the trials, in SQLite, as Optuna keeps them
    DIR/trials.csv, search.md   the same for readers
    DIR/chosen.toml             what a table takes over with settings-from
    DIR/chosen/ROW.toml         the same of one row for `bouquet run --config`
    DIR/runs/                   the runs of trials that are at work; each is removed when it has ended

A search that was stopped, at whatever moment, goes on where it was: trials that have ended are kept, a trial that was
running is run anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bouquet.cli.beforehand import refuse_folder, refuse_runs
from bouquet.cli.run import engine_of
from bouquet.cli.search_jobs import await_workers, work_in_processes
from bouquet.cli.search_trials import Search
from bouquet.config import lookup, parsed
from bouquet.errors import ConfigError, RunFailed
from bouquet.experiments.search_file import read_search_file, rows_of
from bouquet.experiments.search_report import best_of
from bouquet.experiments.table_report import command_line
from bouquet.extras import need
from bouquet.files import locked
from bouquet.ready_made import SEARCHES, ready_made


def search_command(
    file: Path, out: Path, overrides: Sequence[str], nodes: int, engine: str, jobs: int, only: Sequence[str] = ()
) -> None:
    """Run the trials that are missing, then say what was chosen.

    Args:
        jobs: how many trials are run at once, each in a process of its own.
        only: rows whose trials are run; empty: all. What comes out has these, and those that had trials before.
    Raises:
        BouquetError: the file is wrong, the folder has a search under other settings, or a row has no complete trial.
        KeyboardInterrupt: it was stopped.
    """
    need("optuna", "`bouquet search`")
    engine = engine_of(engine)
    place = ready_made(file, SEARCHES)
    search = read_search_file(place)
    rows = rows_of(search, place.parent, overrides)
    for name in only:
        lookup({row.name: row for row in rows}, "row", name)
    refuse_folder(out)
    refuse_runs({f"Row '{row.name}'": parsed(row.settings).run for row in rows}, nodes)
    out.mkdir(parents=True, exist_ok=True)
    with locked(out / ".lock", ConfigError(f"Another bouquet search is at work in {out}.")):
        await_workers(out)
        command = command_line(file, out, overrides, "search") + "".join(f" --only {name}" for name in only)
        at_work = Search(search, rows, out, nodes, engine, command, only)
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
    for study in at_work.asked:
        if best_of(study.trials()) is None:
            reason = next((trial.error for trial in study.trials() if trial.error), "all were pruned")
            raise RunFailed(f"Row '{study.row.name}' has no complete trial: {reason}")
