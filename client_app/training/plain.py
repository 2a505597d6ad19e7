"""The numpy backend: matrix factorisation user by user, with the gradient written down.

    z_i = ⟨p, q_i⟩        s_i = ((positive_i + negative_i) σ(z_i) - positive_i) / N
    ∂L/∂p = Σ_i s_i q_i    ∂L/∂q_i = s_i p

over the rows i of a batch of N samples. It needs nothing but numpy, which is what a device of one person has; a node
of many users is about ten times slower with it than compiled. What it does not compute (another model, a method that
changes the loss) is left to the torch backend.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from bouquet.ragged import Ragged
from client_app.personalization.round import Changes
from client_app.training.denormals import flushed_denormals
from client_app.training.task import LocalTask, batch_order

# What the users of one block train, in bytes.
BLOCK_BYTES = 16 * 2**20

_ITEMS, _USER = "item_embedding", "user_embedding"
# Adam's, as torch has them.
_FIRST, _SECOND, _EPSILON = 0.9, 0.999, 1e-8

Floats = NDArray[np.floating]


def train_plain(task: LocalTask) -> Iterator[Changes]:
    """Train blocks of users; what is no plain matrix factorisation, torch does."""
    if task.backbone.kernel != "mf" or task.personalizations:
        from client_app.training.stacked import train_stacked  # and torch with it

        yield from train_stacked(task)
        return
    items = task.items()
    size = task.dtype().itemsize * task.private[_USER].shape[1]
    blocks = (np.cumsum(items.lengths * size) // BLOCK_BYTES).astype(np.int64)
    for block in np.split(np.arange(len(task.users)), np.flatnonzero(np.diff(blocks)) + 1):
        if len(block):
            # σ(z) of a very negative z is 1 / ∞, and 0 is what it should be.
            with flushed_denormals(), np.errstate(over="ignore"):
                yield _train_block(task, block, items.take(block))


def _train_block(task: LocalTask, users: NDArray[np.int64], rows: Ragged) -> Changes:
    common = task.shared.get(_ITEMS)
    owners = users[rows.row_of_value]
    before = common[rows.values] if common is not None else task.private[_ITEMS][owners, rows.values]
    before = before.astype(task.dtype)
    vectors = task.private[_USER][users].astype(task.dtype)
    table, losses = before.copy(), np.empty(len(users))
    for place, user in enumerate(users.tolist()):
        mine = slice(int(rows.indptr[place]), int(rows.indptr[place + 1]))
        losses[place] = _train_user(task, user, rows.values[mine], vectors[place], table[mine])
    changes = Changes(users=users, rows=rows, loss=losses)
    if _ITEMS in task.changing:
        changes.by_item[_ITEMS] = table - before
    if _USER in task.changing:
        changes.dense[_USER] = vectors - task.private[_USER][users]
    task.private[_USER][users] = vectors
    if common is None:
        task.private[_ITEMS][owners, rows.values] = table
    return changes


def _train_user(task: LocalTask, user: int, rows: NDArray[np.integer], p: Floats, table: Floats) -> float:
    """Train one user's vector [d] and rows [r, d], both in place.

    Returns:
        The mean loss of the last epoch; NaN without samples.
    """
    options = task.options
    positives, negatives = task.positives.row(user), task.negatives.row(user)
    samples = np.searchsorted(rows, np.concatenate([positives, negatives]))
    count, liked, size = len(samples), len(positives), options.batch_size
    step = (_Adam if options.optimizer == "adam" else _SGD)(task, p, table)
    loss = last = float("nan")
    for epoch in range(options.local_epochs if count else 0):
        order = np.arange(count)
        if count > size:
            key = task.users[user : user + 1]
            order = batch_order(key, np.array([count]), task.draws, task.round, epoch, size)
        total = 0.0
        for begin in range(0, count, size):
            batch = order[begin : begin + size]
            positive = np.bincount(samples[batch[batch < liked]], minlength=len(rows)).astype(task.dtype)
            both = np.bincount(samples[batch], minlength=len(rows)).astype(task.dtype)
            logits = table @ p
            if epoch == options.local_epochs - 1 or options.early_stop_tolerance > 0:
                total += float(both @ np.logaddexp(0, logits) - positive @ logits)
            slope = (both / (1 + np.exp(-logits)) - positive) / task.dtype(len(batch))
            step(slope @ table, slope[:, None] * p)
        loss, last = total / count, loss
        if options.early_stop_tolerance > 0 and abs(last - loss) <= options.early_stop_tolerance * abs(last):
            break
    return loss


class _SGD:
    """x ← x - rate (g + decay x)."""

    def __init__(self, task: LocalTask, p: Floats, table: Floats) -> None:
        self._arrays = [
            (values, task.dtype(task.rate(name)), task.dtype(task.decay(name)))
            for name, values in ((_USER, p), (_ITEMS, table))
        ]

    def __call__(self, *gradients: Floats) -> None:
        for (values, rate, decay), gradient in zip(self._arrays, gradients, strict=True):
            values -= rate * (gradient + decay * values if decay else gradient)


class _Adam(_SGD):
    """x ← x - rate m̂ / (√v̂ + ε), with both moments corrected for where they start (Kingma and Ba, 2015)."""

    def __init__(self, task: LocalTask, p: Floats, table: Floats) -> None:
        super().__init__(task, p, table)
        self._moments = [(np.zeros_like(values), np.zeros_like(values)) for values, _, _ in self._arrays]
        self._steps = 0

    def __call__(self, *gradients: Floats) -> None:
        self._steps += 1
        for (values, rate, decay), (first, second), gradient in zip(
            self._arrays, self._moments, gradients, strict=True
        ):
            slope = gradient + decay * values if decay else gradient
            first += (slope - first) * values.dtype.type(1 - _FIRST)
            second *= values.dtype.type(_SECOND)
            second += values.dtype.type(1 - _SECOND) * slope * slope
            root = np.sqrt(second) / values.dtype.type(np.sqrt(1 - _SECOND**self._steps))
            values -= values.dtype.type(rate / (1 - _FIRST**self._steps)) * first / (root + values.dtype.type(_EPSILON))
