"""Many users at once: their working rows stacked into one tensor, one autograd pass for all of them.

A batch is kept as two counts per (user, row): how often the row stands in it as a positive and as a negative.
The batch loss is then a weighted sum over rows,

    L_u = (1/N_b) Σ_r (pos_r + neg_r) softplus(z_r) - pos_r z_r,

which equals the sum over samples and needs neither a gather nor a scatter of embeddings in the inner loop.
Users of a chunk are padded to the longest; a user without samples in a step is frozen, moments included.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bouquet.ragged import Ragged, positions
from client_app.training.task import Changes, LocalTask, batch_order

# Chunks that fit the second-level cache are fastest; see benchmarks.
CHUNK_VALUES = 250_000


def train_stacked(task: LocalTask) -> Iterator[Changes]:
    """Train chunks of users of like size; yields one `Changes` per chunk."""
    items = task.items()
    samples = task.positives.lengths + task.negatives.lengths
    batches = -(-samples // task.options.batch_size)
    order = np.lexsort((items.lengths, batches))
    width = max(sum(spec.size for spec in task.item_specs.values()) // task.num_items, 1)
    dense = sum(spec.size for spec in task.dense_specs.values())
    start = 0
    for stop in range(1, len(order) + 1):
        if stop < len(order):
            longest = int(items.lengths[order[stop]])
            if (stop + 1 - start) * (longest * width + dense) <= CHUNK_VALUES:
                continue
        users = order[start:stop]
        yield _Chunk(task, users, items.take(users)).train()
        start = stop


class _Chunk:
    """The users of one stack.

    Shapes: c users, r rows of the user with most of them; tables [c, r, …].
    """

    def __init__(self, task: LocalTask, users: NDArray[np.int64], rows: Ragged) -> None:
        self.task, self.users, self.rows = task, users, rows
        self.num_rows = int(rows.lengths.max(initial=0))
        self.owner = rows.row_of_value
        self.place = positions(rows.lengths)
        self.device = torch.device(task.options.device)
        positives, negatives = task.positives.take(users), task.negatives.take(users)
        self.sample_lengths = positives.lengths + negatives.lengths
        self._index_samples(positives, negatives)

    def _index_samples(self, positives: Ragged, negatives: Ragged) -> None:
        """Every sample as a cell of one array of counts, users one after another, positives first.

        Cells [0, c r) count positives by user and row, cells [c r, 2 c r) negatives.
        """
        place_of = np.zeros((len(self.users), self.task.num_items), dtype=np.int32)
        place_of[self.owner, self.rows.values] = self.place
        self.sample_start = np.cumsum(self.sample_lengths) - self.sample_lengths
        self.sample_cell = np.empty(int(self.sample_lengths.sum()), dtype=np.int64)
        begin = self.sample_start
        for half, part in enumerate((positives, negatives)):
            owner = part.row_of_value
            cell = (half * len(self.users) + owner) * self.num_rows + place_of[owner, part.values]
            self.sample_cell[np.repeat(begin, part.lengths) + positions(part.lengths)] = cell
            begin = begin + part.lengths

    def train(self) -> Changes:
        task = self.task
        weights = {name: self._gather(name) for name in task.item_specs}
        weights |= {name: self._stack(name) for name in (*task.dense_specs, *task.backbone.private)}
        step = (_Adam if task.options.optimizer == "adam" else _SGD)(task, weights)
        loss = torch.zeros(len(self.users), dtype=torch.float64)
        last = task.options.local_epochs - 1
        for epoch in range(task.options.local_epochs):
            for positive, negative, count in self._batches(epoch):
                total = self._step(weights, step, positive, negative, count, with_loss=epoch == last)
                if epoch == last:
                    loss += total.cpu().double()
        self._put_back(weights)
        by_item = {name: self._rows_of(weights[name]) for name in task.item_specs if name in task.shared}
        for name, values in by_item.items():
            values -= task.shared[name][self.rows.values]
        dense = {name: weights[name].detach().cpu().numpy() for name in task.dense_specs if name in task.shared}
        return Changes(
            users=self.users,
            rows=self.rows,
            by_item=by_item,
            dense={name: values - task.shared[name] for name, values in dense.items()},
            loss=(loss / torch.from_numpy(self.sample_lengths)).numpy(),
        )

    def _step(
        self, weights: dict[str, Tensor], step: _SGD | _Adam, positive: Tensor, negative: Tensor, count: Tensor,
        with_loss: bool,
    ) -> Tensor:  # fmt: skip
        """One step along the gradient of the users' mean losses, by hand where the backbone can.

        Returns:
            [c] the sum of each user's sample losses before the step; zeros if not asked for, because they cost as
            much as the gradient.
        """
        backbone = self.task.backbone
        private = {name: weights[name] for name in backbone.private}
        shared = {name: weights[name] for name in backbone.shared}
        samples, size = positive + negative, count.clamp(min=1)
        with torch.no_grad():
            logits = backbone.logits(private, shared)
            losses = _loss(logits, samples, positive) if with_loss else torch.zeros_like(count)
            slope = (samples * torch.sigmoid(logits)).sub_(positive).div_(size.unsqueeze(1))
            if isinstance(step, _SGD) and not step.decay and backbone.sgd_step(private, shared, slope, step.rates):
                return losses
            by_hand = backbone.pull_back(private, shared, slope)
        if by_hand is None:
            total = (_loss(backbone.logits(private, shared), samples, positive) / size).sum()
            by_hand = dict(zip(weights, torch.autograd.grad(total, list(weights.values())), strict=True))
        step(by_hand, count > 0)
        return losses

    def _batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """For every step of an epoch: positives and negatives per cell [c, r], samples per user [c]."""
        size = self.task.options.batch_size
        steps = -(-int(self.sample_lengths.max(initial=0)) // size)
        if steps == 0:
            return
        if steps == 1:
            if epoch == 0:
                self._whole = self._count(slice(None), self.sample_lengths)
            yield self._whole
            return
        keys = self.task.users[self.users]
        place = batch_order(keys, self.sample_lengths, self.task.seed, self.task.round, epoch, size)
        sample = np.repeat(self.sample_start, self.sample_lengths) + place
        batch = positions(self.sample_lengths) // size
        for step in range(steps):
            yield self._count(sample[batch == step], np.clip(self.sample_lengths - step * size, 0, size))

    def _count(self, samples: slice | NDArray[np.int64], sizes: NDArray[np.int64]) -> tuple[Tensor, Tensor, Tensor]:
        cells = 2 * len(self.users) * self.num_rows
        counts = np.bincount(self.sample_cell[samples], minlength=cells)
        positive, negative = self._tensor(counts).reshape(2, len(self.users), self.num_rows)
        return positive, negative, self._tensor(sizes)

    def _tensor(self, values: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(values.astype(self.task.dtype)).to(self.device)

    def _gather(self, name: str) -> Tensor:
        """[c, r, …]: the users' rows of an array by item; rows past a user's end are zero and stay zero."""
        spec = self.task.item_specs[name]
        stacked = np.zeros((len(self.users), self.num_rows, *spec.shape[1:]), dtype=self.task.dtype)
        if name in self.task.shared:
            stacked[self.owner, self.place] = self.task.shared[name][self.rows.values]
        else:
            stacked[self.owner, self.place] = self.task.private[name][self.users[self.owner], self.rows.values]
        return _columns_first(torch.from_numpy(stacked).to(self.device)).requires_grad_()

    def _stack(self, name: str) -> Tensor:
        if name in self.task.shared:
            values = np.repeat(self.task.shared[name][None], len(self.users), axis=0)
        else:
            values = self.task.private[name][self.users]
        return self._tensor(values).requires_grad_()

    def _put_back(self, weights: dict[str, Tensor]) -> None:
        for name, target in self.task.private.items():
            if name in self.task.item_specs:
                target[self.users[self.owner], self.rows.values] = self._rows_of(weights[name])
            else:
                target[self.users] = weights[name].detach().cpu().numpy()

    def _rows_of(self, stacked: Tensor) -> NDArray[np.floating]:
        """[nnz, …]: the users' rows without the padding, one user after another."""
        flat = stacked.detach().contiguous().flatten(0, 1)
        return flat[torch.from_numpy(self.owner * self.num_rows + self.place).to(self.device)].cpu().numpy()


def _loss(logits: Tensor, samples: Tensor, positive: Tensor) -> Tensor:
    """[c] sum of the losses of each user's samples: Σ_r samples_r softplus(z_r) - positive_r z_r."""
    return (samples * F.softplus(logits) - positive * logits).sum(dim=1)


def _columns_first(table: Tensor) -> Tensor:
    """The same [c, r, d] values with r running fastest in memory, which batched products read best."""
    return table.transpose(1, 2).contiguous().transpose(1, 2) if table.ndim == 3 else table


class _SGD:
    def __init__(self, task: LocalTask, weights: dict[str, Tensor]) -> None:
        self.weights, self.decay = weights, task.options.weight_decay
        self.rates = {name: task.rate(name) for name in weights}

    @torch.no_grad()
    def __call__(self, gradients: dict[str, Tensor], active: Tensor) -> None:
        for name, weight in self.weights.items():
            gradient = gradients[name]
            if self.decay:
                gradient = gradient + self.decay * weight * _like(active, weight)
            weight.sub_(gradient, alpha=self.rates[name])


class _Adam:
    """Adam (Kingma and Ba, 2015) with a step count for each user: β = (0.9, 0.999), ε = 1e-8."""

    def __init__(self, task: LocalTask, weights: dict[str, Tensor]) -> None:
        self.weights, self.decay = weights, task.options.weight_decay
        self.rates = {name: task.rate(name) for name in weights}
        self.first = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        self.second = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        self.steps = torch.zeros(len(next(iter(weights.values()))), dtype=torch.float64)

    @torch.no_grad()
    def __call__(self, gradients: dict[str, Tensor], active: Tensor) -> None:
        self.steps += active.cpu()
        # Users that have not started divide by zero here; their update is masked below.
        steps = self.steps.clamp(min=1)
        scale_1, scale_2 = 1 / (1 - 0.9**steps), 1 / (1 - 0.999**steps)
        everyone = bool(active.all())
        for name, weight in self.weights.items():
            gradient = gradients[name] + self.decay * weight if self.decay else gradients[name]
            first, second = self.first[name], self.second[name]
            if everyone:
                first.mul_(0.9).add_(gradient, alpha=0.1)
                second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            else:
                keep = _like(active, weight)
                first.copy_(torch.where(keep, 0.9 * first + 0.1 * gradient, first))
                second.copy_(torch.where(keep, 0.999 * second + 0.001 * gradient * gradient, second))
            update = _like(scale_1, weight) * first / ((_like(scale_2, weight) * second).sqrt() + 1e-8)
            if not everyone:
                update = update * _like(active, weight)
            weight -= self.rates[name] * update


def _like(per_user: Tensor, weight: Tensor) -> Tensor:
    """A value per user [c] in a shape (and type, unless it is a mask) that broadcasts over `weight` [c, …]."""
    per_user = per_user.to(weight.device)
    if per_user.dtype != torch.bool:
        per_user = per_user.to(weight.dtype)
    return per_user.reshape(-1, *[1] * (weight.ndim - 1))
