"""PLGC's local training by compiled loops, where they compute it; elsewhere it is torch's."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from bouquet.methods.plgc import PLGCOptions
from bouquet.randomness import Purpose
from client_app.personalization.base import GLOBAL, Changes
from client_app.personalization.plgc_redundancy import NETWORKS
from client_app.training.blocks import Block, blocks
from client_app.training.compiler import mixed_kernels, mixed_ncf_kernels, row_kernels
from client_app.training.network_layout import NetworkLayout, networks_of
from client_app.training.threads import run_kernel

if TYPE_CHECKING:
    from client_app.training.task import LocalTask

# Rows of the users of one block, in bytes.
_BLOCK_BYTES = 16 * 2**20


def fits(options: PLGCOptions, task: LocalTask) -> bool:
    """Whether the loops compute this: plain SGD, a factorisation or one perceptron, a table beside the common one."""
    reduced = options.plgc_redundancy in ("err", "none") or options.weight == 0
    own = options.plgc_tables == "own" and not options.plgc_learn_through_mu
    backbone = task.backbone
    known = backbone.kernel == "mf" or (backbone.kernel == "ncf" and len(networks_of(backbone)) == 1)
    return task.plain_sgd and reduced and own and known and len(task.personalizations) == 1


def train(options: PLGCOptions, table: str, task: LocalTask) -> Iterator[Changes] | None:
    """Train blocks of users; None where the loops do not compute it, or are not there.

    Args:
        table: the item table, among the task's arrays.
    """
    if not fits(options, task):
        return None
    layout = NetworkLayout(task.backbone) if task.backbone.kernel == "ncf" else None
    code, row_code = mixed_ncf_kernels() if layout else mixed_kernels(), row_kernels()
    if code is None or row_code is None:
        return None
    row_bytes = 8 * task.specs[table].shape[1]
    at_most = np.minimum(task.positives.lengths + task.negatives.lengths, task.num_items)
    return (
        _train(options, table, task, Block(task, users, row_code), code, layout)
        for users in blocks(task, at_most * row_bytes, _BLOCK_BYTES)
    )


def _train(
    options: PLGCOptions, table: str, task: LocalTask, block: Block, code: ModuleType, layout: NetworkLayout | None
) -> Changes:
    """Train one block of users.

    Args:
        layout: of a perceptron, whose numbers stand behind the user's embedding; None: a factorisation.
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
    model: tuple[object, ...] = ()
    if layout is None:
        start = task.private["user_embedding"][users].astype(dtype)
        rates = [task.rate(table), task.rate("user_embedding")]
    else:
        start = layout.start(task, users, touched)
        model, rates = (*layout.of_largest, layout.rates(task)), [task.rate(table)]
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
    rates.append(task.rate(NETWORKS[0]) if reduced else 0.0)
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
        *model,
        networks.reshape(count, len(NETWORKS), width * width),
        task.draws.seeds(task.users[users], task.round, Purpose.BATCH_ORDER),
        task.options.local_epochs,
        task.options.batch_size,
        dtype({"ntk": -1.0, "half": 0.5}.get(mixed, 1.0)),
        dtype(options.weight if reduced else 0.0),
        dtype(options.plgc_kappa),
        np.array(rates).astype(dtype),
        losses,
        steps,
    )

    run_kernel(code.train_mixed, arguments, touched.indptr)
    dense = {}
    if layout is None:
        task.private["user_embedding"][users] = vectors
    else:
        dense = layout.keep(task, users, start, vectors)
    for place, name in enumerate(NETWORKS if reduced else ()):
        task.private[name][users] = networks[:, place, :d, :d]
    if kept:
        block.keep(task.private[table], trained)
    trained -= before
    return Changes(users=users, rows=touched, by_item={table: trained}, dense=dense, loss=losses, steps=steps)
