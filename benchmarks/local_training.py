"""Users trained per second on one core, by backend: `python -m benchmarks.local_training [--quick] [--json]`,
of matrix factorisation or, with `--backbone ncf`, of another model, and with `--method plgc` of a device-side method.

All backends train from the same start with the same negatives, in turn within each repetition, so that a slow moment
of the machine meets all of them. Time is processor time of one thread, which other programs on the machine change
little. A backend that would take too long trains a sample of the users: the middle ones of equally many users each,
by size, which keeps the mean.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.machine import describe_machine
from benchmarks.shapes import Shape, shape
from benchmarks.tables import markdown
from bouquet.arrays import initial_private, initial_shared
from bouquet.config import ModelOptions, Scalar, TrainingOptions, defaults, parsed
from bouquet.experiments.settings import option_classes
from bouquet.randomness import SeededDraws
from client_app.personalization import device_methods
from client_app.personalization.round import Given
from client_app.training import BACKENDS, LocalTask
from data_partition import training_negatives
from models import BACKBONES

LOCAL_EPOCHS = 10
# How many users a backend trains; the others train all.
SAMPLES = {"loop": 48, "torch": 480}
# Under SGD the defaults; under Adam what FedCA's paper uses, because the defaults make it diverge.
RATES: dict[str, dict[str, float]] = {"sgd": {}, "adam": {"learning_rate": 0.01, "user_learning_rate": 0.0}}

# Device-side methods that can be measured, with the settings that bring them in.
METHODS: dict[str, dict[str, Scalar]] = {
    "ace": {"strategy": "fcf", "personalization": "ace"},
    "ace-fedrap": {"strategy": "fedrap", "personalization": "ace", "fedrap-lambda": 0.1, "fedrap-mu": 0.1},
    "ace-ncf": {"strategy": "fcf", "personalization": "ace", "backbone": "ncf"},
    "fed3cr": {"strategy": "fed3cr"},
    "fedrap": {"strategy": "fedrap"},
    "fedrap-terms": {"strategy": "fedrap", "fedrap-lambda": 0.1, "fedrap-mu": 0.1},
    "pfedrec": {"strategy": "pfedrec"},
    "plgc": {"strategy": "fcf", "personalization": "plgc"},
    "plgc-fedrap": {
        "strategy": "fedrap",
        "personalization": "plgc",
        "plgc-tables": "base",
        "fedrap-lambda": 0.1,
        "fedrap-mu": 0.1,
    },
    "plgc-ncf": {"strategy": "fcf", "personalization": "plgc", "backbone": "ncf"},
}


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
    options: dict[str, Any] = {"batch_size": batch_size, "optimizer": optimizer, "local_epochs": LOCAL_EPOCHS}
    options |= {**RATES[optimizer], **further}
    return LocalTask(
        backbone=backbone,
        options=TrainingOptions(**options),
        users=keys,
        round=1,
        draws=SeededDraws(0),
        positives=train,
        negatives=training_negatives(train, train, histories.num_items, 4, keys, SeededDraws(0), 1),
        shared=initial_shared(backbone.shared, 0),
        private={name: initial_private(name, spec, 0, keys) for name, spec in backbone.private.items()},
    )


def make_method_task(
    data: Shape, users: NDArray[np.int64], embedding_size: int, batch_size: int, optimizer: str, method: str
) -> LocalTask:
    """As `make_task`, with a device-side method and the arrays that it adds, all at their initial values."""
    backbone = str(METHODS[method].get("backbone", "mf"))
    plain = make_task(data, users, embedding_size, batch_size, optimizer, backbone)
    given_settings: dict[str, Scalar] = {**METHODS[method], "embedding-size": embedding_size, "init-scale": 0.1}
    settings = defaults(option_classes()) | given_settings
    methods = device_methods(parsed(settings), plain.backbone)
    shared, private, kept = dict(plain.shared), dict(plain.private), frozenset[str]()
    for part in methods:
        shared |= initial_shared(part.shared, 0)
        private |= {name: initial_private(name, spec, 0, plain.users) for name, spec in part.private.items()}
        kept |= part.kept
    private |= {name: np.repeat(shared[name][None], len(users), axis=0) for name in kept}
    given = Given(shared, {name: values.astype(np.float32) for name, values in private.items()})
    for part in methods:
        given = part.start(given, {}, np.zeros(len(users), bool))
    return replace(
        plain,
        shared=given.shared,
        private=given.own,
        reported=given.reported,
        frozen=given.frozen,
        anchors=given.anchors,
        personalizations=tuple(part for part in methods if part.in_loss),
    )


def measure_methods(methods: Sequence[str], embedding_size: int = 16, repetitions: int = 3) -> list[dict[str, Any]]:
    """Each device-side method on MovieLens-100K: the same users trained by the loop and by what runs use, in turn."""
    torch.set_num_threads(1)
    data = shape("ml-100k")
    users = spread(data.histories.train.lengths, SAMPLES["loop"])
    rows = []
    for method in methods:
        task = make_method_task(data, users, embedding_size, 2048, "sgd", method)
        times: dict[str, list[float]] = {"loop": [], "numba": []}
        for repetition in range(repetitions + 1):  # the first warms up
            for backend, found in times.items():
                private = {name: values.copy() for name, values in task.private.items()}
                taken = seconds(backend, replace(task, private=private))
                found += [taken] if repetition else []
        ratios = [loop / fast for loop, fast in zip(times["loop"], times["numba"], strict=True)]
        rows.append(
            {
                "shape": "ml-100k",
                "real_data": data.real,
                "method": method,
                "embedding_size": embedding_size,
                "users": len(users),
                "users_per_second": round(len(users) / statistics.median(times["numba"]), 1),
                "ratio_to_loop": round(statistics.median(ratios), 2),
                "ratio_to_loop_min": round(min(ratios), 2),
            }
        )
    return rows


def seconds(backend: str, task: LocalTask, clock: Callable[[], float] = time.process_time) -> float:
    """Time of training all users of a task."""
    start = clock()
    for _ in BACKENDS[backend](task):
        pass
    return clock() - start


def spread(lengths: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """`count` users whose sizes are spread like those of all."""
    if count >= len(lengths):
        return np.arange(len(lengths))
    order = np.argsort(lengths, kind="stable")
    return np.sort(order[((np.arange(count) + 0.5) * len(order) / count).astype(int)])


def measure(
    shapes: Sequence[str],
    sizes: Sequence[int],
    batches: Sequence[int],
    optimizers: Sequence[str],
    repetitions: int,
    samples: Mapping[str, int] = SAMPLES,
    backbone: str = "mf",
) -> list[dict[str, Any]]:
    """All combinations; one row per backend with its users per second and its ratio to the loop."""
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # figures are per core
    rows = []
    for name in shapes:
        data = shape(name)
        lengths = data.histories.train.lengths
        chosen = {backend: spread(lengths, samples.get(backend, len(lengths))) for backend in BACKENDS}
        for size, batch, optimizer in product(sizes, batches, optimizers):
            tasks = {
                backend: make_task(data, users, size, batch, optimizer, backbone_name=backbone)
                for backend, users in chosen.items()
            }
            seconds("numba", tasks["numba"])  # compile
            seconds("torch", make_task(data, chosen["loop"], size, batch, optimizer, backbone_name=backbone))
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
                        "users": len(chosen[backend]),
                        "users_per_second": round(statistics.median(found), 1),
                        "ratio_to_loop": round(statistics.median(ratios), 2),
                        "ratio_to_loop_min": round(min(ratios), 2),
                        "ratio_of_best": round(max(found) / max(rates["loop"]), 2),
                        "repetitions": repetitions,
                    }
                )
    return rows


def quick(backbone: str = "mf") -> list[dict[str, Any]]:
    """A look in under a minute."""
    samples = {"loop": 24, "torch": 480}
    return measure(["ml-100k"], [16], [256, 2048], ["sgd", "adam"], 3, samples=samples, backbone=backbone)


def full(backbone: str = "mf") -> list[dict[str, Any]]:
    """Everything."""
    shapes, optimizers = ["ml-100k", "ml-1m"], ["sgd", "adam"]
    return measure(shapes, [16, 32], [256, 2048], optimizers, repetitions=7, backbone=backbone)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few combinations, under a minute")
    parser.add_argument("--backbone", choices=sorted(BACKBONES), default="mf", help="the model that is trained")
    parser.add_argument("--method", choices=sorted(METHODS), action="append", help="a device-side method, on mf")
    parser.add_argument(
        "--embedding-size", type=int, choices=[8, 16, 32, 64], action="append", help="with --method, 16 by default"
    )
    parser.add_argument("--json", action="store_true", help="print JSON only")
    options = parser.parse_args(arguments)
    if options.embedding_size and not options.method:
        parser.error("--embedding-size goes with --method; models without one are measured with 16 and 32 columns")
    if options.method:
        sizes = options.embedding_size or [16]
        rows = [row for size in sizes for row in measure_methods(options.method, size)]
    else:
        rows = (quick if options.quick else full)(options.backbone)
    if options.json:
        json.dump(rows, sys.stdout, indent=2)
        print()
    else:
        print(json.dumps(describe_machine(), indent=2), markdown(rows), sep="\n\n")


if __name__ == "__main__":
    main()
