"""What a device's method can do: declare arrays, choose where training starts, change what the model sees, add losses.

A device trains a backbone. A personalization stands between the arrays that are trained and the arrays that the
backbone sees, and several can stand in a row: the plug-ins first, then the base method. All tensors carry a
leading dimension of users, as everywhere in training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Array, Arrays, ArraySpec, Specs
from bouquet.config import Options, RunConfig
from bouquet.errors import WireError
from bouquet.packed import by_entry, surely_finite
from bouquet.ragged import Ragged, positions
from bouquet.randomness import Draws, Words
from models import Backbone

if TYPE_CHECKING:
    from torch import Tensor

Tensors = Mapping[str, "Tensor"]
OwnArrays = dict[str, NDArray[np.float32]]
Pull = Callable[[dict[str, "Tensor"]], dict[str, "Tensor"]]
Task = TypeVar("Task")

PERSONAL = "personal_item_embedding"
"""The item table that a user has beside the common one, in methods with both."""

GLOBAL = "global_item_embedding"
"""The common item table as it came from the server, in methods that keep it beside what they train."""

SHARE = "share of the personal item table"
"""[k, 1, 1] what a plug-in before a method with `PERSONAL` and a common table has it mix them by, in place of a sum."""


@dataclass(frozen=True)
class Given:
    """Where k users start a round from.

    Attributes:
        shared: arrays common to all users; trained, and their changes are reported.
        own: [k, …] arrays of each user; trained and kept on the device.
        reported: the names among `own` whose changes are reported as well.
        frozen: arrays common to all users that the losses read and nobody trains.
        anchors: [k, …] arrays of each user that the losses read and nobody trains.
        addressed: [j] the users that the server sent arrays of their own, ascending; None: all or none of them.
    """

    shared: Arrays
    own: OwnArrays
    reported: frozenset[str] = frozenset()
    frozen: Arrays = field(default_factory=dict)
    anchors: OwnArrays = field(default_factory=dict)
    addressed: NDArray[np.int64] | None = None

    def with_own(self, name: str, values: NDArray[np.float32], *, reported: bool = False) -> Given:
        """The same with an array of each user, which then is not a shared one."""
        return replace(
            self,
            shared={other: array for other, array in self.shared.items() if other != name},
            own={**self.own, name: values},
            reported=self.reported | ({name} if reported else set()),
        )

    def take(self, users: NDArray[np.int64]) -> Given:
        """What some of the users have."""
        own, anchors = ({n: v[users] for n, v in arrays.items()} for arrays in (self.own, self.anchors))
        return replace(self, own=own, anchors=anchors)


@dataclass(frozen=True)
class Changes:
    """What training did to the arrays whose changes are reported, for some of the asked users.

    Attributes:
        users: [c] positions among the users of the task.
        rows: the changed items of each user, ascending: [c] rows.
        by_item: name -> [nnz, …], the change of each of those rows.
        dense: name -> [c, …], the change of a whole array.
        loss: [c] mean loss of the last epoch; NaN for a user without samples.
        steps: [c] local steps that each user took; empty where a kernel without personalizations does not count them.
    """

    users: NDArray[np.int64]
    rows: Ragged
    by_item: dict[str, NDArray[np.floating]] = field(default_factory=dict)
    dense: dict[str, NDArray[np.floating]] = field(default_factory=dict)
    loss: NDArray[np.floating] = field(default_factory=lambda: np.zeros(0))
    steps: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def take(self, places: NDArray[np.int64]) -> Changes:
        """The changes of some of the users, by their places here."""
        lengths = self.rows.lengths[places]
        at = np.repeat(self.rows.indptr[places], lengths) + positions(lengths)
        return Changes(
            users=self.users[places],
            rows=Ragged.from_lengths(lengths, self.rows.values[at]),
            by_item={name: values[at] for name, values in self.by_item.items()},
            dense={name: values[places] for name, values in self.dense.items()},
            loss=self.loss[places],
            steps=self.steps[places] if len(self.steps) else self.steps,
        )

    def rebuilt(
        self,
        rows: Sequence[NDArray[np.integer]],
        by_item: Mapping[str, Sequence[NDArray[np.floating]]],
        dense: dict[str, NDArray[np.floating]],
    ) -> Changes:
        """The changes of the same users with other rows.

        Args:
            rows: [c] the items of each user.
            by_item: by name, [c] the values of each user's rows.
        """
        lengths = np.array([len(items) for items in rows], dtype=np.int64)
        joined = np.concatenate(rows).astype(np.int32) if rows else np.zeros(0, np.int32)
        return replace(
            self,
            rows=Ragged.from_lengths(lengths, joined),
            by_item={name: np.concatenate(parts) if parts else self.by_item[name] for name, parts in by_item.items()},
            dense=dense,
        )

    def finite(self) -> NDArray[np.bool_]:
        """[c] whether all that training changed of a user is finite."""
        fit = np.ones(len(self.users), dtype=bool)
        for values in self.dense.values():
            if not surely_finite(values):  # quicker, and finite for all but numbers that are nearly too large
                fit &= by_entry(np.isfinite(values))
        for values in self.by_item.values():
            if not surely_finite(values):
                fit[self.rows.row_of_value[~by_entry(np.isfinite(values))]] = False
        return fit


@dataclass(frozen=True)
class Tuning:
    """Fine-tuning before use: the device recommends with γ w_local + (1 - γ) w.

    Attributes:
        epochs: passes over the user's samples.
        gamma: γ, the share of the fine-tuned model.
    """

    epochs: int
    gamma: float


@dataclass(frozen=True)
class Batch:
    """The samples of one step: b entries for each of k users, which refer to the R rows that are worked on.

    Attributes:
        positive, negative: [k, b] how often an entry is a positive and a negative sample.
        size: [k] samples of each user; 0 for users without any in this step.
        rows: [k, b] the row of each entry; None: entry r is row r, and b = R.
    """

    positive: Tensor
    negative: Tensor
    size: Tensor
    rows: Tensor | None = None

    @property
    def samples(self) -> Tensor:
        """[k, b] how often each entry stands in the batch."""
        return self.positive + self.negative

    @property
    def count(self) -> Tensor:
        """[k] samples of each user; 1 for users without any, so that one can divide by it."""
        return self.size.clamp(min=1)

    def for_heads(self, heads: int) -> Batch:
        """The same samples once for each head of the backbone, one head after another."""
        if heads == 1:
            return self
        return replace(self, positive=self.positive.repeat(1, heads), negative=self.negative.repeat(1, heads))

    def pick(self, table: Tensor) -> Tensor:
        """[k, b, …] the entries' rows of a table [k, R, …]."""
        if self.rows is None:
            return table
        if len(table) == 1:  # the usual case, in which one index is several times faster than two
            return table[0][self.rows[0]].unsqueeze(0)
        import torch  # who has tensors has loaded it

        return table[torch.arange(len(table), device=table.device).unsqueeze(1), self.rows]


@dataclass(frozen=True)
class Working:
    """The rows that k users work on.

    Attributes:
        items: [k, R] item of each row; meaningless where `valid` is False.
        valid: [k, R] padding is False.
        positive: [k, R] 1 where the item is one of the user's training positives, else 0; when items are scored, one
            that may be read.
        outside: name -> [k] squared Frobenius norm of the rows that are not worked on, of the arrays in `norms_of`.
        round: the server round, starting from 1.
    """

    items: Tensor
    valid: Tensor
    positive: Tensor
    outside: Tensors
    round: int


class Personalization:
    """A device-side method; by itself it changes nothing.

    Args:
        backbone: the model.
        config: settings that every run has.
        options: the method's own settings, an instance of its manifest's `options`.
    Raises:
        ConfigError: they do not go together.

    Attributes:
        shared, private: the arrays that the method adds to those of the backbone.
        fixed: the arrays that its losses read and nobody trains.
        kept: shared arrays of which every user keeps a version of its own on the device.
        replaced: those among them that training starts from without the user's own version.
        tuned: common tables, by item, that the user trains from as they come and recommends with as its training left
            them; a plug-in that keeps versions of a table for its own purpose goes before.
        by_rows: its private arrays by item of which training, from `start` on, reads and changes the rows that are
            worked on and no others, so that all that was never among them is as it was drawn.
        rates: learning rates of arrays that do not take the run's, by name.
        whole_table: a loss reads or moves every row, so all rows are worked on.
        fewer_rows: the settings with which it would not, for a user whose disk is too small; "" where there are none.
        norms_of: arrays by item of which it needs the norm of the rows that are not worked on.
        tuning: how the device fine-tunes what it recommends with; None: it does not.
        needs_validation: `validation_reports` is asked for.
        without_order: what to do where the method reads the order of histories, and they have none.
        reads_history: what the backbone sees depends on which items are the user's: in training on all training items,
            of which a sequence may have only the newest as samples.
        only_sum: the backbone sees the sum of the common item table and `PERSONAL`, and nothing else is minimised.
    """

    kept: frozenset[str] = frozenset()
    replaced: frozenset[str] = frozenset()
    tuned: frozenset[str] = frozenset()
    by_rows: frozenset[str] = frozenset()
    whole_table = False
    fewer_rows = ""
    norms_of: tuple[str, ...] = ()
    tuning: Tuning | None = None
    needs_validation = False
    without_order = ""
    reads_history = False
    only_sum = False

    def __init__(self, backbone: Backbone, config: RunConfig, options: Options) -> None:
        options.check_run(config)
        self.backbone, self.config, self.options = backbone, config, options
        self.shared: Specs = {}
        self.private: Specs = {}
        self.fixed: Specs = {}
        self.rates: Mapping[str, float] = {}

    @classmethod
    def reads_order(cls, options: Options) -> bool:
        """Whether the method, with these settings, makes use of the order of a history, which then must be in time."""
        return False

    @property
    def in_loss(self) -> bool:
        """Whether the method changes what is minimised or what the backbone sees."""
        cls = type(self)
        return cls.view is not Personalization.view or cls.penalty is not Personalization.penalty

    @property
    def in_view(self) -> bool:
        """Whether the method changes what the backbone sees, so that scores are not those of the arrays alone."""
        return type(self).view is not Personalization.view

    def start(self, given: Given, personal: OwnArrays, first: NDArray[np.bool_]) -> Given:
        """Where training starts.

        Args:
            given: what the server sent to all and what the device has kept.
            personal: [k, …] what the server sent to each of the users, or [j, …] to those that are `given.addressed`.
            first: [k] users that have not trained before.
        """
        return given

    def deploy(self, given: Given, personal: OwnArrays, first: NDArray[np.bool_]) -> Given:
        """What the device recommends with; by default what its next training would start from."""
        return self.start(given, personal, first)

    def view(self, arrays: Tensors, working: Working) -> Tensors:
        """What the next method, and at last the backbone, sees in place of `arrays`; entries may be added.

        Args:
            arrays: name -> [k, R, …] by item, [k, …] others; trained, frozen and anchored ones.
        """
        return arrays

    def two_views(self, arrays: Tensors, seen: Tensors) -> tuple[Tensor, Tensor] | None:
        """The items as the common table shows them and as the user's own shows them, [k, R, d] each, for diagnostics.

        Args:
            arrays: as for `penalty`.
            seen: as for `penalty`.
        Returns:
            None where the method has no two such tables.
        """
        return None

    def penalty(self, arrays: Tensors, seen: Tensors, batch: Batch, working: Working) -> Tensor | None:
        """[k] what is added to each user's loss, or None.

        Args:
            arrays: what is trained and what is frozen, as for `view`.
            seen: the same after the views of all methods.
        """
        return None

    def forward(self, arrays: Tensors, batch: Batch, working: Working) -> tuple[Tensors, Pull] | None:
        """What `view` gives, and the way back of gradients, by hand where that is faster than autograd.

        Args:
            batch: every row is an entry (`rows` is None).
        Returns:
            The seen arrays, and a function from ∂L/∂seen by name to ∂L/∂array by name, which adds the gradient of the
            method's own penalty. It is called without a graph, and for users without samples its result is not used.
            None where nobody wrote it down.
        """
        return None

    def train(self, backend: Callable[[Task], Iterator[Changes]], task: Task) -> Iterator[Changes]:
        """One round of local training, for methods that make another task of it, or more of what comes of it.

        Args:
            backend: computes a `LocalTask`.
            task: of some users, from what they were given; its private arrays are those that will be kept.
        """
        return backend(task)

    def compiled(self, task: Task) -> Iterator[Changes] | None:
        """One round of local training by compiled loops of the method's own; None where they do not compute this task.

        Args:
            task: as a backend is given it; the method is the only one in it.
        """
        return None

    def scores(self, given: Given) -> Callable[[NDArray[np.int64]], Array] | None:
        """What matrix factorisation gives after `view`, by compiled loops of the method's own; None where it has none.

        Args:
            given: as `deploy` left it; no other method changes what the model sees.
        Returns:
            rows [b] of the users -> [b, m].
        """
        return None

    def reports(
        self, given: Given, users: Words, positives: Ragged, negatives: Ragged, round_: int, draws: Draws
    ) -> dict[str, NDArray[np.float32]]:
        """What each user tells the server beside its update, by a name that the wire declares: [k, …] each.

        Args:
            given: as `start` left it, with `own` after training.
            users: [k] keys.
            positives: [k] rows of this round's training items.
            negatives: [k] rows of what they were trained against.
            draws: of noise that protects what is reported.
        """
        return {}

    def validation_reports(self, metrics: NDArray[np.float64]) -> dict[str, NDArray[np.float32]]:
        """What each user tells of how well training has served it.

        Args:
            metrics: [k, candidate sets, metrics] of the trained model on what the users hold out for validation; NaN
                for a user who holds out nothing.
        """
        return {}

    def evaluation_reports(self, given: Given, positives: Ragged) -> dict[str, NDArray[np.float32]]:
        """What each user tells beside its metrics when it is evaluated: [k, …] each.

        Args:
            given: as `deploy` left it.
            positives: [k] rows of training items, oldest first.
        """
        return {}

    def disguise(self, changes: Changes, given: Given, users: Words, round_: int, draws: Draws) -> Changes:
        """What is uploaded in place of the changes of some of the users."""
        return changes


def checked_personal(personal: OwnArrays, name: str, spec: ArraySpec, users: int) -> Array:
    """What the server sent to each of so many users, [k, …].

    Raises:
        WireError: it did not come, or has another shape or type.
    """
    values = personal.get(name)
    if values is None or values.shape != (users, *spec.shape) or values.dtype != np.float32:
        came = "nothing" if values is None else f"{values.dtype.name} {list(values.shape)}"
        raise WireError(f"the personal array '{name}' should be float32 {[users, *spec.shape]}, not {came}")
    return values
