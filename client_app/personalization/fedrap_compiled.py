"""FedRAP's local training by compiled loops, with its two terms and with its tables mixed; elsewhere it is torch's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from bouquet.randomness import Purpose
from client_app.personalization.round import PERSONAL, Changes
from client_app.training.blocks import Block, blocks
from client_app.training.compiler import mixed_kernels, row_kernels
from client_app.training.threads import run_kernel

if TYPE_CHECKING:
    from client_app.training.task import LocalTask

# Rows of the users of one block, in bytes.
_BLOCK_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Mixture:
    """What is made of the two item tables.

    Attributes:
        weights: of the user's own table and the common one in what the model sees; the first is negative where they
            are the tables' shares of their squared norms (PLGC, eq. 15).
        networks: the names of the four matrices [d, d] of redundancy reduction between the two; (): there is none.
        redundancy, kappa: its weight, and that of its correlations between dimensions.
    """

    weights: tuple[float, float]
    networks: tuple[str, ...] = ()
    redundancy: float = 0.0
    kappa: float = 0.0


# What the model sees without a plug-in.
SUM = Mixture(weights=(1.0, 1.0))


def fits(table: str, task: LocalTask) -> bool:
    """Whether the loops compute this: plain SGD on matrix factorisation, a common table and one of each user.

    At most one method stands before the one that has these tables: the one that made the `Mixture` of them.
    """
    known = task.backbone.kernel == "mf" and table in task.shared and not task.reported
    return task.plain_sgd and known and len(task.personalizations) <= 2


def train(table: str, mixture: Mixture, task: LocalTask) -> Iterator[Changes] | None:
    """Train blocks of users; None where the loops do not compute it, or are not there.

    Args:
        table: the common item table, among the task's arrays.
        mixture: of it and the users' own.
    """
    code, row_code, terms = mixed_kernels(), row_kernels(), task.personalizations[-1].additive_terms(task.round)
    if code is None or row_code is None or terms is None or not fits(table, task):
        return None
    row_bytes = 8 * task.specs[table].shape[1]
    at_most = np.minimum(task.positives.lengths + task.negatives.lengths, task.num_items)
    return (
        _train(table, mixture, terms, task, Block(task, users, row_code), code)
        for users in blocks(task, at_most * row_bytes, _BLOCK_BYTES)
    )


def _train(
    table: str, mixture: Mixture, terms: tuple[float, float], task: LocalTask, block: Block, code: ModuleType
) -> Changes:
    """Train one block of users."""
    dtype, users, touched, count = task.dtype, block.users, block.touched, len(block.users)
    own, before = block.own_rows(task.private[PERSONAL]), task.shared[table][touched.values].astype(dtype)
    common, vectors = before.copy(), task.private["user_embedding"][users].astype(dtype)
    d = own.shape[1]
    width = -(-d // 4) * 4
    networks = np.zeros((count, 4, width, width), dtype)
    for place, name in enumerate(mixture.networks):
        networks[:, place, :d, :d] = task.private[name][users]
    outside = np.zeros((2, count))
    if mixture.weights[0] < 0:
        outside[:] = [task.norms_outside(name, users, touched) for name in (PERSONAL, table)]
    losses, steps = np.empty(count), np.empty(count, np.int64)
    rates = [
        task.rate(PERSONAL),
        task.rate("user_embedding"),
        task.rate(mixture.networks[0]) if mixture.networks else 0.0,
    ]
    arguments = (
        touched.indptr,
        np.arange(len(own)),
        common,
        own,
        outside,
        block.sample_indptr,
        block.positives.lengths,
        block.place,
        vectors,
        np.array([task.rate(table), *terms], dtype),
        networks.reshape(count, 4, width * width),
        task.draws.seeds(task.users[users], task.round, Purpose.BATCH_ORDER),
        task.options.local_epochs,
        task.options.batch_size,
        np.array(mixture.weights, dtype),
        dtype(mixture.redundancy),
        dtype(mixture.kappa),
        np.array(rates, dtype),
        losses,
        steps,
    )

    run_kernel(code.train_mixed, arguments, touched.indptr)
    task.private["user_embedding"][users] = vectors
    for place, name in enumerate(mixture.networks):
        task.private[name][users] = networks[:, place, :d, :d]
    block.keep(task.private[PERSONAL], own)
    common -= before
    return Changes(users=users, rows=touched, by_item={table: common}, loss=losses, steps=steps)
