"""Many users at once: their working rows stacked into one tensor, one autograd pass for all of them.

A batch is kept as two counts per (user, row): how often the row stands in it as a positive and as a negative.
The batch loss is then a weighted sum over rows,

    L_u = (1/N_b) Σ_r (pos_r + neg_r) softplus(z_r) - pos_r z_r,

which equals the sum over samples and needs neither a gather nor a scatter of embeddings in the inner loop.
Users of a chunk are padded to the longest; a user without samples in a step is frozen, moments included.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bouquet.ragged import Ragged, positions
from client_app.personalization.base import Batch, Changes, Tensors, Working
from client_app.training.objective import losses, sample_losses, working_rows
from client_app.training.sequences import newest, samples_of, sequence_batch
from client_app.training.task import LocalTask, batch_order
from models import HISTORY, is_sequential

# Chunks that fit the second-level cache are fastest; see benchmarks.
CHUNK_VALUES = 250_000
# Methods hold several copies of the rows at once, so of these fewer fit.
METHOD_ROW_VALUES = 120_000
# A recurrent network takes many small steps, whose fixed cost more users share.
SEQUENCE_CHUNK_VALUES = 4_000_000
# A GPU is filled by far more users at once. With gradients, moments and what is made of them, so many values of float32
# take some 3 GB of its memory.
GPU_CHUNK_VALUES = 50_000_000
# Where an item's row stands is looked up in a table of users by items, on the host.
MOST_PLACES = 2**26


def train_stacked(task: LocalTask) -> Iterator[Changes]:
    """Train chunks of users of like size; yields one `Changes` per chunk."""
    sequential = is_sequential(task.backbone)
    if sequential:
        task = newest(task)
    items = task.items()
    samples = task.positives.lengths + task.negatives.lengths
    # What users of a chunk are padded to: a sequence is one step, however long.
    steps = task.positives.lengths if sequential else -(-samples // task.options.batch_size)
    order = np.lexsort((items.lengths, steps))
    kind, limit = (SequenceChunk, SEQUENCE_CHUNK_VALUES) if sequential else (Chunk, CHUNK_VALUES)
    most = METHOD_ROW_VALUES if task.personalizations and not sequential else limit
    if task.options.device != "cpu":
        limit = most = GPU_CHUNK_VALUES
    specs = [task.specs[name] for name in (*task.trained, *task.fixed)]
    width = max(sum(spec.size for spec in specs if spec.by_item) // task.num_items, 1)
    dense = sum(spec.size for spec in specs if not spec.by_item)
    start = 0
    for stop in range(1, len(order) + 1):
        if stop < len(order):
            values, count = int(items.lengths[order[stop]]) * width, stop + 1 - start
            fits = count * (values + dense) <= limit and count * values <= most
            if fits and count * task.num_items <= MOST_PLACES:
                continue
        users = order[start:stop]
        yield kind(task, users, items.take(users)).train()
        start = stop


class Chunk:
    """The users of one stack.

    Shapes: c users, r rows of the user with most of them; tables [c, r, …].
    """

    def __init__(self, task: LocalTask, users: NDArray[np.int64], rows: Ragged) -> None:
        self.task, self.users, self.rows = task, users, rows
        self.num_rows = int(rows.lengths.max(initial=0))
        # Every row of every user: then there is no padding, and nothing to look up.
        self.whole = len(rows.values) == len(users) * task.num_items
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
        task, options = self.task, self.task.options
        arrays = {name: self._stack(name) for name in (*task.trained, *task.fixed)}
        weights = {name: arrays[name].requires_grad_() for name in task.trained}
        working = working_rows(task, self.users, self.rows, self.device)
        step = (_Adam if options.optimizer == "adam" else _SGD)(task, weights)
        tolerance, last = options.early_stop_tolerance, options.local_epochs - 1
        running = torch.ones(len(self.users), dtype=torch.float64)
        loss, steps = torch.full_like(running, float("nan")), torch.zeros_like(running)
        for epoch in range(options.local_epochs):
            total = torch.zeros_like(running)
            for batch in self._batches(epoch):
                if tolerance > 0:
                    batch = _only(batch, running)
                steps += (batch.size > 0).cpu()
                total += self._step(arrays, weights, step, batch, working, epoch == last or tolerance > 0).cpu()
            now = total / torch.from_numpy(self.sample_lengths)
            before, loss = loss, torch.where(running > 0, now, loss)
            if tolerance > 0:
                running = running * ~((before - loss).abs() <= tolerance * before.abs())
                if not running.any():
                    break
        self._put_back(weights)
        changes = {name: self._change(name, weights[name]) for name in task.changing}
        return task.changes(self.users, self.rows, changes, loss.numpy(), steps.numpy().astype(np.int64))

    def _step(
        self, arrays: dict[str, Tensor], weights: dict[str, Tensor], step: _SGD | _Adam, batch: Batch,
        working: Working, with_loss: bool,
    ) -> Tensor:  # fmt: skip
        """One step along the gradient of the users' losses, by hand where the backbone and all methods can.

        Returns:
            [c] float64, the sum of each user's sample losses before the step; zeros if not asked for, because they
            cost as much as the gradient.
        """
        found = torch.zeros(len(self.users), dtype=torch.float64)
        if is_sequential(self.task.backbone):
            return self._step_by_autograd(arrays, weights, step, batch, working)
        backbone, methods = self.task.backbone, self.task.personalizations
        seen: Tensors = arrays
        with torch.no_grad():
            pulls = []
            for method in methods:
                found_way = method.forward(seen, batch, working)
                if found_way is None:
                    return self._step_by_autograd(arrays, weights, step, batch, working)
                seen = found_way[0]
                pulls.append(found_way[1])
            private = {name: seen[name] for name in backbone.private}
            if backbone.reads_history:
                private[HISTORY] = working.positive
            shared = {name: seen[name] for name in backbone.shared}
            logits, pull_back = backbone.forward(private, shared)
            if pull_back is None:
                return self._step_by_autograd(arrays, weights, step, batch, working)
            batch = batch.for_heads(backbone.heads)
            if with_loss:
                found = sample_losses(logits, batch).double()
            slope = (batch.samples * torch.sigmoid(logits)).sub_(batch.positive).div_(batch.count.unsqueeze(1))
            plain = not methods and isinstance(step, _SGD) and step.plain
            if plain and backbone.sgd_step(private, shared, slope, step.rates):
                return found
            gradients = pull_back(slope)
            for pull in reversed(pulls):
                gradients = pull(gradients)
            active = batch.size > 0
            asked = _filled(weights, tuple(gradients.get(name) for name in weights))
            if methods and not active.all():  # a penalty may pull at users that rest in this step
                asked = {name: gradient * _like(active, gradient) for name, gradient in asked.items()}
            step(asked, active)
        return found

    def _step_by_autograd(
        self, arrays: dict[str, Tensor], weights: dict[str, Tensor], step: _SGD | _Adam, batch: Batch, working: Working
    ) -> Tensor:
        """The same where a gradient is not written down."""
        with torch.enable_grad():
            recommendation, added = losses(self.task, arrays, batch, working)
            total = (recommendation + added).sum()
            gradients = torch.autograd.grad(total, list(weights.values()), allow_unused=True)
        step(_filled(weights, gradients), batch.size > 0)
        return (recommendation.detach() * batch.size).double()

    def _batches(self, epoch: int) -> Iterator[Batch]:
        """The steps of an epoch; every row is an entry."""
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
        place = batch_order(keys, self.sample_lengths, self.task.draws, self.task.round, epoch, size)
        sample = np.repeat(self.sample_start, self.sample_lengths) + place
        batch = positions(self.sample_lengths) // size
        for step in range(steps):
            yield self._count(sample[batch == step], np.clip(self.sample_lengths - step * size, 0, size))

    def _count(self, samples: slice | NDArray[np.int64], sizes: NDArray[np.int64]) -> Batch:
        cells = 2 * len(self.users) * self.num_rows
        counts = np.bincount(self.sample_cell[samples], minlength=cells)
        positive, negative = self._tensor(counts).reshape(2, len(self.users), self.num_rows)
        return Batch(positive, negative, self._tensor(sizes))

    def _tensor(self, values: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(values.astype(self.task.dtype)).to(self.device)

    def _stack(self, name: str) -> Tensor:
        """An array of all users: [c, r, …] by item, with zeros past a user's last row; else [c, …]."""
        task, common = self.task, self.task.common(name)
        by_item = task.by_item(name)
        if self.whole or not by_item:
            whole = task.own(name)[self.users] if common is None else np.repeat(common[None], len(self.users), axis=0)
            return self._arranged(self._tensor(whole)) if by_item else self._tensor(whole)
        stacked = np.zeros((len(self.users), self.num_rows, *task.specs[name].shape[1:]), dtype=task.dtype)
        if common is None:
            stacked[self.owner, self.place] = task.own(name)[self.users[self.owner], self.rows.values]
        else:
            stacked[self.owner, self.place] = common[self.rows.values]
        return self._arranged(torch.from_numpy(stacked).to(self.device))

    def _arranged(self, table: Tensor) -> Tensor:
        return _columns_first(table)

    def _put_back(self, weights: dict[str, Tensor]) -> None:
        self.before = {}
        for name, target in self.task.private.items():
            by_row = self.task.by_item(name) and not self.whole
            at = (self.users[self.owner], self.rows.values) if by_row else (self.users,)
            values = self._flat(name, weights[name])
            if name in self.task.reported:
                self.before[name] = target[at].reshape(values.shape)
            target[at] = values.reshape(-1, *target.shape[1 + by_row :])

    def _change(self, name: str, trained: Tensor) -> NDArray[np.floating]:
        """[nnz, …] or [c, …]: what training changed."""
        values = self._flat(name, trained)
        if name in self.before:
            return values - self.before[name]
        start = self.task.shared[name]
        if self.task.by_item(name) and not self.whole:
            values -= start[self.rows.values]
        else:
            values.reshape(-1, *start.shape)[:] -= start
        return values

    def _flat(self, name: str, stacked: Tensor) -> NDArray[np.floating]:
        """The values without padding: [nnz, …] by item, users one after another; else [c, …]."""
        if not self.task.by_item(name):
            return stacked.detach().cpu().numpy().copy()
        flat = stacked.detach().contiguous().flatten(0, 1)
        if self.whole:
            return flat.cpu().numpy()
        return flat[torch.from_numpy(self.owner * self.num_rows + self.place).to(self.device)].cpu().numpy()


class SequenceChunk(Chunk):
    """The users of one stack, whose backbone reads sequences: one step per epoch."""

    def _index_samples(self, positives: Ragged, negatives: Ragged) -> None:
        self.sample_lengths = samples_of(self.task)[self.users]

    def _batches(self, epoch: int) -> Iterator[Batch]:
        if self.sample_lengths.any():
            yield sequence_batch(self.task, self.users, self.rows, epoch, self.device)

    def _arranged(self, table: Tensor) -> Tensor:
        return table  # rows are looked up one by one


def _only(batch: Batch, running: Tensor) -> Batch:
    """The batch without the samples of users that have stopped."""
    mask = running.to(batch.positive)
    masked = {"positive": batch.positive * mask.unsqueeze(1), "negative": batch.negative * mask.unsqueeze(1)}
    return replace(batch, **masked, size=batch.size * mask)


def _filled(weights: dict[str, Tensor], gradients: tuple[Tensor | None, ...]) -> dict[str, Tensor]:
    """Gradients by name; what no loss depends on has none, which is a gradient of 0."""
    pairs = zip(weights.items(), gradients, strict=True)
    return {name: torch.zeros_like(weight) if slope is None else slope for (name, weight), slope in pairs}


def _columns_first(table: Tensor) -> Tensor:
    """The same [c, r, d] values with r running fastest in memory, which batched products read best."""
    return table.transpose(1, 2).contiguous().transpose(1, 2) if table.ndim == 3 else table


class _SGD:
    def __init__(self, task: LocalTask, weights: dict[str, Tensor]) -> None:
        self.weights = weights
        self.rates = {name: task.rate(name) for name in weights}
        self.decays = {name: task.decay(name) for name in weights}
        self.plain = not any(self.decays.values())

    @torch.no_grad()
    def __call__(self, gradients: dict[str, Tensor], active: Tensor) -> None:
        for name, weight in self.weights.items():
            gradient, decay = gradients[name], self.decays[name]
            if decay:
                gradient = gradient + decay * weight * _like(active, weight)
            weight.sub_(gradient, alpha=self.rates[name])


class _Adam:
    """Adam (Kingma and Ba, 2015) with a step count for each user: β = (0.9, 0.999), ε = 1e-8."""

    def __init__(self, task: LocalTask, weights: dict[str, Tensor]) -> None:
        self.weights = weights
        self.rates = {name: task.rate(name) for name in weights}
        self.decays = {name: task.decay(name) for name in weights}
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
            decay = self.decays[name]
            gradient = gradients[name] + decay * weight if decay else gradients[name]
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
