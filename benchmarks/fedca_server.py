"""The server's part of a round of FedCA on one core: `python -m benchmarks.fedca_server [--quick] [--json]`.

The tables are those of a first round: all users of a data set trained from one shared table, as in the paper (d = 16,
Adam at .01, 10 epochs, batches of 256). Every stage is measured in a process of its own on one thread. The yardstick
is the matrix product W Q of the whole, in float32: what the machine's BLAS needs for it in the same run. cvxpy solves
a sample of the users; its time is scaled to all of them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from benchmarks.machine import describe_machine
from benchmarks.tables import markdown
from strategies.fedca import complementarity_matrix, composite_weights, mix, similarity_matrix
from strategies.numerics.simplex import QuadraticProgramme, project_rows

EMBEDDING_SIZE, FEATURES = 16, 4
ALPHA, BETA = 0.5, 0.4
ALL_STAGES = ("similarity", "complementarity", "composite weights", "mixing")


def train(name: str, folder: Path) -> dict[str, Any]:
    """One round of local training; writes every user's table, features and size into the folder."""
    from benchmarks.local_training import make_task
    from benchmarks.shapes import shape
    from client_app.training import BACKENDS

    data = shape(name)
    users = np.arange(len(data.histories.users))
    task = make_task(data, users, EMBEDDING_SIZE, 256, "adam", learning_rate=0.01, user_learning_rate=0.01)
    base = task.shared["item_embedding"]
    place = folder / "tables.npy"
    tables = np.lib.format.open_memmap(place, "w+", np.float32, (len(users), *base.shape))
    features = np.zeros((len(users), FEATURES, EMBEDDING_SIZE), np.float32)
    tables[:] = base
    for changes in BACKENDS["numba"](task):
        tables[changes.users[changes.rows.row_of_value], changes.rows.values] += changes.by_item["item_embedding"]
    for user, table in enumerate(tables):
        vectors = np.linalg.svd(table[task.positives.row(user)], full_matrices=False)[2][:FEATURES]
        features[user, : len(vectors)] = vectors
    np.save(folder / "features.npy", features)
    np.save(folder / "sizes.npy", task.positives.lengths)
    return {"shape": name, "real_data": data.real, "users": len(users), "items": base.shape[0]}


def seconds(work: Callable[[], Any], repetitions: int) -> list[float]:
    """Wall times of some calls."""
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return times


def stages(folder: Path, repetitions: int, solved: int) -> tuple[dict[str, list[float]], float]:
    """Seconds of every stage, for all users, and the peak memory of this process in GiB; mixing is done in place."""
    tables, features, sizes = (np.load(folder / f"{part}.npy") for part in ("tables", "features", "sizes"))
    count = len(tables)
    found: dict[str, list[float]] = {}
    with threadpool_limits(1):

        def measure(stage: str, work: Callable[[], NDArray[Any]], times: int = repetitions) -> NDArray[Any]:
            result = work()  # also fills caches
            found[stage] = seconds(work, times)
            return result

        similarity = measure("similarity", lambda: similarity_matrix(tables))
        complementarity = measure("complementarity", lambda: complementarity_matrix(features))
        weights = measure(
            "composite weights", lambda: composite_weights(similarity, complementarity, sizes, ALPHA, BETA)
        )
        measure("complementarity, greedy", lambda: complementarity_matrix(features, paired="greedy"), 1)
        target = (sizes / sizes.sum() + ALPHA * similarity + BETA / 2 * complementarity) / (1 + ALPHA)
        measure("projection alone", lambda: project_rows(target))
        measure("projection with a cap", lambda: project_rows(target, 10 / count), 1)
        found |= solvers(target, solved)
        measure("mixing", lambda: mix(weights, tables, tables))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        single, flat = weights.astype(np.float32), tables.reshape(count, -1)
        measure("yardstick: the product W Q", lambda: single @ flat)
    found["all stages"] = [sum(parts) for parts in zip(*(found[stage] for stage in ALL_STAGES), strict=True)]
    return found, peak


def solvers(target: NDArray[np.float64], solved: int) -> dict[str, list[float]]:
    """Seconds of cvxpy for all users, from a sample: a new problem for each, as in the paper, and one kept."""
    count = len(target)
    rows = target[np.linspace(0, count - 1, solved).astype(int)]
    kept = QuadraticProgramme(count)
    kept.solve(rows[0])  # imports and compiles
    new = [seconds(partial(lambda row: QuadraticProgramme(count).solve(row), row), 1)[0] for row in rows]
    reused = [seconds(partial(kept.solve, row), 1)[0] for row in rows]
    each = {"cvxpy, a problem per user": new, "cvxpy, compiled once": reused}
    return {name: [statistics.mean(times) * count] for name, times in each.items()}


def measure(shapes: Sequence[str], repetitions: Sequence[int], solved: Sequence[int]) -> list[dict[str, Any]]:
    """One row per data set and stage, with its ratio to the yardstick and to the projection of all users."""
    rows = []
    for name, times, sample in zip(shapes, repetitions, solved, strict=True):
        with tempfile.TemporaryDirectory() as place:
            # A process each, so that the memory of training does not count.
            fresh = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(1, mp_context=fresh) as pool:
                about = pool.submit(train, name, Path(place)).result()
            with ProcessPoolExecutor(1, mp_context=fresh) as pool:
                found, peak = pool.submit(stages, Path(place), times, sample).result()
        middle = {stage: statistics.median(parts) for stage, parts in found.items()}
        for stage, parts in found.items():
            rows.append(
                {
                    **about,
                    "embedding_size": EMBEDDING_SIZE,
                    "stage": stage,
                    "seconds": round(middle[stage], 4),
                    "seconds_min": round(min(parts), 4),
                    "ratio_to_yardstick": round(middle[stage] / middle["yardstick: the product W Q"], 3),
                    "ratio_to_projection": round(middle[stage] / middle["projection alone"], 1),
                    "repetitions": len(parts),
                    "peak_gib": round(peak, 2),
                }
            )
    return rows


def quick() -> list[dict[str, Any]]:
    """The smaller data set, in under a minute."""
    return measure(["ml-100k"], [5], [8])


def full() -> list[dict[str, Any]]:
    """MovieLens-1M too: some minutes, and 1.5 GB of temporary disk space for the tables."""
    return measure(["ml-100k", "ml-1m"], [9, 1], [20, 2])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the smaller data set only, under a minute")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    options = parser.parse_args(arguments)
    rows = quick() if options.quick else full()
    if options.json:
        json.dump(rows, sys.stdout, indent=2)
        print()
    else:
        print(json.dumps(describe_machine(), indent=2), markdown(rows), sep="\n\n")


if __name__ == "__main__":
    main()
