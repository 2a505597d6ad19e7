"""One user at a time, with plain autograd and torch's own optimisers: the oracle of every faster backend."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F

from bouquet.ragged import Ragged
from client_app.training.task import Changes, LocalTask, batch_order


def train_loop(task: LocalTask) -> Iterator[Changes]:
    """Train the users one after another; yields one `Changes` per user."""
    items = task.items()
    for user in range(len(task.users)):
        yield _train_user(task, user, items.row(user))


def _train_user(task: LocalTask, user: int, rows: np.ndarray) -> Changes:
    options, samples = task.options, _samples(task, user, rows)
    arrays = {name: task.start(name, user, rows) for name in task.item_specs}
    arrays |= {name: task.start(name, user, None) for name in (*task.dense_specs, *task.backbone.private)}
    weights = {name: torch.from_numpy(values.copy()).requires_grad_() for name, values in arrays.items()}
    groups = [{"params": [weight], "lr": task.rate(name)} for name, weight in weights.items()]
    optimizer: torch.optim.Optimizer
    if options.optimizer == "adam":
        optimizer = torch.optim.Adam(groups, weight_decay=options.weight_decay)
    else:
        optimizer = torch.optim.SGD(groups, weight_decay=options.weight_decay)

    loss_of_epoch = float("nan")
    for epoch in range(options.local_epochs if len(samples[0]) else 0):
        order = np.arange(len(samples[0]))
        if len(order) > options.batch_size:
            lengths = np.array([len(order)])
            order = batch_order(task.users[user : user + 1], lengths, task.seed, task.round, epoch, options.batch_size)
        losses = []
        for start in range(0, len(order), options.batch_size):
            batch = torch.from_numpy(order[start : start + options.batch_size])
            loss = _loss(task, weights, samples[0][batch], samples[1][batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()) * len(batch))
        loss_of_epoch = sum(losses) / len(order)

    trained = {name: weight.detach().numpy() for name, weight in weights.items()}
    for name in task.private:
        if name in task.item_specs:
            task.private[name][user][rows] = trained[name]
        else:
            task.private[name][user] = trained[name]
    return Changes(
        users=np.array([user]),
        rows=Ragged.from_lengths([len(rows)], rows),
        by_item={name: trained[name] - arrays[name] for name in task.item_specs if name in task.shared},
        dense={name: (trained[name] - arrays[name])[None] for name in task.dense_specs if name in task.shared},
        loss=np.array([loss_of_epoch]),
    )


def _samples(task: LocalTask, user: int, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """The user's samples: their positions among `rows`, and their labels."""
    positives, negatives = task.positives.row(user), task.negatives.row(user)
    index = np.searchsorted(rows, np.concatenate([positives, negatives]))
    labels = np.concatenate([np.ones(len(positives)), np.zeros(len(negatives))]).astype(task.dtype)
    return torch.from_numpy(index), torch.from_numpy(labels)


def _loss(task: LocalTask, weights: dict[str, torch.Tensor], index: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    private = {name: weights[name][None] for name in task.backbone.private}
    shared = {name: weights[name][index][None] for name in task.item_specs}
    shared |= {name: weights[name][None] for name in task.dense_specs}
    return F.binary_cross_entropy_with_logits(task.backbone.logits(private, shared)[0], labels)
