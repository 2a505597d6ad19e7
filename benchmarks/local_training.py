"""Users trained per second on one core, by backend: `python -m benchmarks.local_training [--quick] [--json]`,
of matrix factorisation or, with `--backbone ncf`, of another model.

All backends train the same users from the same start with the same negatives, in turn within each repetition, so
that a slow moment of the machine meets all of them. The loop prepares its data once, outside the measured time,
like the others; where it would take too long it trains a sample of the users, spread evenly over their sizes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.machine import describe_machine
from benchmarks.shapes import Shape, shape
from benchmarks.tables import markdown
from bouquet.arrays import initial_private, initial_shared
from bouquet.config import ModelOptions, TrainingOptions
from client_app.training import BACKENDS, LocalTask
from data_partition import training_negatives
from models import BACKBONES

LOCAL_EPOCHS = 10
LOOP_USERS = 48


def make_task(
    data: Shape, users: NDArray[np.int64], embedding_size: int, batch_size: int, optimizer: str,
    backbone_name: str = "mf", **further: Any,
) -> LocalTask:  # fmt: skip
    """One round of local training for some users of a shape, with further training options."""
    histories = data.histories
    backbone = BACKBONES[backbone_name](
        histories.num_items, ModelOptions(embedding_size=embedding_size, init_scale=0.1)
    )
    keys, train = histories.users[users], histories.train.take(users)
    spec = backbone.private["user_embedding"]
    options: dict[str, Any] = {"batch_size": batch_size, "optimizer": optimizer, "local_epochs": LOCAL_EPOCHS}
    options |= further
    return LocalTask(
        backbone=backbone,
        options=TrainingOptions(**options),
        users=keys,
        round=1,
        seed=0,
        positives=train,
        negatives=training_negatives(train, train, histories.num_items, 4, keys, 0, 1),
        shared=initial_shared(backbone.shared, 0),
        private={"user_embedding": initial_private("user_embedding", spec, 0, keys)},
    )


def seconds(backend: str, task: LocalTask) -> float:
    """Wall time of training all users of a task."""
    start = time.perf_counter()
    for _ in BACKENDS[backend](task):
        pass
    return time.perf_counter() - start


def spread(histories_lengths: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """`count` users whose sizes are spread like those of all: every n-th user by size."""
    order = np.argsort(histories_lengths, kind="stable")
    return np.sort(order[np.linspace(0, len(order) - 1, min(count, len(order))).astype(int)])


def measure(
    shapes: Sequence[str],
    sizes: Sequence[int],
    batches: Sequence[int],
    optimizers: Sequence[str],
    repetitions: int,
    loop_users: int = LOOP_USERS,
    backbone: str = "mf",
) -> list[dict[str, Any]]:
    """All combinations; one row per backend with its users per second and its ratio to the loop."""
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # figures are per core
    rows = []
    for name in shapes:
        data = shape(name)
        everyone = np.arange(len(data.histories.users))
        sample = spread(data.histories.train.lengths, loop_users)
        for size, batch, optimizer in product(sizes, batches, optimizers):
            tasks = {
                backend: make_task(data, sample if backend == "loop" else everyone, size, batch, optimizer, backbone)
                for backend in BACKENDS
            }
            for backend, task in tasks.items():
                if backend != "loop":
                    seconds(backend, task)  # compile, and fill caches
            rates: dict[str, list[float]] = {backend: [] for backend in BACKENDS}
            for _ in range(repetitions):
                for backend, task in tasks.items():
                    rates[backend].append(len(task.users) / seconds(backend, task))
            for backend, found in rates.items():
                ratios = [rate / loop for rate, loop in zip(found, rates["loop"], strict=True)]
                rows.append(
                    {
                        "shape": name,
                        "backbone": backbone,
                        "real_data": data.real,
                        "embedding_size": size,
                        "batch_size": batch,
                        "optimizer": optimizer,
                        "backend": backend,
                        "users_per_second": round(statistics.median(found), 1),
                        "ratio_to_loop": round(statistics.median(ratios), 2),
                        "ratio_to_loop_min": round(min(ratios), 2),
                        "repetitions": repetitions,
                    }
                )
    return rows


def quick(backbone: str = "mf") -> list[dict[str, Any]]:
    """A look in under a minute."""
    return measure(["ml-100k"], [16], [256, 2048], ["sgd", "adam"], repetitions=3, loop_users=24, backbone=backbone)


def full(backbone: str = "mf") -> list[dict[str, Any]]:
    """Everything."""
    shapes, optimizers = ["ml-100k", "ml-1m"], ["sgd", "adam"]
    return measure(shapes, [16, 32], [256, 2048], optimizers, repetitions=5, backbone=backbone)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few combinations, under a minute")
    parser.add_argument("--backbone", choices=sorted(BACKBONES), default="mf", help="the model that is trained")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    options = parser.parse_args(arguments)
    rows = (quick if options.quick else full)(options.backbone)
    if options.json:
        json.dump(rows, sys.stdout, indent=2)
        print()
    else:
        print(json.dumps(describe_machine(), indent=2), markdown(rows), sep="\n\n")


if __name__ == "__main__":
    main()
