"""What local training is asked, and what it answers.

Every user u of a node minimises, over its own private arrays and its own copy of the model's arrays,

    L_u = (1/N) Σ_{(i, y)} BCE(r̂_ui, y)

where the samples (i, y) are the user's training positives (y = 1) and this round's negatives (y = 0), in
batches of B samples, E times. Only rows of items among the samples can change, so only these are worked on;
with weight decay every row changes and the whole table is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Arrays, Specs
from bouquet.config import TrainingOptions
from bouquet.ragged import Ragged, positions
from bouquet.randomness import Purpose, Words, draw, streams
from client_app.training.compiler import kernels
from models import Backbone

# Marks of this many (user, item) pairs are made at once when touched items are looked for.
_CELLS = 2**25


@dataclass(frozen=True)
class LocalTask:
    """One round of local training for k users.

    Attributes:
        backbone: the model.
        options: epochs, batch size, optimiser, rates.
        users: [k] user keys.
        round, seed: of the run; with the user they key every draw.
        positives, negatives: [k] rows of items.
        shared: arrays that came from the server, in their declared shapes; not changed.
        private: per-user arrays [k, …], **updated in place**: those that the backbone declares private, and those
            of its shared arrays that this run does not share (then every user has a whole one of its own).
        dtype: of the computation; the oracle runs in float64.
    """

    backbone: Backbone
    options: TrainingOptions
    users: Words
    round: int
    seed: int
    positives: Ragged
    negatives: Ragged
    shared: Arrays
    private: Mapping[str, NDArray[np.floating]]
    dtype: type[np.floating] = np.float32

    @property
    def item_specs(self) -> Specs:
        """The model's arrays with one row per item."""
        return {name: spec for name, spec in self.backbone.shared.items() if spec.by_item}

    @property
    def dense_specs(self) -> Specs:
        """The model's other shared arrays."""
        return {name: spec for name, spec in self.backbone.shared.items() if not spec.by_item}

    @property
    def num_items(self) -> int:
        """Size of the catalogue."""
        return next(iter(self.item_specs.values())).shape[0]

    def rate(self, name: str) -> float:
        """The learning rate of an array in this round: lr_t = lr · decay^(t - 1)."""
        private = name in self.backbone.private and self.options.user_learning_rate > 0
        base = self.options.user_learning_rate if private else self.options.learning_rate
        return base * self.options.learning_rate_decay ** (self.round - 1)

    def items(self) -> Ragged:
        """The items that each user's training can change, ascending: [k] rows."""
        if self.options.weight_decay > 0:
            k, m = len(self.users), self.num_items
            return Ragged.from_lengths(np.full(k, m), np.tile(np.arange(m), k))
        block = max(1, _CELLS // self.num_items)
        lengths, values = [], []
        for start in range(0, len(self.users), block):
            users = slice(start, start + block)
            marks = np.zeros((len(self.users[users]), self.num_items), dtype=bool)
            for rows in (self.positives, self.negatives):
                part = rows.between(users)
                marks[part.row_of_value, part.values] = True
            lengths.append(marks.sum(axis=1))
            values.append(np.nonzero(marks)[1].astype(np.int32))
        if not lengths:
            return Ragged.from_lengths([], [])
        return Ragged.from_lengths(np.concatenate(lengths), np.concatenate(values))

    def start(self, name: str, user: int, rows: NDArray[np.integer] | None) -> NDArray[np.floating]:
        """A copy of where a user's training starts from: the given rows of an array, or the whole array."""
        source = self.shared[name] if name in self.shared else self.private[name][user]
        return np.array(source if rows is None else source[rows], dtype=self.dtype)


@dataclass(frozen=True)
class Changes:
    """What training did to the arrays that came from the server, for some of the task's users.

    Attributes:
        users: [c] positions in the task.
        rows: the changed items of each user, ascending: [c] rows.
        by_item: name -> [nnz, …], the change of each of those rows.
        dense: name -> [c, …], the change of a whole array.
        loss: [c] mean loss of the last epoch; NaN for a user without samples.
    """

    users: NDArray[np.int64]
    rows: Ragged
    by_item: dict[str, NDArray[np.floating]] = field(default_factory=dict)
    dense: dict[str, NDArray[np.floating]] = field(default_factory=dict)
    loss: NDArray[np.floating] = field(default_factory=lambda: np.zeros(0))


Backend = Callable[[LocalTask], Iterator[Changes]]


def batch_order(
    users: Words, lengths: NDArray[np.int64], seed: int, round_: int, epoch: int, batch_size: int
) -> NDArray[np.int64]:
    """A keyed random order of each user's samples in one epoch, fixed up to the order within a batch.

    Args:
        users: [k] keys.
        lengths: [k] number of samples of each user.
    Returns:
        [sum(lengths)] positions within each user's samples, one user after another.
    """
    stream = streams(seed, users, round_, Purpose.BATCH_ORDER)
    if (code := kernels()) is not None:
        order = np.empty(int(lengths.sum()), np.int64)
        code.batch_orders(stream, np.concatenate([[0], np.cumsum(lengths)]), epoch, batch_size, order)
        return order
    slot = positions(lengths)
    owner = np.repeat(np.arange(len(users)), lengths)
    keys = draw(np.repeat(stream, lengths), slot + epoch * 2**32)
    return slot[np.lexsort((keys, owner))]
