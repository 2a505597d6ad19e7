"""The numba backend for neural collaborative filtering: what `kernels_nested` needs, packed and unpacked."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from bouquet.ragged import Ragged
from bouquet.randomness import Purpose
from client_app.personalization.round import Changes
from client_app.training.blocks import blocks
from client_app.training.network_layout import NetworkLayout
from client_app.training.task import LocalTask
from client_app.training.threads import run_kernel

# What the users of one block train, in bytes.
BLOCK_BYTES = 16 * 2**20

_ITEMS = "item_embedding"


def fits_ncf(task: LocalTask) -> bool:
    """Whether the kernels compute this task but for its personalizations: everything trained, embeddings undecayed."""
    arrays = {*task.backbone.shared, *task.backbone.private}
    return task.backbone.kernel == "ncf" and task.options.weight_decay == 0 and arrays == set(task.trained)


def train_ncf(task: LocalTask, code: ModuleType, alpha: float = 0.0, off_diagonal: bool = False) -> Iterator[Changes]:
    """Train blocks of users.

    Args:
        code: the module of kernels.
        alpha, off_diagonal: of decorrelation (HeteFedRec, eq. 13 and 14), which works on all rows; 0: there is none.
    """
    layout = NetworkLayout(task.backbone)
    items = task.items()
    width = task.specs[_ITEMS].shape[1]
    for block in blocks(task, 4 * (items.lengths * width + layout.size), BLOCK_BYTES):
        yield _train_block(task, layout, block, items.take(block), code, (task.dtype(alpha), off_diagonal))


def _train_block(
    task: LocalTask, layout: NetworkLayout, users: NDArray[np.int64], rows: Ragged, code: ModuleType,
    decorrelation: tuple[np.floating, bool],
) -> Changes:  # fmt: skip
    options = task.options
    positives, negatives = task.positives.take(users), task.negatives.take(users)
    tables = task.of_users(_ITEMS, users, rows)
    networks = layout.start(task, users, rows)
    before = {_ITEMS: tables.copy()} | layout.by_name(networks)
    losses = np.empty(len(users))
    arguments = (
        rows.indptr,
        rows.values,
        tables,
        positives.indptr,
        positives.values,
        negatives.indptr,
        negatives.values,
        task.num_items,
        networks,
        layout.columns,
        layout.widths,
        layout.user_at,
        layout.weight_at,
        layout.bias_at,
        layout.output_at,
        layout.bounds,
        layout.rates(task),
        np.array([task.decay(name) for name in layout.names], task.dtype),
        task.dtype(task.rate(_ITEMS)),
        *decorrelation,
        task.draws.seeds(task.users[users], task.round, Purpose.BATCH_ORDER),
        options.local_epochs,
        options.batch_size,
        options.optimizer == "adam",
        options.early_stop_tolerance,
        losses,
    )

    run_kernel(code.train_users, arguments, rows.indptr)
    trained = {_ITEMS: tables} | layout.by_name(networks)
    task.keep(trained, users, rows)
    return task.changes(users, rows, {name: trained[name] - before[name] for name in task.changing}, losses)
