"""Training of the sum of an enhanced consensus and a user's own table on the rows of samples, by compiled loops.

Fed3CR where no constraint is over all items, and ACE before FedRAP. What the loops do not compute is torch's.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bouquet.methods.ace import ACEOptions
from bouquet.methods.fed3cr import Fed3CROptions
from bouquet.randomness import Purpose
from client_app.personalization.ace_network import FlatNetwork, TransferNetwork
from client_app.personalization.round import GLOBAL, PERSONAL, Changes
from client_app.training.blocks import Block, blocks
from client_app.training.compiler import enhanced_sum_kernels, row_kernels
from client_app.training.threads import run_kernel, threads

if TYPE_CHECKING:
    from client_app.training.task import LocalTask

# What changes for one thread's users in a block, in bytes.
_BLOCK_BYTES = 8 * 2**20


class _Terms(NamedTuple):
    """Weights of losses over the rows of samples, as `kernels_alternatives` and `kernels_enhanced_sum` have them."""

    distance: float = 0.0
    sparsity: float = 0.0
    similarity: float = 0.0
    contrast: float = 0.0
    information: float = 0.0


def train_before_fedrap(
    options: ACEOptions, table: str, network: TransferNetwork, task: LocalTask
) -> Iterator[Changes] | None:
    """Train blocks of users of a method that adds a table of their own; None where the loops do not compute it.

    Args:
        table: the common item table, among the task's arrays.
    """
    terms = task.personalizations[-1].additive_terms(task.round)
    if terms is None or GLOBAL not in task.frozen or not _fits(table, task, 2):
        return None
    return _blocks(options, table, network, _Terms(*terms), task.frozen[GLOBAL], task)


def train_fed3cr(
    options: Fed3CROptions, table: str, network: TransferNetwork | None, task: LocalTask
) -> Iterator[Changes] | None:
    """Train blocks of users with constraints over samples, or none; None where the loops do not compute it."""
    if network is None or task.personalizations[0].whole_table or not _fits(table, task, 1):
        return None
    weight, other = options.fed3cr_beta_a, options.fed3cr_beta_o
    consistency, complementarity = options.fed3cr_consistency, options.fed3cr_complementarity
    terms = _Terms(
        distance=other / task.specs[table].shape[1] if complementarity == "distance" else 0.0,
        similarity=weight if consistency == "similarity" else 0.0,
        contrast=weight if consistency == "contrast" else 0.0,
        information=other if complementarity == "information" else 0.0,
    )
    return _blocks(options, table, network, terms, None, task)


def _fits(table: str, task: LocalTask, methods: int) -> bool:
    """Whether the loops compute this: plain SGD on matrix factorisation, from a common table and one of each user."""
    alone = task.backbone.kernel == "mf" and len(task.personalizations) == methods and not task.reported
    known = table in task.shared and PERSONAL in task.private
    return task.plain_sgd and alone and known and task.liked is None and task.specs[table].shape[1] % 4 == 0


def _blocks(
    options: ACEOptions, table: str, network: TransferNetwork, terms: _Terms, frozen: NDArray[np.floating] | None,
    task: LocalTask,
) -> Iterator[Changes] | None:  # fmt: skip
    code, row_code = enhanced_sum_kernels(), row_kernels()
    if code is None or row_code is None:
        return None
    flat = FlatNetwork(network, task.shared, task.dtype)
    at_most = np.minimum(task.positives.lengths + task.negatives.lengths, task.num_items)
    bytes_of_user = 4 * (2 * at_most * task.specs[table].shape[1] + len(flat.theta))
    return (
        _train(options, table, flat, terms, frozen, task, Block(task, users, row_code), code)
        for users in blocks(task, bytes_of_user, _BLOCK_BYTES * threads())
    )


def _train(
    options: ACEOptions, table: str, flat: FlatNetwork, terms: _Terms, frozen: NDArray[np.floating] | None,
    task: LocalTask, block: Block, code: ModuleType,
) -> Changes:  # fmt: skip
    """Train one block of users.

    Args:
        frozen: whose liked rows make p^G; None: those that are trained.
    """
    dtype, users, touched, count = task.dtype, block.users, block.touched, len(block.users)
    origin = np.ascontiguousarray(task.shared[table], dtype=dtype)
    own, vectors = block.own_rows(task.private[PERSONAL]), task.private["user_embedding"][users].astype(dtype)
    trained = np.empty_like(own)
    of_weights, of_biases = (np.empty(count * sum(sizes), dtype) for sizes in flat.sizes)
    losses, steps = np.empty(count), np.empty(count, np.int64)
    arguments = (
        touched.indptr,
        touched.values,
        origin,
        origin if frozen is None else np.ascontiguousarray(frozen, dtype=dtype),
        frozen is None,
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
