"""The numba backend: matrix factorisation with compiled loops over users, on as many threads as the process may use.

Compiled code is kept for the next process. Flower runs an app from a folder that is new for every run, and numba
looks its cache up by the path of the source file; so the kernels are compiled from a copy in the user's cache
folder, named by its content.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from hashlib import blake2b
from pathlib import Path
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from bouquet.files import write_atomically
from bouquet.ragged import Ragged
from bouquet.randomness import Purpose, streams
from client_app.training.stacked import train_stacked
from client_app.training.task import Changes, LocalTask
from models import MatrixFactorization

# Tables of the users of one block, in bytes: small enough to stay in the last-level cache of small machines.
BLOCK_BYTES = 16 * 2**20
_SOURCE = Path(__file__).with_name("kernels.py")


@cache
def kernels() -> ModuleType | None:
    """The compiled kernels, or None where numba is not installed."""
    if importlib.util.find_spec("numba") is None:
        # Standard error of a device; a simulation shows it in Flower's log.
        print("numba is not installed: local training runs in torch, several times slower.", file=sys.stderr)
        return None
    source = _SOURCE.read_bytes()
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bouquet" / "kernels"
    path = root / f"kernels_{blake2b(source, digest_size=8).hexdigest()}.py"
    try:
        root.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            write_atomically(path, source)
    except OSError:
        path = _SOURCE  # a read-only home: compile in place, for this process
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # numba looks its own cache up by module name
    spec.loader.exec_module(module)
    return module


def fits(task: LocalTask) -> bool:
    """Whether the kernels compute this task: plain matrix factorisation, touched rows only."""
    return isinstance(task.backbone, MatrixFactorization) and task.options.weight_decay == 0


def train_compiled(task: LocalTask) -> Iterator[Changes]:
    """Train blocks of users; what the kernels do not compute, torch does."""
    code = kernels() if fits(task) else None
    if code is None:
        yield from train_stacked(task)
        return
    row_bytes = task.num_items and 4 * task.backbone.private["user_embedding"].size
    at_most = task.positives.lengths + task.negatives.lengths
    blocks = (np.cumsum(at_most * row_bytes) // BLOCK_BYTES).astype(np.int64)
    for block in np.split(np.arange(len(task.users)), np.flatnonzero(np.diff(blocks)) + 1):
        if len(block):
            yield _train_block(task, block, code)


def _train_block(task: LocalTask, users: NDArray[np.int64], code: ModuleType) -> Changes:
    options = task.options
    positives, negatives = task.positives.take(users), task.negatives.take(users)
    samples = len(positives.values) + len(negatives.values)
    row_indptr, rows = np.empty(len(users) + 1, np.int64), np.empty(samples, np.int32)
    place = np.empty(samples, np.int32)
    code.touched_rows(
        positives.indptr, positives.values, negatives.indptr, negatives.values, task.num_items, row_indptr, rows, place
    )
    touched = Ragged(row_indptr, rows[: row_indptr[-1]].copy())
    shared = "item_embedding" in task.shared
    if shared:
        start = task.shared["item_embedding"][touched.values].astype(task.dtype)
    else:
        owners = users[touched.row_of_value]
        start = task.private["item_embedding"][owners, touched.values].astype(task.dtype)
    tables, vectors = start.copy(), task.private["user_embedding"][users].astype(task.dtype)
    losses = np.empty(len(users))
    arguments = (
        touched.indptr,
        tables,
        positives.indptr + negatives.indptr,
        positives.lengths,
        place,
        vectors,
        streams(task.seed, task.users[users], task.round, Purpose.BATCH_ORDER),
        options.local_epochs,
        options.batch_size,
        options.optimizer == "adam",
        task.dtype(task.rate("item_embedding")),
        task.dtype(task.rate("user_embedding")),
        task.dtype(options.weight_decay),
        losses,
    )
    _spread(lambda begin, end: code.train_users(begin, end, *arguments), touched.indptr)
    task.private["user_embedding"][users] = vectors  # type: ignore[index]
    changes = Changes(users=users, rows=touched, loss=losses)
    if shared:
        changes.by_item["item_embedding"] = np.subtract(tables, start, out=tables)
    else:
        task.private["item_embedding"][owners, touched.values] = tables  # type: ignore[index]
    return changes


def threads() -> int:
    """How many threads this process may use: what its environment says (Ray does), else all cores."""
    return int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)


def _spread(work, indptr: NDArray[np.int64]) -> None:  # type: ignore[no-untyped-def]
    """Call work(begin, end) for parts of the users with about equally many rows, on all threads."""
    count, users = threads(), len(indptr) - 1
    if count == 1 or users < 2 * count:
        work(0, users)
        return
    cuts = np.searchsorted(indptr, np.linspace(0, indptr[-1], count + 1)[1:-1])
    bounds = [0, *cuts.tolist(), users]
    with ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(work, *pair) for pair in zip(bounds[:-1], bounds[1:], strict=True)]:
            done.result()
