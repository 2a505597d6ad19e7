"""The numba backend: matrix factorisation with compiled loops over users, on as many threads as the process may use.

What the kernels do not compute (another model, weight decay), and everything where numba is not installed, is left
to the torch backend.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from bouquet.ragged import Ragged
from bouquet.randomness import Purpose, streams
from client_app.personalization.base import Changes
from client_app.training.compiled_ncf import fits_ncf, train_ncf
from client_app.training.compiler import kernels, ncf_kernels
from client_app.training.stacked import train_stacked
from client_app.training.task import LocalTask
from models import MatrixFactorization

# Tables of the users of one block, in bytes: small enough to stay in the last-level cache of small machines.
BLOCK_BYTES = 16 * 2**20


def fits(task: LocalTask) -> bool:
    """Whether the kernels compute this task: plain matrix factorisation, touched rows only."""
    plain = isinstance(task.backbone, MatrixFactorization) and not task.personalizations
    return plain and task.options.weight_decay == 0 and task.options.early_stop_tolerance == 0


def train_compiled(task: LocalTask) -> Iterator[Changes]:
    """Train blocks of users; what the kernels do not compute, torch does."""
    code = kernels()
    if code is None:
        _say_once()
    if fits_ncf(task) and code is not None and (code_ncf := ncf_kernels()) is not None:
        yield from train_ncf(task, code_ncf, _spread)
        return
    if code is None or not fits(task):
        yield from train_stacked(task)
        return
    row_bytes = 4 * task.backbone.private["user_embedding"].size
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
    vectors = task.private["user_embedding"][users].astype(task.dtype)
    if shared:
        origin = task.shared["item_embedding"].astype(task.dtype, copy=False)
        tables = np.empty((len(touched.values), vectors.shape[1]), task.dtype)
        code.gather(origin, touched.values, tables)
    else:
        owners = users[touched.row_of_value]
        before = task.private["item_embedding"][owners, touched.values]
        tables = before.astype(task.dtype)
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
        losses,
    )
    _spread(lambda begin, end: code.train_users(begin, end, *arguments), touched.indptr)
    task.private["user_embedding"][users] = vectors
    changes = Changes(users=users, rows=touched, loss=losses)
    if shared:
        code.subtract_rows(tables, origin, touched.values)
        changes.by_item["item_embedding"] = tables
    else:
        task.private["item_embedding"][owners, touched.values] = tables
        if "item_embedding" in task.reported:
            changes.by_item["item_embedding"] = tables - before
    return changes


@cache
def _say_once() -> None:
    print("numba is not installed: local training runs in torch, several times slower.", file=sys.stderr)


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
        for done in [pool.submit(work, *pair) for pair in pairwise(bounds)]:
            done.result()
