"""Small real runs for the tests: a data file, its settings, one run in this process or by the program."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from bouquet.cli.settings import option_classes
from bouquet.config import Scalar, defaults
from bouquet.engines.local import LocalGrid, LocalRun
from bouquet.reporting.run_directory import RunDirectory
from client_app.app import app as client_app
from data_partition import synthetic
from server_app.app import app as server_app
from strategies.checkpoint import Checkpoint, load_checkpoint

# Base methods with a device-side plug-in before them.
PLUG_INS = ("fcf+ace", "fcf+plgc", "fedrap+plgc", "pfedrec+ace", "pfedrec+plgc")
PROGRAM = [sys.executable, "-c", "from bouquet.cli.main import main; main()"]


def write_data(path: Path, users: int = 40, items: int = 60, length: float = 15.0) -> Path:
    """A CSV with columns user, item, time."""
    made = synthetic(users, items, mean_length=length)
    rows = made.histories.row_of_value
    order = np.arange(len(rows)) - made.histories.indptr[rows]
    table = pd.DataFrame({"user": rows, "item": made.histories.values, "time": order})
    table.to_csv(path, index=False)
    return path


def small_settings(folder: Path, **changes: Scalar) -> dict[str, Scalar]:
    """Settings of a run of seconds; keywords with underscores."""
    data = folder / "data.csv"
    if not data.exists():
        write_data(data)
    settings: dict[str, Scalar] = defaults(option_classes()) | {
        "dataset": "file",
        "data-file": str(data),
        "time-column": "time",
        "num-server-rounds": 6,
        "evaluate-every": 2,
        "checkpoint-every": 2,
        "embedding-size": 4,
        "batch-size": 32,
        "node-timeout": 60.0,
    }
    settings |= {key.replace("_", "-"): value for key, value in changes.items()}
    if settings["strategy"] == "hetefedrec" and "hetefedrec_sizes" not in changes:
        settings["hetefedrec-sizes"] = "2,3,4"
    return settings


def method(name: str) -> dict[str, Scalar]:
    """The settings of a strategy, or of one of PLUG_INS, for `small_settings`."""
    strategy, _, plug_in = name.partition("+")
    return {"strategy": strategy, "personalization": plug_in or "none"}


def run_here(
    folder: Path, settings: dict[str, Scalar], nodes: int, grid: type[LocalGrid] = LocalGrid, **arguments: object
) -> RunDirectory:
    """Run in this process, with results and private state under `folder`."""
    directory = RunDirectory(folder)
    changed = settings | {"out": str(folder), "state-dir": str(folder / "nodes")}
    if not directory.summary.exists():
        directory.create(changed, {"engine": "local", "nodes": nodes})
    run = LocalRun(server_app, client_app, nodes, changed)
    run.grid = grid(client_app, nodes, changed, **arguments)
    run()
    return directory


def last_checkpoint(directory: RunDirectory) -> Checkpoint:
    """The newest checkpoint of a run."""
    checkpoint = load_checkpoint(directory.checkpoints)
    assert checkpoint is not None
    return checkpoint


def pairs(settings: dict[str, Scalar]) -> list[str]:
    """Settings as arguments of the program."""
    return ["-c", " ".join(f'{key}="{v}"' if isinstance(v, str) else f"{key}={v}" for key, v in settings.items())]


def bouquet(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Call the program and wait for it."""
    return subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, timeout=300, check=False, **options)


def start_bouquet(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """Start the program and go on."""
    return subprocess.Popen(
        [*PROGRAM, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **(environment or {})},
    )


def await_condition(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
