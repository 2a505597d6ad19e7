"""One user at a time, with plain autograd and torch's own optimisers: the oracle of every faster backend."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from bouquet.ragged import Ragged
from client_app.personalization.base import Batch, Changes
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
        yield _train_user(task, user, items.row(user))


def _train_user(task: LocalTask, user: int, rows: np.ndarray) -> Changes:
    options = task.options
    start = {
        name: task.of_user(name, user, rows if task.by_item(name) else None) for name in (*task.trained, *task.fixed)
    }
    arrays = {name: torch.from_numpy(values.copy())[None] for name, values in start.items()}
    working = working_rows(task, np.array([user]), Ragged.from_lengths([len(rows)], rows), torch.device("cpu"))
    groups = [
        {"params": [arrays[name].requires_grad_()], "lr": task.rate(name), "weight_decay": task.decay(name)}
        for name in task.trained
    ]
    optimizer = (torch.optim.Adam if options.optimizer == "adam" else torch.optim.SGD)(groups)

    loss, before, steps = float("nan"), float("nan"), 0
    for epoch in range(options.local_epochs if len(rows) else 0):
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

    trained = {name: arrays[name].detach().numpy()[0] for name in task.trained}
    for name, target in task.private.items():
        if task.by_item(name):
            target[user][rows] = trained[name]
        else:
            target[user] = trained[name]
    change = {name: trained[name] - start[name] for name in task.changing}
    return Changes(
        users=np.array([user]),
        rows=Ragged.from_lengths([len(rows)], rows),
        by_item={name: values for name, values in change.items() if task.by_item(name)},
        dense={name: values[None] for name, values in change.items() if not task.by_item(name)},
        loss=np.array([loss]),
        steps=np.array([steps]),
    )


def _batches(task: LocalTask, user: int, rows: np.ndarray, epoch: int) -> Iterator[Batch]:
    """The steps of an epoch."""
    if is_sequential(task.backbone):
        own_rows = Ragged.from_lengths([len(rows)], rows)
        batch = sequence_batch(task, np.array([user]), own_rows, epoch, torch.device("cpu"))
        if float(batch.size):
            yield batch
        return
    size = task.options.batch_size
    index, labels = _samples(task, user, rows)
    order = np.arange(len(index))
    if len(order) > size:
        order = batch_order(task.users[user : user + 1], np.array([len(order)]), task.draws, task.round, epoch, size)
    for begin in range(0, len(order), size):
        these = torch.from_numpy(order[begin : begin + size])
        positive = labels[these][None]
        yield Batch(positive, 1 - positive, torch.full((1,), len(these)), index[these][None])


def _samples(task: LocalTask, user: int, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """The user's samples: their positions among `rows`, and their labels."""
    positives, negatives = task.positives.row(user), task.negatives.row(user)
    index = np.searchsorted(rows, np.concatenate([positives, negatives]))
    labels = np.concatenate([np.ones(len(positives)), np.zeros(len(negatives))]).astype(task.dtype)
    return torch.from_numpy(index), torch.from_numpy(labels)
