"""Fed3CR's local training by compiled loops, where they compute it; elsewhere it is torch's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bouquet.methods.fed3cr import Fed3CROptions
from bouquet.ragged import Ragged
from bouquet.randomness import Purpose
from client_app.personalization.ace_network import FlatNetwork, TransferNetwork
from client_app.personalization.round import PERSONAL, Changes
from client_app.training.compiler import views_kernels
from client_app.training.threads import run_kernel, threads

if TYPE_CHECKING:
    from client_app.training.task import LocalTask

# Tables and networks of one thread's users in a block, in bytes: arrays of over 32 MB are new memory each time.
_BLOCK_BYTES = 10 * 2**20


def fits(options: Fed3CROptions, network: TransferNetwork | None, task: LocalTask) -> bool:
    """Whether the loops compute this: plain SGD on matrix factorisation, and the paper's constraints over all items."""
    method, *others = task.personalizations
    printed = options.fed3cr_consistency == "ranking" or options.fed3cr_beta_a == 0
    orthogonal = options.fed3cr_complementarity in ("orthogonality", "cosines")
    printed = printed and (orthogonal or options.fed3cr_beta_o == 0)
    enhanced = (network is not None or options.fed3cr_enhancement == "none") and method.whole_table
    alone = task.backbone.kernel == "mf" and not others and not task.reported
    return task.plain_sgd and printed and enhanced and alone and task.specs[PERSONAL].shape[1] % 4 == 0


def train(
    options: Fed3CROptions, table: str, network: TransferNetwork | None, task: LocalTask
) -> Iterator[Changes] | None:
    """Train blocks of users; None where the loops do not compute it, or are not there.

    Args:
        table: the consensus, among the task's arrays.
        network: makes the transfer matrices; None: there are none.
    """
    if not fits(options, network, task) or views_kernels() is None:
        return None
    m, d = task.specs[PERSONAL].shape
    flat = FlatNetwork(network, task.shared, task.dtype)
    step = threads() * max(1, _BLOCK_BYTES // (4 * (2 * m * d + len(flat.theta))))
    users = np.arange(len(task.users))
    blocks = (users[start : start + step] for start in range(0, len(users), step))
    return (_train(options, table, flat, task, block) for block in blocks)


def _train(options: Fed3CROptions, table: str, flat: FlatNetwork, task: LocalTask, users: NDArray[np.int64]) -> Changes:
    code, dtype, count = views_kernels(), task.dtype, len(users)
    assert code is not None
    m, d = task.specs[PERSONAL].shape
    positives, negatives = task.positives.take(users), task.negatives.take(users)
    indptr = positives.indptr + negatives.indptr
    items = np.empty(indptr[-1], np.int64)
    for user in range(count):
        items[indptr[user] : indptr[user + 1]] = np.concatenate([positives.row(user), negatives.row(user)])
    all_liked = (task.positives if task.liked is None else task.liked).take(users)
    liked = [np.unique(all_liked.row(user)) for user in range(count)]
    liked_indptr = np.concatenate([[0], np.cumsum([len(rows) for rows in liked])]).astype(np.int64)

    cosines = options.fed3cr_complementarity == "cosines"
    vectors = task.private["user_embedding"][users].astype(dtype)
    own = task.private[PERSONAL][users].astype(dtype)
    of_consensus = np.empty((count, m, d), dtype)
    of_weights, of_biases = (np.empty(count * sum(sizes), dtype) for sizes in flat.sizes)
    losses, steps = np.empty(count), np.empty(count, np.int64)
    rates = [task.rate(name) for name in (table, PERSONAL, "user_embedding")]
    arguments = (
        indptr,
        positives.lengths,
        items,
        liked_indptr,
        np.concatenate([*liked, np.empty(0, np.int64)]).astype(np.int64),
        np.ascontiguousarray(task.shared[table], dtype=dtype),
        own,
        vectors,
        *flat.arguments,
        dtype(options.ace_identity_residual),
        task.draws.seeds(task.users[users], task.round, Purpose.BATCH_ORDER),
        task.options.local_epochs,
        task.options.batch_size,
        np.array([*rates, task.rate(flat.names[0]) if flat.names else 0.0]).astype(dtype),
        np.array([options.fed3cr_beta_a, 2 * options.fed3cr_beta_o / d]).astype(dtype),
        1.0 if options.fed3cr_literal_scale or cosines else float(m),
        cosines and options.fed3cr_beta_o > 0,
        of_consensus,
        of_weights,
        of_biases,
        losses,
        steps,
    )

    # Every step visits the whole catalogue, so a user takes as long as it has steps.
    steps_indptr = np.concatenate([[0], np.cumsum(-(-np.diff(indptr) // task.options.batch_size))])
    run_kernel(code.train_views, arguments, steps_indptr)
    task.private["user_embedding"][users], task.private[PERSONAL][users] = vectors, own
    changes = Changes(
        users=users,
        rows=Ragged.from_lengths(np.full(count, m), np.tile(np.arange(m, dtype=np.int32), count)),
        loss=losses,
        steps=steps,
    )
    changes.by_item[table] = of_consensus.reshape(count * m, d)
    changes.dense.update(flat.by_name(of_weights, of_biases, count))
    return changes
