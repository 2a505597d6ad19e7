"""ACE before FedRAP by compiled loops, where they compute it; elsewhere it is torch's."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from bouquet.methods.ace import ACEOptions
from bouquet.randomness import Purpose
from client_app.personalization.ace_network import FlatNetwork, TransferNetwork
from client_app.personalization.round import GLOBAL, PERSONAL, Changes
from client_app.training.blocks import Block, blocks
from client_app.training.compiler import enhanced_sum_kernels, row_kernels
from client_app.training.threads import run_kernel

if TYPE_CHECKING:
    from client_app.training.task import LocalTask

# What changes for the users of one block, in bytes.
_BLOCK_BYTES = 8 * 2**20


def fits(table: str, task: LocalTask) -> bool:
    """Whether the loops compute this: plain SGD on matrix factorisation, from a common table and one of each user."""
    both = task.backbone.kernel == "mf" and len(task.personalizations) == 2 and not task.reported
    known = table in task.shared and GLOBAL in task.frozen and PERSONAL in task.private
    return task.plain_sgd and both and known and task.liked is None and task.specs[table].shape[1] % 4 == 0


def train(options: ACEOptions, table: str, network: TransferNetwork, task: LocalTask) -> Iterator[Changes] | None:
    """Train blocks of users; None where the loops do not compute it, or are not there.

    Args:
        table: the common item table, among the task's arrays.
    """
    code, row_code, terms = enhanced_sum_kernels(), row_kernels(), task.personalizations[-1].additive_terms(task.round)
    if code is None or row_code is None or terms is None or not fits(table, task):
        return None
    flat = FlatNetwork(network, task.shared, task.dtype)
    at_most = np.minimum(task.positives.lengths + task.negatives.lengths, task.num_items)
    bytes_of_user = 4 * (2 * at_most * task.specs[table].shape[1] + len(flat.theta))
    return (
        _train(options, table, flat, terms, task, Block(task, users, row_code), code)
        for users in blocks(task, bytes_of_user, _BLOCK_BYTES)
    )


def _train(
    options: ACEOptions, table: str, flat: FlatNetwork, terms: tuple[float, float], task: LocalTask, block: Block,
    code: ModuleType,
) -> Changes:  # fmt: skip
    """Train one block of users."""
    dtype, users, touched, count = task.dtype, block.users, block.touched, len(block.users)
    origin, frozen = (np.ascontiguousarray(a, dtype=dtype) for a in (task.shared[table], task.frozen[GLOBAL]))
    own, vectors = block.own_rows(task.private[PERSONAL]), task.private["user_embedding"][users].astype(dtype)
    trained = np.empty_like(own)
    of_weights, of_biases = (np.empty(count * sum(sizes), dtype) for sizes in flat.sizes)
    losses, steps = np.empty(count), np.empty(count, np.int64)
    arguments = (
        touched.indptr,
        touched.values,
        origin,
        frozen,
        own,
        trained,
        block.sample_indptr,
        block.positives.lengths,
        block.place,
        vectors,
        *flat.arguments,
        dtype(options.ace_identity_residual),
        task.draws.seeds(task.users[users], task.round, Purpose.BATCH_ORDER),
        task.options.local_epochs,
        task.options.batch_size,
        np.array(terms, dtype),
        np.array([task.rate(name) for name in (table, PERSONAL, "user_embedding", flat.names[0])], dtype),
        of_weights,
        of_biases,
        losses,
        steps,
    )

    run_kernel(code.train_enhanced_sum, arguments, touched.indptr)
    task.private["user_embedding"][users] = vectors
    block.keep(task.private[PERSONAL], own)
    trained -= origin[touched.values]
    dense = flat.by_name(of_weights, of_biases, count)
    return Changes(users=users, rows=touched, by_item={table: trained}, dense=dense, loss=losses, steps=steps)
