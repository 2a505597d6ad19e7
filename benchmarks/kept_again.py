"""Whether kept cells come again: some of each method are drawn, trained once more, and compared user by user.

A seed gives the same figures with one version on one processor. Another processor adds in another order, and training
can make much of a last digit, so a figure that does not come again need not be wrong. How far it is off says how much
of a seed's own a figure has.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.tables import markdown
from bouquet.cli.run import execute
from bouquet.cli.screen import Screen
from bouquet.config import Scalar, defaults, parsed
from bouquet.errors import BouquetError, RunFailed
from bouquet.evaluation import summarise
from bouquet.experiments.baselines import evaluate_centralized
from bouquet.experiments.ground import ground_of
from bouquet.experiments.kept_cells import KeptCell, cell_files, read_cell
from bouquet.experiments.kept_runs import of_run, revision_of
from bouquet.experiments.settings import option_classes
from bouquet.files import write_atomically
from bouquet.reporting.run_directory import RunDirectory
from models.centralized import POOLED


class Watched(Screen):
    """Says nothing, and ends a run that takes too long."""

    def __init__(self, seconds: float) -> None:
        super().__init__(Console(quiet=True))
        self._until = time.monotonic() + seconds

    @property
    def over(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() > self._until

    def progress(self, directory: RunDirectory) -> None:
        """Raises: RunFailed: the time is over."""
        if self.over:
            raise RunFailed("The time is over.")


def drawn(folder: Path, datasets: Sequence[str], negatives: Sequence[str], of_each: int, draw: int) -> list[Path]:
    """Some cells of each method, plug-in and model, all that are there being equally likely.

    Cells that the program of today would not take for its own, for their revision, are left out.

    Args:
        of_each: how many; fewer where no more are there.
        draw: seed of the draw.
    """
    by_method: dict[tuple[str, ...], list[Path]] = {}
    for path in cell_files(folder):
        if path.parent.name not in datasets:
            continue
        cell = read_cell(path)
        model = str(cell.engine.get("model", ""))
        if cell.revision != revision_of(_settings(cell), model):
            continue
        if not model and cell.settings["train-negatives"] not in negatives:
            continue
        by_method.setdefault(_method(cell), []).append(path)
    draws = np.random.default_rng(draw)
    return [
        paths[number]
        for _, paths in sorted(by_method.items())
        for number in sorted(draws.choice(len(paths), min(of_each, len(paths)), replace=False))
    ]


def again(path: Path, data_dir: str, seconds: float) -> dict[str, Any]:
    """Train the cell once more, here, with as many nodes, and compare.

    Returns:
        What the cell is, `same`: whether every metric of every user is, and the figures of both.
        `not run` and why, if it was not.
    """
    cell = read_cell(path)
    model = str(cell.engine.get("model", ""))
    row: dict[str, Any] = {
        "method": " + ".join(part for part in _method(cell) if part),
        "dataset": cell.settings["dataset"],
        "negatives": "" if model else cell.settings["train-negatives"],
        "seed": cell.settings["seed"],
        "file": path.name,
    }
    start, watch = time.monotonic(), Watched(seconds)
    try:
        values, best_round = _trained(cell, model, data_dir, watch)
    except BouquetError as error:
        return row | {"not run": f"takes more than {seconds / 60:g} minutes" if watch.over else str(error)}
    figures = {"kept": cell.values, "again": values}
    figure = {name: summarise(each.astype(np.float64))["test"]["full"]["NDCG@10"] for name, each in figures.items()}
    return row | {
        "same": bool(np.array_equal(cell.values, values, equal_nan=True)),
        **{f"NDCG@10, {name}": round(value, 4) for name, value in figure.items()},
        "round, kept": cell.summary.get("best_round", ""),
        "round, again": best_round,
        "seconds": round(time.monotonic() - start),
    }


def _trained(cell: KeptCell, model: str, data_dir: str, watch: Watched) -> tuple[NDArray[np.float32], Any]:
    """[n, parts, candidate sets, metrics] of the same users, and the round that validation chose."""
    settings = _settings(cell) | {"data-dir": data_dir}
    if model:
        ground = ground_of(settings)
        values, _ = evaluate_centralized(POOLED[model](), ground.histories, parsed(settings).run)
        return values[np.argsort(ground.histories.users)].astype(np.float32), ""
    nodes = int(cell.engine.get("nodes", 1))
    with TemporaryDirectory(prefix="bouquet-again-") as folder:
        directory = execute(settings | {"out": folder}, nodes, "local", watch)
        return of_run(directory).values, directory.read_summary().get("best_round", "")


def _settings(cell: KeptCell) -> dict[str, Scalar]:
    """A setting that is younger than the cell had its default; one that is no more is left out."""
    plain = defaults(option_classes())
    return plain | {key: value for key, value in cell.settings.items() if key in plain}


def _method(cell: KeptCell) -> tuple[str, ...]:
    if model := str(cell.engine.get("model", "")):
        return (model, "pooled")
    plug_in = str(cell.settings["personalization"])
    return (str(cell.settings["strategy"]), "" if plug_in == "none" else plug_in, str(cell.settings["backbone"]))


def rows_of(paths: Sequence[Path], data_dir: str, out: Path, seconds: float, jobs: int) -> Iterator[dict[str, Any]]:
    """One row for each cell, as they end; those that `out` has already come first."""
    done = {path: out / f"{path.stem}.json" for path in paths}
    for place in done.values():
        if place.exists():
            yield json.loads(place.read_text())
    todo = [path for path, place in done.items() if not place.exists()]
    # A process of its own for each: nothing that one has compiled, cached or set is there for the next.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        running = {pool.submit(again, path, data_dir, seconds): path for path in todo}
        for future in as_completed(running):
            row = future.result()
            write_atomically(done[running[future]], json.dumps(row))
            yield row


def main(words: Sequence[str] | None = None) -> None:
    """Draw, train, compare; `--out` keeps what has ended, and the same command goes on there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=Path, default=Path("docs/results/cells"))
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--out", type=Path, default=Path("results/again"))
    parser.add_argument("--dataset", nargs="+", default=["ml-100k"])
    parser.add_argument("--negatives", nargs="+", default=["honest"])
    parser.add_argument("--of-each", type=int, default=2, help="cells of each method")
    parser.add_argument("--draw", type=int, default=0, help="seed of the draw")
    parser.add_argument("--minutes", type=float, default=10, help="what a run may take")
    parser.add_argument("--jobs", type=int, default=1, help="runs beside each other")
    given = parser.parse_args(words)
    given.out.mkdir(parents=True, exist_ok=True)
    paths = drawn(given.cells, given.dataset, given.negatives, given.of_each, given.draw)
    rows = []
    for row in rows_of(paths, given.data_dir, given.out, 60 * given.minutes, given.jobs):
        rows.append(row)
        print(f"[{len(rows)}/{len(paths)}] {json.dumps(row)}", flush=True)
    rows.sort(key=lambda row: (row["method"], row["file"]))
    write_atomically(given.out / "again.md", markdown(rows) + "\n")
    ran = [row for row in rows if "same" in row]
    same = sum(row["same"] for row in ran)
    print(f"{same} of {len(ran)} are the same to the last digit; {len(rows) - len(ran)} were not run.")


if __name__ == "__main__":
    main()
