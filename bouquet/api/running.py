"""`bouquet.run`: a federated training in a process of its own, followed from here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from bouquet.api.progress import Progress
from bouquet.api.result import Run, load
from bouquet.api.tables import write_table
from bouquet.config import RunConfig, Scalar, own
from bouquet.engines.processes import Tree
from bouquet.errors import ERROR_FILE, ConfigError, RunFailed, told
from bouquet.own_packages import command
from bouquet.ready_made import RUNS, ready_made
from bouquet.reporting.naming import run_name
from bouquet.reporting.run_directory import RunDirectory

if TYPE_CHECKING:
    import pandas as pd

_POLL_SECONDS = 0.05
# What a command that is asked to end has for its last words before it is killed.
_END_SECONDS = 30.0


def run(
    strategy: str | None = None,
    dataset: str | os.PathLike[str] | pd.DataFrame | None = None,
    *,
    nodes: int = 4,
    engine: str = "",
    out: str | os.PathLike[str] = "",
    config: str | os.PathLike[str] = "",
    compare_with: Sequence[str] = (),
    progress: bool = True,
    **settings: Scalar,
) -> Run:
    """Train a federated recommender, and say how good it is.

    The training runs in a process of its own, as `bouquet run` does; it ends when this call does, however that is.

    Args:
        strategy: a method; None: what the program does where none is given.
        dataset: the name of a data set, the path of a CSV, TSV or Parquet file, or a DataFrame with one row per
            interaction. A DataFrame needs the columns `user` and `item`, or those that `user_column` and `item_column`
            name; `time_column` and `title_column` name the times and the items' titles, and columns `time` and `title`
            are taken for them where they do not. It is kept in the folder of the run.
        nodes: that the users are partitioned over; the figures do not depend on it.
        engine: "flower" (its simulation), "local" (one process), or "" for flower where Ray is installed.
        out: folder of the results, which must not hold a run; "": a new one in `runs`.
        config: TOML file with settings, or the name of one that comes with bouquet; those that are given here win.
        compare_with: rows beside the run, as of `--compare-with`; in `Run.comparison` afterwards.
        progress: show rounds as they come, in a terminal or a notebook.
        settings: every other setting of a run, with underscores: `num_server_rounds=20`; `bouquet explain` lists them.
    Raises:
        ConfigError: a setting is unknown or impossible, or the folder holds a run.
        DataError: the data cannot be read.
        RunFailed: the training failed.
        KeyboardInterrupt: it was interrupted; the run can go on with `bouquet.run(resume=…)`.
    """
    given = _from_file(config) if config else {}
    given |= {key.replace("_", "-"): plain(key, value) for key, value in settings.items()}
    if strategy is not None:
        given["strategy"] = strategy
    given |= data_settings(dataset)
    directory = RunDirectory(str(given.get("resume") or out or given.get("out") or _free_name(given)))
    if "resume" not in given:
        given["out"] = str(directory.path)
    if dataset is not None and not isinstance(dataset, str | os.PathLike):
        if directory.summary.exists():
            raise ConfigError(f"{directory.path} already holds a run. Name another folder, or resume it with resume.")
        given |= write_table(dataset, directory.path, given)
    arguments = ["run", "--nodes", str(nodes), "--compare-with", " ".join(compare_with)]
    arguments += ["--engine", engine] if engine else []
    with tempfile.TemporaryDirectory(prefix="bouquet-") as folder:
        file = Path(folder) / "settings.toml"
        file.write_text(tomli_w.dumps(given))
        call([*arguments, "--config", str(file)], Progress(directory, shown=progress))
    return load(directory.path)


def call(arguments: Sequence[str], progress: Progress | None = None) -> None:
    """Run the program to its end, in a process of its own.

    Args:
        progress: a `Progress`, which looks at what the program does now and then.
    Raises:
        BouquetError: what the program said.
    """
    with tempfile.TemporaryDirectory(prefix="bouquet-") as folder:
        errors, said = (Path(folder) / name for name in ("error.json", "stderr"))
        with _ending_with_us() as tree, said.open("wb") as stderr:
            process = subprocess.Popen(
                [*command("bouquet"), *arguments],
                env={**os.environ, **tree.environment, ERROR_FILE: str(errors)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                # A Ctrl-C is for us; we end the run in order.
                start_new_session=True,
            )
            tree.lead(process.pid)
            _follow(process, progress)
        words = said.read_text(errors="replace").strip()
        if process.returncode == 0:
            if words:
                print(words, file=sys.stderr)
            return
        raise told(errors) or RunFailed(words or f"The run ended with status {process.returncode}.")


@contextmanager
def _ending_with_us() -> Iterator[Tree]:
    """Processes that do not stay behind, even if this one is killed."""
    tree = Tree(grace=_END_SECONDS)
    try:
        yield tree
    finally:
        tree.close()


def _follow(process: subprocess.Popen[bytes], progress: Progress | None) -> None:
    try:
        with progress or nullcontext():
            while process.poll() is None:
                if progress:
                    progress.look()
                time.sleep(_POLL_SECONDS)
            if progress:
                progress.look()
    except BaseException:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
        raise


def data_settings(dataset: object) -> dict[str, Scalar]:
    """The settings that say where the interactions are; none for a DataFrame, which has to be written first."""
    if isinstance(dataset, os.PathLike):
        return {"dataset": "file", "data-file": str(Path(dataset).absolute())}
    if isinstance(dataset, str):
        is_path = bool(Path(dataset).suffix) or os.sep in dataset
        return data_settings(Path(dataset)) if is_path else {"dataset": dataset}
    return {}


def _from_file(path: str | os.PathLike[str]) -> dict[str, Scalar]:
    path = ready_made(Path(path), RUNS)
    try:
        document = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as TOML: {error}.") from None
    return dict(document.get("run", document))


def _free_name(given: Mapping[str, Scalar]) -> str:
    """What the program would call the run, and another name where there is one of this second."""
    wanted = run_name(own(given, RunConfig))
    name, number = wanted, 2
    while Path(name).exists():
        name, number = f"{wanted}-{number}", number + 1
    return name


def plain(key: str, value: Any) -> Scalar:
    """A setting as TOML has it; numbers of numpy as those of Python."""
    value = value.item() if hasattr(value, "item") else os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(value, str | int | float | bool):
        raise ConfigError(f"{key} must be a text, a number, True or False, not {type(value).__name__}.")
    return value
