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
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bouquet.ragged import Ragged, positions
from client_app.personalization.round import Batch, Changes, Tensors, Working
from client_app.training.objective import losses, sample_losses, working_rows
from client_app.training.optimizers import SGD, Adam, like, surely_all
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
        # Where training starts, on the device: common arrays in their declared shapes, once for all users.
        self.start: dict[str, Tensor] = {}
        self._index_samples(positives, negatives)

    def _index_samples(self, positives: Ragged, negatives: Ragged) -> None:
        """Every sample as a cell of one array of counts, users one after another, positives first.

        Cells [0, c r) count positives by user and row, cells [c r, 2 c r) negatives.
        """
        place_of = np.zeros((len(self.users), self.task.num_items), dtype=np.int32)
        place_of[self.owner, self.rows.values] = self.place
        self.sample_start = np.cumsum(self.sample_lengths) - self.sample_lengths
        sample_cell = np.empty(int(self.sample_lengths.sum()), dtype=np.int64)
        begin = self.sample_start
        for half, part in enumerate((positives, negatives)):
            owner = part.row_of_value
            cell = (half * len(self.users) + owner) * self.num_rows + place_of[owner, part.values]
            sample_cell[np.repeat(begin, part.lengths) + positions(part.lengths)] = cell
            begin = begin + part.lengths
        self.sample_cell = self._there(sample_cell)

    def train(self) -> Changes:
        task, options = self.task, self.task.options
        arrays = {name: self._stack(name) for name in (*task.trained, *task.fixed)}
        weights = {name: arrays[name].requires_grad_() for name in task.trained}
        working = working_rows(task, self.users, self.rows, self.device)
        step = (Adam if options.optimizer == "adam" else SGD)(task, weights)
        tolerance, last = options.early_stop_tolerance, options.local_epochs - 1
        running = torch.ones(len(self.users), dtype=torch.float64, device=self.device)
        loss, steps = torch.full_like(running, float("nan")), torch.zeros_like(running)
        samples = self._there(self.sample_lengths)
        for epoch in range(options.local_epochs):
            total = torch.zeros_like(running)
            for batch in self._batches(epoch):
                if tolerance > 0:
                    batch = _only(batch, running)
                steps += batch.size > 0
                total += self._step(arrays, weights, step, batch, working, epoch == last or tolerance > 0)
            now = total / samples
            before, loss = loss, torch.where(running > 0, now, loss)
            if tolerance > 0:
                running = running * ~((before - loss).abs() <= tolerance * before.abs())
                if not running.any():
                    break
        self._put_back(weights)
        changes = {name: self._change(name, weights[name]) for name in task.changing}
        found = loss.cpu().numpy(), steps.cpu().numpy().astype(np.int64)
        return task.changes(self.users, self.rows, changes, *found)

    def _step(
        self, arrays: dict[str, Tensor], weights: dict[str, Tensor], step: SGD | Adam, batch: Batch,
        working: Working, with_loss: bool,
    ) -> Tensor:  # fmt: skip
        """One step along the gradient of the users' losses, by hand where the backbone and all methods can.

        Returns:
            [c] float64, the sum of each user's sample losses before the step; zeros if not asked for, because they
            cost as much as the gradient.
        """
        found = torch.zeros(len(self.users), dtype=torch.float64, device=self.device)
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
            plain = not methods and isinstance(step, SGD) and step.plain
            if plain and backbone.sgd_step(private, shared, slope, step.rates):
                return found
            gradients = pull_back(slope)
            for pull in reversed(pulls):
                gradients = pull(gradients)
            active = batch.size > 0
            asked = _filled(weights, tuple(gradients.get(name) for name in weights))
            if methods and not surely_all(active):  # a penalty may pull at users that rest in this step
                asked = {name: gradient * like(active, gradient) for name, gradient in asked.items()}
            step(asked, active)
        return found

    def _step_by_autograd(
        self, arrays: dict[str, Tensor], weights: dict[str, Tensor], step: SGD | Adam, batch: Batch, working: Working
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
                self._whole = self._count(self.sample_cell, self.sample_lengths)
            yield self._whole
            return
        keys = self.task.users[self.users]
        place = batch_order(keys, self.sample_lengths, self.task.draws, self.task.round, epoch, size)
        sample = np.repeat(self.sample_start, self.sample_lengths) + place
        batch = positions(self.sample_lengths) // size
        cell = self.sample_cell[self._there(sample[np.argsort(batch, kind="stable")])]
        stops = np.cumsum(np.bincount(batch, minlength=steps))
        for step, (stop, count) in enumerate(zip(stops, np.diff(stops, prepend=0), strict=True)):
            yield self._count(cell[stop - count : stop], np.clip(self.sample_lengths - step * size, 0, size))

    def _count(self, cell: Tensor, sizes: NDArray[np.int64]) -> Batch:
        counts = self._zeros(2 * len(self.users) * self.num_rows)
        # Small integers: their sum is exact in whatever order a GPU adds.
        counts.index_add_(0, cell, counts.new_ones(1).expand(len(cell)))
        positive, negative = counts.view(2, len(self.users), self.num_rows)
        return Batch(positive, negative, self._tensor(sizes))

    def _tensor(self, values: NDArray[np.generic]) -> Tensor:
        return self._there(values.astype(self.task.dtype))

    def _there(self, values: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(values).to(self.device)

    def _zeros(self, *shape: int) -> Tensor:
        return self._tensor(np.zeros(0)).new_zeros(shape)

    @cached_property
    def cell(self) -> Tensor:
        """[nnz] where the users' rows stand among the c r rows of a stack."""
        return self._there(self.owner * self.num_rows + self.place)

    @cached_property
    def item(self) -> Tensor:
        """[nnz] the items of the users' rows."""
        return self._there(self.rows.values.astype(np.int64))

    def _stack(self, name: str) -> Tensor:
        """An array of all users: [c, r, …] by item, with zeros past a user's last row; else [c, …]."""
        task, common, by_item = self.task, self.task.common(name), self.task.by_item(name)
        if common is not None:
            self.start[name] = self._tensor(common)
        if self.whole or not by_item:
            users = len(self.users)
            own = self.start[name].expand(users, *common.shape) if common is not None else task.own(name)[self.users]
            stacked = own.clone() if isinstance(own, Tensor) else self._tensor(own)
        else:
            if common is not None:
                values = self.start[name].index_select(0, self.item)
            else:
                values = self._tensor(task.own(name)[self.users[self.owner], self.rows.values])
            flat = values.new_zeros(len(self.users) * self.num_rows, *values.shape[1:])
            stacked = flat.index_copy_(0, self.cell, values).unflatten(0, (len(self.users), self.num_rows))
        return self._arranged(stacked) if by_item else stacked

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
        if name in self.before:
            return self._flat(name, trained) - self.before[name]
        start = self.start[name]
        if self.task.by_item(name) and not self.whole:
            return self._rows(trained).sub_(start.index_select(0, self.item)).cpu().numpy()
        return self._flat(name, trained.detach().sub_(start))

    def _flat(self, name: str, stacked: Tensor) -> NDArray[np.floating]:
        """The values without padding: [nnz, …] by item, users one after another; else [c, …]."""
        if not self.task.by_item(name):
            return stacked.detach().cpu().numpy().copy()
        if self.whole:
            return stacked.detach().contiguous().flatten(0, 1).cpu().numpy()
        return self._rows(stacked).cpu().numpy()

    def _rows(self, stacked: Tensor) -> Tensor:
        """[nnz, …] a copy of the rows that are no padding."""
        return stacked.detach().contiguous().flatten(0, 1).index_select(0, self.cell)


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
