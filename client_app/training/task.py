"""What local training is asked.

Every user u of a node minimises, over its own private arrays and its own copy of the model's arrays,

    L_u = (1/N) Σ_{(i, y)} BCE(r̂_ui, y) + penalties of the run's personalizations

where the samples (i, y) are the user's training positives (y = 1) and this round's negatives (y = 0), in
batches of B samples, E times. Only rows of items among the samples can change, and those of all that a user likes
where a method reads them, so only these are worked on; with weight decay, or with a loss that reads the whole table,
every row is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Arrays, Specs
from bouquet.config import TrainingOptions
from bouquet.ragged import Ragged, positions
from bouquet.randomness import Draws, Purpose, Words, draw
from client_app.personalization.base import Personalization
from client_app.personalization.round import Changes
from client_app.training.compiler import batch_kernels, row_kernels
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
        round: of the run; with the user it keys every draw.
        draws: where they come from.
        positives, negatives: [k] rows of items.
        shared: arrays that all users start from, in their declared shapes; not changed, their changes are reported.
        private: arrays of each user [k, …], **updated in place**.
        reported: the names among `private` whose changes are reported too.
        frozen, anchors: arrays that losses read and nobody trains: common ones, and ones of each user [k, …].
        personalizations: what stands between the trained arrays and the backbone, in this order.
        dtype: of the computation; the oracle runs in float64.
        liked: [k] rows of all training items, where `positives` are only the newest of them; None: they are all.
    """

    backbone: Backbone
    options: TrainingOptions
    users: Words
    round: int
    draws: Draws
    positives: Ragged
    negatives: Ragged
    shared: Arrays
    private: Mapping[str, NDArray[np.floating]]
    reported: frozenset[str] = frozenset()
    frozen: Arrays = field(default_factory=dict)
    anchors: Mapping[str, NDArray[np.floating]] = field(default_factory=dict)
    personalizations: tuple[Personalization, ...] = ()
    dtype: type[np.floating] = np.float32
    liked: Ragged | None = None

    @cached_property
    def trained(self) -> list[str]:
        """The names of all trained arrays."""
        return [*self.shared, *self.private]

    @cached_property
    def fixed(self) -> list[str]:
        """The names of all arrays that are read and not trained."""
        return [*self.frozen, *self.anchors]

    @cached_property
    def changing(self) -> list[str]:
        """The names of the arrays whose changes are reported."""
        return [name for name in self.trained if name in self.shared or name in self.reported]

    @cached_property
    def specs(self) -> Specs:
        """Shape for one user, and whether it is by item, of every array."""
        known = dict(self.backbone.shared) | dict(self.backbone.private)
        for method in self.personalizations:
            known |= {**method.shared, **method.private, **method.fixed}
        return known

    @property
    def num_items(self) -> int:
        """Size of the catalogue."""
        return next(spec.shape[0] for spec in self.backbone.shared.values() if spec.by_item)

    def by_item(self, name: str) -> bool:
        """Whether an array has one row per item."""
        return self.specs[name].by_item

    def rate(self, name: str) -> float:
        """The learning rate of an array in this round: lr_t = lr · decay^(t - 1)."""
        base = self.options.learning_rate
        if name in self.backbone.private and self.options.user_learning_rate > 0:
            base = self.options.user_learning_rate
        for method in self.personalizations:
            base = method.rates.get(name, base)
        return base * self.options.learning_rate_decay ** (self.round - 1)

    def decay(self, name: str) -> float:
        """The weight decay of an array: networks may have more of it than embeddings."""
        network = not self.by_item(name) and name not in self.backbone.private
        return self.options.weight_decay + (self.options.network_weight_decay if network else 0.0)

    @property
    def plain_sgd(self) -> bool:
        """Whether a step is no more than value -= rate · slope, and there are as many steps as epochs have batches."""
        options, decays = self.options, any(self.decay(name) for name in self.trained)
        return options.optimizer == "sgd" and options.early_stop_tolerance == 0 and not decays

    @property
    def whole_table(self) -> bool:
        """Whether rows without samples change or matter too."""
        return self.options.weight_decay > 0 or any(method.whole_table for method in self.personalizations)

    def items(self) -> Ragged:
        """The items whose rows each user works on, ascending: [k] rows."""
        if self.whole_table:
            k, m = len(self.users), self.num_items
            return Ragged.from_lengths(np.full(k, m), np.tile(np.arange(m, dtype=np.int32), k))
        sources = [self.positives, self.negatives]
        if self.liked is not None and any(method.reads_history for method in self.personalizations):
            sources.append(self.liked)
        block = max(1, _CELLS // self.num_items)
        lengths, values = [], []
        for start in range(0, len(self.users), block):
            users = slice(start, start + block)
            marks = np.zeros((len(self.users[users]), self.num_items), dtype=bool)
            for rows in sources:
                part = rows.between(users)
                marks[part.row_of_value, part.values] = True
            lengths.append(marks.sum(axis=1))
            values.append(np.nonzero(marks)[1].astype(np.int32))
        if not lengths:
            return Ragged.from_lengths([], [])
        return Ragged.from_lengths(np.concatenate(lengths), np.concatenate(values))

    def common(self, name: str) -> NDArray[np.floating] | None:
        """An array that is the same for all users, or None."""
        return self.shared.get(name, self.frozen.get(name))

    def own(self, name: str) -> NDArray[np.floating]:
        """An array of each user: [k, …]."""
        return self.private[name] if name in self.private else self.anchors[name]

    def of_users(self, name: str, users: NDArray[np.int64], rows: Ragged) -> NDArray[np.floating]:
        """A copy of what some users start from: [nnz, …] their rows of an array by item, or [c, …] of another one."""
        source = self.common(name)
        if self.by_item(name):
            at = rows.values
            found = self.own(name)[users[rows.row_of_value], at] if source is None else source[at]
        else:
            found = self.own(name)[users] if source is None else np.repeat(source[None], len(users), axis=0)
        return np.array(found, dtype=self.dtype)

    def keep(self, trained: Mapping[str, NDArray[np.floating]], users: NDArray[np.int64], rows: Ragged) -> None:
        """Put into the users' own arrays what was trained, in the shapes of `of_users`."""
        owners = users[rows.row_of_value]
        for name, target in self.private.items():
            target[(owners, rows.values) if self.by_item(name) else users] = trained[name]

    def changes(
        self, users: NDArray[np.int64], rows: Ragged, change: Mapping[str, NDArray[np.floating]],
        loss: NDArray[np.floating], steps: NDArray[np.int64] | None = None,
    ) -> Changes:  # fmt: skip
        """What is reported of some users: `change` has the arrays of `changing`, in the shapes of `of_users`."""
        return Changes(
            users=users,
            rows=rows,
            by_item={name: values for name, values in change.items() if self.by_item(name)},
            dense={name: values for name, values in change.items() if not self.by_item(name)},
            loss=loss,
            steps=np.zeros(0, np.int64) if steps is None else steps,
        )

    def norms_outside(self, name: str, users: NDArray[np.int64], rows: Ragged) -> NDArray[np.float64]:
        """[c] squared Frobenius norm, for each of these users, of the rows of an array that it does not work on."""
        source = self.common(name)
        if source is not None:
            flat = source.reshape(len(source), -1)
            norms = np.einsum("md,md->m", flat, flat, dtype=np.float64)
            inside = np.bincount(rows.row_of_value, norms[rows.values], minlength=len(users))
            return np.asarray(norms.sum() - inside)
        own = self.own(name)
        if own.ndim == 3 and (code := row_kernels()) is not None:
            found = np.empty(len(users))
            code.norms_outside(own, users, rows.indptr, rows.values, found)
            return found
        tables = own[users].reshape(len(users), self.num_items, -1)
        norms = np.einsum("kmd,kmd->km", tables, tables, dtype=np.float64)
        norms[rows.row_of_value, rows.values] = 0.0
        return np.asarray(norms.sum(axis=1))


Backend = Callable[[LocalTask], Iterator[Changes]]


def batch_order(
    users: Words, lengths: NDArray[np.int64], draws: Draws, round_: int, epoch: int, batch_size: int
) -> NDArray[np.int64]:
    """A keyed random order of each user's samples in one epoch, fixed up to the order within a batch.

    Args:
        users: [k] keys.
        lengths: [k] number of samples of each user.
        draws: the run's seed, or the node's secret.
    Returns:
        [sum(lengths)] positions within each user's samples, one user after another.
    """
    stream = draws.seeds(users, round_, Purpose.BATCH_ORDER)
    if (code := batch_kernels()) is not None:
        order = np.empty(int(lengths.sum()), np.int64)
        code.batch_orders(stream, np.concatenate([[0], np.cumsum(lengths)]), epoch, batch_size, order)
        return order
    slot = positions(lengths)
    owner = np.repeat(np.arange(len(users)), lengths)
    keys = draw(np.repeat(stream, lengths), slot + epoch * 2**32)
    return slot[np.lexsort((keys, owner))]
