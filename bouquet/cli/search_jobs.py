"""Several trials of a search at once, each in a process of its own, none of which outlives the command."""

from __future__ import annotations

import os
import signal
import sys
import threading
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from bouquet.cli.search_trials import Search
from bouquet.errors import BouquetError, ConfigError, RunFailed
from bouquet.files import locked

# A process whose command was killed ends its run first.
_ENDING_SECONDS = 60.0


def work_in_processes(search: Search, jobs: int) -> None:
    """Run all trials, so many at a time.

    Raises:
        RunFailed: a process did not end well; the others have ended.
        KeyboardInterrupt: the search was stopped, and so were they.
    """
    given = (search.search, search.rows, search.out, search.nodes, search.engine, search.command, search.only)
    context = get_context("spawn")
    processes = [context.Process(target=_work, args=(number, *given)) for number in range(1, jobs + 1)]
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    except BaseException:
        for process in processes:
            if process.is_alive():
                process.terminate()
        for process in processes:
            if process.pid is not None:
                process.join()
        raise
    if failed := [process for process in processes if process.exitcode]:
        raise RunFailed(
            f"{len(failed)} of {jobs} processes of the search did not end well (status {failed[0].exitcode}). Trials "
            "that have ended are kept; the same command goes on."
        )


def await_workers(out: Path) -> None:
    """Wait for the processes of a command that was killed.

    Raises:
        ConfigError: they do not end.
    """
    for path in sorted(out.glob(".worker-*")):
        with locked(path, _occupied(out), _ENDING_SECONDS):
            path.unlink()


def _occupied(out: Path) -> ConfigError:
    return ConfigError(f"Another bouquet search is at work in {out}.")


def _work(number: int, *given: Any) -> None:
    signal.signal(signal.SIGTERM, _interrupt)
    threading.Thread(target=_end_with_parent, name="bouquet-parent", daemon=True).start()
    out: Path = given[2]
    try:
        with locked(out / f".worker-{number}", _occupied(out)):
            Search(*given).work()
    except BouquetError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_status)
    except KeyboardInterrupt:
        sys.exit(130)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _end_with_parent() -> None:
    """A command that is killed cannot end its processes."""
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
