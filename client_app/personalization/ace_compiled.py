"""ACE's local training by compiled loops, where they compute it; elsewhere it is torch's."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from bouquet.methods.ace import ACEOptions
from bouquet.randomness import Purpose
from client_app.personalization.ace_network import FlatNetwork, TransferNetwork
from client_app.personalization.round import GLOBAL, Changes
from client_app.training.blocks import Block, blocks
from client_app.training.compiler import enhanced_kernels, enhanced_ncf_kernels, row_kernels
from client_app.training.network_layout import EmbeddingLayout, NetworkLayout, layout_of
from client_app.training.threads import run_kernel, threads

if TYPE_CHECKING:
    from client_app.training.task import LocalTask

# What changes for one thread's users in a block, in bytes: it is added up while it is in the last cache.
_BLOCK_BYTES = 8 * 2**20


def fits(table: str, task: LocalTask) -> bool:
    """Whether the loops compute this, if they know the model: plain SGD, from a common table."""
    alone = len(task.personalizations) == 1 and not task.reported
    common = table in task.shared and GLOBAL in task.frozen
    return task.plain_sgd and alone and common and task.liked is None and task.specs[table].shape[1] % 4 == 0


def train(options: ACEOptions, table: str, network: TransferNetwork, task: LocalTask) -> Iterator[Changes] | None:
    """Train blocks of users; None where the loops do not compute it, or are not there.

    Args:
        table: the item table, among the task's arrays.
    """
    layout = layout_of(task)
    if layout is None or not fits(table, task):
        return None
    code, row_code = enhanced_ncf_kernels() if isinstance(layout, NetworkLayout) else enhanced_kernels(), row_kernels()
    if code is None or row_code is None:
        return None
    flat = FlatNetwork(network, task.shared, task.dtype)
    at_most = np.minimum(task.positives.lengths + task.negatives.lengths, task.num_items)
    bytes_of_user = 4 * (at_most * task.specs[table].shape[1] + len(flat.theta))
    return (
        _train(options, table, flat, task, Block(task, users, row_code), code, layout)
        for users in blocks(task, bytes_of_user, _BLOCK_BYTES * threads())
    )


def _train(
    options: ACEOptions, table: str, flat: FlatNetwork, task: LocalTask, block: Block, code: ModuleType,
    layout: NetworkLayout | EmbeddingLayout,
) -> Changes:  # fmt: skip
    """Train one block of users.

    Args:
        layout: of what is trained besides the item table and the network.
    """
    dtype, users, touched, count = task.dtype, block.users, block.touched, len(block.users)
    origin, frozen = (np.ascontiguousarray(a, dtype=dtype) for a in (task.shared[table], task.frozen[GLOBAL]))
    start = layout.start(task, users, touched)
    vectors = start.copy()
    changes = np.empty((len(touched.values), origin.shape[1]), dtype)
    of_weights, of_biases = (np.empty(count * sum(sizes), dtype) for sizes in flat.sizes)
    losses, steps = np.empty(count), np.empty(count, np.int64)
    rates = [task.rate(table), *layout.single_rates(task), task.rate(flat.names[0])]
    arguments = (
        touched.indptr,
        touched.values,
        origin,
        frozen,
        changes,
        block.sample_indptr,
        block.positives.lengths,
        block.place,
        vectors,
        *layout.arguments(task),
        *flat.arguments,
        dtype(options.ace_identity_residual),
        task.draws.seeds(task.users[users], task.round, Purpose.BATCH_ORDER),
        task.options.local_epochs,
        task.options.batch_size,
        np.array(rates).astype(dtype),
        of_weights,
        of_biases,
        losses,
        steps,
    )

    run_kernel(code.train_enhanced, arguments, touched.indptr)
    dense = flat.by_name(of_weights, of_biases, count) | layout.keep(task, users, start, vectors)
    return Changes(users=users, rows=touched, by_item={table: changes}, dense=dense, loss=losses, steps=steps)
