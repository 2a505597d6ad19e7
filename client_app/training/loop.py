"""One user at a time, with plain autograd and torch's own optimisers: the oracle of every faster backend."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from bouquet.ragged import Ragged
from client_app.personalization.round import Batch, Changes
from client_app.training.objective import losses, working_rows
from client_app.training.sequences import newest, sequence_batch
from client_app.training.task import LocalTask, batch_order
from models import is_sequential


def train_loop(task: LocalTask) -> Iterator[Changes]:
    """Train the users one after another; yields one `Changes` per user."""
    if is_sequential(task.backbone):
        task = newest(task)
    items = task.items()
    for user in range(len(task.users)):
        one = np.array([user])
        yield _train_user(task, one, items.take(one))


def _train_user(task: LocalTask, user: NDArray[np.int64], rows: Ragged) -> Changes:
    """`user` and `rows` hold one user."""
    options = task.options
    start = {name: task.of_users(name, user, rows) for name in (*task.trained, *task.fixed)}
    arrays = {
        name: torch.from_numpy((values[None] if task.by_item(name) else values).copy())
        for name, values in start.items()
    }
    working = working_rows(task, user, rows, torch.device("cpu"))
    groups = [
        {"params": [arrays[name].requires_grad_()], "lr": task.rate(name), "weight_decay": task.decay(name)}
        for name in task.trained
    ]
    optimizer = (torch.optim.Adam if options.optimizer == "adam" else torch.optim.SGD)(groups)

    loss, before, steps = float("nan"), float("nan"), 0
    for epoch in range(options.local_epochs if len(rows.values) else 0):
        total = samples = 0.0
        for batch in _batches(task, user, rows, epoch):
            recommendation, added = losses(task, arrays, batch, working)
            optimizer.zero_grad()
            (recommendation + added).sum().backward()
            optimizer.step()
            steps += 1
            total += float(recommendation.detach()) * float(batch.size)
            samples += float(batch.size)
        if samples == 0:
            break
        loss = total / samples
        if abs(before - loss) <= options.early_stop_tolerance * abs(before) and options.early_stop_tolerance > 0:
            break
        before = loss

    final = {name: arrays[name].detach().numpy() for name in task.trained}
    trained = {name: values[0] if task.by_item(name) else values for name, values in final.items()}
    task.keep(trained, user, rows)
    change = {name: trained[name] - start[name] for name in task.changing}
    return task.changes(user, rows, change, np.array([loss]), np.array([steps]))


def _batches(task: LocalTask, user: NDArray[np.int64], rows: Ragged, epoch: int) -> Iterator[Batch]:
    """The steps of an epoch."""
    if is_sequential(task.backbone):
        batch = sequence_batch(task, user, rows, epoch, torch.device("cpu"))
        if float(batch.size):
            yield batch
        return
    size = task.options.batch_size
    index, labels = _samples(task, user, rows)
    order = np.arange(len(index))
    if len(order) > size:
        order = batch_order(task.users[user], np.array([len(order)]), task.draws, task.round, epoch, size)
    for begin in range(0, len(order), size):
        these = torch.from_numpy(order[begin : begin + size])
        positive = labels[these][None]
        yield Batch(positive, 1 - positive, torch.full((1,), len(these)), index[these][None])


def _samples(task: LocalTask, user: NDArray[np.int64], rows: Ragged) -> tuple[torch.Tensor, torch.Tensor]:
    """The user's samples: their positions among its rows, and their labels."""
    positives, negatives = task.positives.take(user).values, task.negatives.take(user).values
    index = np.searchsorted(rows.values, np.concatenate([positives, negatives]))
    labels = np.concatenate([np.ones(len(positives)), np.zeros(len(negatives))]).astype(task.dtype)
    return torch.from_numpy(index), torch.from_numpy(labels)
