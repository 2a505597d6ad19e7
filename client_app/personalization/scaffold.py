"""The device side of Scaffold (Karimireddy et al., ICML 2020, algorithm 1).

Of every shared array w the server keeps a control variate c, and a device one of its own, c_u:

    step        w ← w - η (g_u(w) - c_u + c)                 K of them, from what the server sent, w^t
    option I    c_u⁺ = g_u(w^t)                              the gradient of all samples, before training
    option II   c_u⁺ = c_u - c + (w^t - w) / (K η)           the mean gradient of the K steps
    sent        w - w^t and c_u⁺ - c_u                       and c_u ← c_u⁺ stays

The correction c - c_u is there for every row, whoever has its item, so every row moves and travels. Rows without
samples have no gradient of their own: K steps move them by -K η (c - c_u), which is computed at once and not step by
step. A user without samples takes no step, and its c_u stays as it is.

The user embedding is no shared array: nothing corrects it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import EllipsisType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import exchanged
from bouquet.config import Options, RunConfig
from bouquet.methods import only_embeddings
from bouquet.methods.scaffold import ScaffoldOptions
from bouquet.ragged import Ragged
from client_app.personalization.base import Personalization
from client_app.personalization.linear import Linear
from client_app.personalization.round import Batch, Changes, Pull, Tensors, Working
from client_app.training.task import LocalTask
from models import Backbone

if TYPE_CHECKING:
    from torch import Tensor

Floats = NDArray[np.floating]


class ControlVariates(Personalization):
    """Every local step is corrected by what sets the user's gradients apart from the mean of all users'."""

    options: ScaffoldOptions
    term: Linear

    def __init__(self, backbone: Backbone, config: RunConfig, options: Options) -> None:
        super().__init__(backbone, config, options)
        self.corrected = exchanged(backbone.shared, only_embeddings(config))
        zeros = {name: replace(spec, init="zeros") for name, spec in self.corrected.items()}
        self.shared = {common(name): spec for name, spec in zeros.items()}
        self.private = {own(name): spec for name, spec in zeros.items()}
        self.fixed = {correction(name): spec for name, spec in zeros.items()}
        self.term = Linear({name: correction(name) for name in self.corrected})

    def train(  # type: ignore[override]
        self, backend: Callable[[LocalTask], Iterator[Changes]], task: LocalTask
    ) -> Iterator[Changes]:
        """Train with the correction c - c_u in every step, and say how c_u changed beside what training did."""
        variates = {common(name) for name in self.corrected} | {own(name) for name in self.corrected}
        apart = {name: task.shared[common(name)] - task.private[own(name)] for name in self.corrected}
        corrected = replace(
            task,
            shared={name: values for name, values in task.shared.items() if name not in variates},
            private={name: values for name, values in task.private.items() if name not in variates},
            anchors={**task.anchors, **{correction(name): values for name, values in apart.items()}},
        )
        gradients = self._gradients(backend, corrected) if self.options.scaffold_option == "I" else {}
        for changes in backend(corrected):
            yield self._with_variates(changes, task, apart, gradients)

    def penalty(self, arrays: Tensors, seen: Tensors, batch: Batch, working: Working) -> Tensor:
        """⟨c - c_u, w⟩, whose gradient is the correction."""
        return self.term.penalty(arrays)

    def forward(self, arrays: Tensors, batch: Batch, working: Working) -> tuple[Tensors, Pull]:
        return self.term.forward(arrays)

    def _gradients(self, backend: Callable[[LocalTask], Iterator[Changes]], task: LocalTask) -> dict[str, Floats]:
        """[k, …] g_u(w^t) of every array: one step over all samples at rate 1, from where training will start."""
        options = task.options.model_copy(
            update={"local_epochs": 1, "batch_size": 2**62, "learning_rate": 1.0, "early_stop_tolerance": 0.0}
        )
        copies = {name: values.copy() for name, values in task.private.items()}
        alone = replace(task, options=options, private=copies, anchors={}, personalizations=())
        found = {n: np.zeros((len(task.users), *spec.shape), task.dtype) for n, spec in self.corrected.items()}
        for changes in backend(alone):
            for name, values in found.items():
                put(values, changes, name, -1 / alone.rate(name))
        return found

    def _with_variates(
        self, changes: Changes, task: LocalTask, apart: dict[str, Floats], gradients: dict[str, Floats]
    ) -> Changes:
        """The changes of some users, of all rows and of their control variates too, which are renewed in place."""
        users, count, m = changes.users, len(changes.users), task.num_items
        steps = changes.steps.astype(np.float64)
        owners, at = changes.rows.row_of_value, changes.rows.values
        by_item, dense = {}, {}
        for name, spec in self.corrected.items():
            each = (slice(None), *[None] * len(spec.shape))
            mine, pace = task.private[own(name)], (task.rate(name) * steps).astype(task.dtype)
            if not spec.by_item:
                dense[name] = changes.dense[name]
                dense[common(name)] = self._renewed(name, task, gradients, dense[name], pace, users)
                mine[users] += dense[common(name)]
                continue
            worked = changes.by_item[name]
            found = self._renewed(name, task, gradients, worked, pace[owners], users[owners], at)
            # Rows without samples have no gradient but the correction, so what is renewed there is 0. In place: these
            # are tables of all rows of all users.
            moved, renewed, kept = apart[name][users], mine[users], mine[users[owners], at] + found
            moved *= -pace[each]
            np.negative(renewed, out=renewed)
            renewed[pace == 0] = 0
            mine[users[pace > 0]] = 0
            mine[users[owners], at] = kept
            moved[owners, at], renewed[owners, at] = worked, found
            by_item[name] = moved.reshape(count * m, *spec.shape[1:])
            by_item[common(name)] = renewed.reshape(count * m, *spec.shape[1:])
        rows = Ragged.from_lengths(np.full(count, m), np.tile(np.arange(m, dtype=np.int32), count))
        return replace(changes, rows=rows, by_item=by_item, dense=dense)

    def _renewed(
        self, name: str, task: LocalTask, gradients: dict[str, Floats], moved: Floats, pace: Floats,
        users: NDArray[np.int64], rows: NDArray[np.int32] | EllipsisType = ...,
    ) -> Floats:  # fmt: skip
        """c_u⁺ - c_u where training moved values: [nnz, …] rows of an array by item, or [c, …] of another one.

        Args:
            moved: by how much.
            pace: [nnz] or [c] K η of whose they are; 0: nothing was trained, and nothing is renewed.
            users: [nnz] or [c] whose they are; rows: [nnz] of which items.
        """
        each = (slice(None), *[None] * (moved.ndim - 1))
        mine = task.private[own(name)]
        if self.options.scaffold_option == "I":
            found = gradients[name][users, rows] - mine[users, rows]
        else:
            found = -moved / np.where(pace > 0, pace, 1)[each] - task.shared[common(name)][rows]
        return np.where((pace > 0)[each], found, 0).astype(task.dtype)


def put(target: Floats, changes: Changes, name: str, factor: float) -> None:
    """target[user] = factor · what changed of an array, [k, …]; rows that did not change stay."""
    if name in changes.by_item:
        owners = changes.users[changes.rows.row_of_value]
        target[owners, changes.rows.values] = factor * changes.by_item[name]
    else:
        target[changes.users] = factor * changes.dense[name]


def common(name: str) -> str:
    """The name of c beside the shared array."""
    return f"variate_{name}"


def own(name: str) -> str:
    """The name of c_u beside the shared array."""
    return f"own_variate_{name}"


def correction(name: str) -> str:
    """The name of c - c_u beside the shared array."""
    return f"correction_{name}"
