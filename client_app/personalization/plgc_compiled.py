"""PLGC's local training by compiled loops, where they compute it; elsewhere it is torch's."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from bouquet.methods.plgc import PLGCOptions
from bouquet.randomness import Purpose
from client_app.personalization.plgc_redundancy import NETWORKS
from client_app.personalization.round import GLOBAL, Changes
from client_app.training.blocks import Block, blocks
from client_app.training.compiler import mixed_kernels, mixed_ncf_kernels, row_kernels
from client_app.training.network_layout import EmbeddingLayout, NetworkLayout, layout_of
from client_app.training.threads import run_kernel

if TYPE_CHECKING:
    from client_app.training.task import LocalTask

# Rows of the users of one block, in bytes.
_BLOCK_BYTES = 16 * 2**20
# What loops of factorisation are told of a common table that is not trained.
_FROZEN = (-1.0, 0.0, 0.0)


def fits(options: PLGCOptions, task: LocalTask) -> bool:
    """Whether the loops compute this, if they know the model: plain SGD, a table beside the common one."""
    reduced = options.plgc_redundancy in ("err", "none") or options.weight == 0
    own = options.plgc_tables == "own" and not options.plgc_learn_through_mu
    return task.plain_sgd and reduced and own and len(task.personalizations) == 1


def train(options: PLGCOptions, table: str, task: LocalTask) -> Iterator[Changes] | None:
    """Train blocks of users; None where the loops do not compute it, or are not there.

    Args:
        table: the item table, among the task's arrays.
    """
    layout = layout_of(task)
    if layout is None or not fits(options, task):
        return None
    code, row_code = mixed_ncf_kernels() if isinstance(layout, NetworkLayout) else mixed_kernels(), row_kernels()
    if code is None or row_code is None:
        return None
    row_bytes = 8 * task.specs[table].shape[1]
    at_most = np.minimum(task.positives.lengths + task.negatives.lengths, task.num_items)
    return (
        _train(options, table, task, Block(task, users, row_code), code, layout)
        for users in blocks(task, at_most * row_bytes, _BLOCK_BYTES)
    )


def _train(
    options: PLGCOptions, table: str, task: LocalTask, block: Block, code: ModuleType,
    layout: NetworkLayout | EmbeddingLayout,
) -> Changes:  # fmt: skip
    """Train one block of users.

    Args:
        layout: of what is trained besides the item table and redundancy reduction's networks.
    """
    dtype, users, touched, count = task.dtype, block.users, block.touched, len(block.users)
    rows = touched.values
    if GLOBAL in task.frozen:
        common = np.ascontiguousarray(task.frozen[GLOBAL], dtype=dtype)
    else:  # a base method has given every user a common table of its own
        common, rows = block.own_rows(task.anchors[GLOBAL]), np.arange(len(rows), dtype=rows.dtype)
    mixed, reduced = options.plgc_mixing, options.plgc_redundancy == "err" and options.weight > 0
    # Without mixing the common table itself is trained.
    kept = table in task.private
    before = block.own_rows(task.private[table]) if kept else task.shared[table][touched.values].astype(dtype)
    trained = before.copy()
    start = layout.start(task, users, touched)
    vectors = start.copy()
    d = trained.shape[1]
    width = -(-d // 4) * 4
    networks = np.zeros((count, len(NETWORKS), width, width), dtype)
    for place, name in enumerate(NETWORKS if reduced else ()):
        networks[:, place, :d, :d] = task.private[name][users]
    outside = np.zeros((2, count))
    if mixed == "ntk":
        outside[:] = [task.norms_outside(name, users, touched) for name in (table, GLOBAL)]
    losses, steps = np.empty(count), np.empty(count, np.int64)
    rates = [task.rate(table), *layout.single_rates(task), task.rate(NETWORKS[0]) if reduced else 0.0]
    share = {"ntk": -1.0, "half": 0.5}.get(mixed, 1.0)
    further = layout.arguments(task) if isinstance(layout, NetworkLayout) else (np.array(_FROZEN, dtype),)
    arguments = (
        touched.indptr,
        rows,
        common,
        trained,
        outside,
        block.sample_indptr,
        block.positives.lengths,
        block.place,
        vectors,
        *further,
        networks.reshape(count, len(NETWORKS), width * width),
        task.draws.seeds(task.users[users], task.round, Purpose.BATCH_ORDER),
        task.options.local_epochs,
        task.options.batch_size,
        np.array([share, 1 - share], dtype),
        dtype(options.weight if reduced else 0.0),
        dtype(options.plgc_kappa),
        np.array(rates).astype(dtype),
        losses,
        steps,
    )

    run_kernel(code.train_mixed, arguments, touched.indptr)
    dense = layout.keep(task, users, start, vectors)
    for place, name in enumerate(NETWORKS if reduced else ()):
        task.private[name][users] = networks[:, place, :d, :d]
    if kept:
        block.keep(task.private[table], trained)
    trained -= before
    return Changes(users=users, rows=touched, by_item={table: trained}, dense=dense, loss=losses, steps=steps)
