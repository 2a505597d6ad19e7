"""What a method on a device is given in a round, and what it makes of it: arrays, samples and rows, and changes.

All tensors carry a leading dimension of users, as everywhere in training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Array, Arrays, ArraySpec
from bouquet.errors import WireError
from bouquet.packed import by_entry, surely_finite
from bouquet.ragged import Ragged, positions

if TYPE_CHECKING:
    from torch import Tensor

Tensors = Mapping[str, "Tensor"]
OwnArrays = dict[str, NDArray[np.float32]]
Pull = Callable[[dict[str, "Tensor"]], dict[str, "Tensor"]]

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
