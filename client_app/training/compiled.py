"""The numba backend: matrix factorisation with compiled loops over users, on as many threads as the process may use.

What the kernels do not compute (Adam with weight decay, another model, most personalizations), and everything where
numba is not installed, is left to numpy, and what that does not compute either to torch. Weight decay moves rows that
a user never touched too, but by the same factor all of them: these are not trained, only multiplied. A term that
draws the table to another one moves each of them by a step of its own, so that all are trained; only where it draws
back to where training starts (FedProx) they stay, and what a fixed correction makes of them (Scaffold) is left to the
method.

Where the model sees only the sum S = C + D of the common table and the user's own, both have the gradient of S, and
C ← C - a g with D ← D - b g is S ← S - (a + b) g: one table is trained, and its change is divided as a to b.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from bouquet.extras import missing
from bouquet.ragged import Ragged
from bouquet.randomness import Purpose
from client_app.personalization.linear import Linear
from client_app.personalization.proximal import Proximal
from client_app.personalization.round import PERSONAL, Changes
from client_app.training.blocks import Block, blocks
from client_app.training.compiler import gru_kernels, kernels, ncf_kernels, row_kernels
from client_app.training.plain import train_plain
from client_app.training.task import LocalTask
from client_app.training.threads import run_kernel

# Tables of the users of one block, in bytes: small enough to stay in the last-level cache of small machines.
BLOCK_BYTES = 16 * 2**20


def fits(task: LocalTask) -> bool:
    """Whether the kernels compute this task: matrix factorisation of one table, and no weight decay under Adam."""
    if task.backbone.kernel != "mf":
        return False
    if task.personalizations:
        return is_sum(task) or term_of(task) is not None
    return task.options.weight_decay == 0 or task.options.optimizer == "sgd"


def term_of(task: LocalTask) -> Proximal | Linear | None:
    """What else is in the loss of the one item table, without decay: it is drawn to another one or, with SGD, along."""
    if len(task.personalizations) != 1 or task.options.weight_decay > 0:
        return None
    term = task.personalizations[0].term
    if term is None or [*term.near] != ["item_embedding"]:
        return None
    return term if isinstance(term, Proximal) or task.options.optimizer == "sgd" else None


def is_sum(task: LocalTask) -> bool:
    """Whether a common table and the users' own are trained as their sum: FedRAP's, without its two terms."""
    if len(task.personalizations) != 1 or not task.personalizations[0].only_sum:
        return False
    plain = task.options.optimizer == "sgd" and task.options.weight_decay == 0
    return plain and "item_embedding" in task.shared


def train_compiled(task: LocalTask) -> Iterator[Changes]:
    """Train blocks of users; what the kernels do not compute, numpy or torch does."""
    if task.personalizations and (own := task.personalizations[0].compiled(task)) is not None:
        yield from own
        return
    code, row_code = kernels(), row_kernels()
    if task.backbone.kernel == "ncf" and not task.personalizations and (code_ncf := ncf_kernels()) is not None:
        from client_app.training.compiled_ncf import fits_ncf, train_ncf

        if fits_ncf(task):
            yield from train_ncf(task, code_ncf)
            return
    if task.backbone.kernel == "gru4rec" and (code_gru := gru_kernels()) is not None:
        from client_app.training.compiled_gru import fits_gru, train_gru

        if fits_gru(task):
            yield from train_gru(task, code_gru)
            return
    if code is None and len(task.users) > 1:  # one person's device does without, as it should
        _say_once()
    if code is None or row_code is None or not fits(task):
        yield from train_plain(task)
        return
    row_bytes = 4 * task.backbone.private["user_embedding"].size
    at_most = task.positives.lengths + task.negatives.lengths
    if task.whole_table:
        at_most = np.full_like(at_most, task.num_items)
    for users in blocks(task, at_most * row_bytes, BLOCK_BYTES):
        yield _Block(task, users, row_code).train(code)


class _Block(Block):
    """Users whose tables are trained."""

    def __init__(self, task: LocalTask, users: NDArray[np.int64], code: ModuleType) -> None:
        super().__init__(task, users, code)
        self.held = self.pull = 0.0
        self.near = np.empty((0, task.backbone.private["user_embedding"].size), task.dtype)
        term = term_of(task)
        if term is None:
            return
        if task.whole_table:  # the term moves rows without samples, too
            samples = np.repeat(self.touched.indptr[:-1], np.diff(self.sample_indptr))
            self.place = self.touched.values[samples + self.place]
            every = np.tile(np.arange(task.num_items, dtype=np.int32), len(users))
            self.touched = Ragged.from_lengths(np.full(len(users), task.num_items), every)
        self.pull = -1.0
        if isinstance(term, Proximal):
            self.held = self.pull = 2 * term.weight
        self.near = task.of_users(term.near["item_embedding"], users, self.touched)

    def train(self, code: ModuleType) -> Changes:
        task, users, touched = self.task, self.users, self.touched
        summed = is_sum(task)
        own_rate = task.rate(PERSONAL) if summed else 0.0
        rate = task.rate("item_embedding") + own_rate
        if summed:
            origin = self.own_rows(task.private[PERSONAL])
            self.code.rows_after(task.shared["item_embedding"], touched.values, origin, origin)
            start = np.arange(len(origin), dtype=np.int32)
        elif "item_embedding" in task.shared:
            origin, start = task.shared["item_embedding"].astype(task.dtype, copy=False), touched.values
        else:
            origin = self.own_rows(task.private["item_embedding"])
            start = np.arange(len(origin), dtype=np.int32)
        trained = np.empty((len(touched.values), origin.shape[1]), task.dtype)
        vectors = task.private["user_embedding"][users].astype(task.dtype)
        losses, steps = np.empty(len(users)), np.empty(len(users), np.int64)
        decayed = task.options.weight_decay > 0
        as_change = "item_embedding" in task.shared and not decayed
        arguments = (
            touched.indptr,
            start,
            origin,
            as_change,
            trained,
            self.sample_indptr,
            self.positives.lengths,
            self.place,
            vectors,
            task.draws.seeds(task.users[users], task.round, Purpose.BATCH_ORDER),
            task.options.local_epochs,
            task.options.batch_size,
            task.options.optimizer == "adam",
            task.dtype(rate),
            task.dtype(task.rate("user_embedding")),
            task.dtype(task.decay("item_embedding")),
            task.dtype(task.decay("user_embedding")),
            self.near,
            task.dtype(self.held),
            task.dtype(self.pull),
            task.options.early_stop_tolerance,
            losses,
            steps,
        )

        run_kernel(code.train_users, arguments, touched.indptr)
        task.private["user_embedding"][users] = vectors
        if decayed:
            return self._with_untouched(trained, steps, losses)
        changes = Changes(users=users, rows=touched, loss=losses, steps=steps)
        if summed:
            share = task.dtype(own_rate / rate)
            self.code.add_own(task.private[PERSONAL], users, touched.indptr, touched.values, trained, share)
            trained *= task.dtype(1 - own_rate / rate)
        if as_change:
            changes.by_item["item_embedding"] = trained
        else:
            self.keep(task.private["item_embedding"], trained)
            if "item_embedding" in task.reported:
                changes.by_item["item_embedding"] = trained - origin
        return changes

    def _with_untouched(
        self, trained: NDArray[np.floating], steps: NDArray[np.int64], losses: NDArray[np.floating]
    ) -> Changes:
        """Weight decay in closed form: every step multiplies a row without samples by 1 - rate · decay.

        Args:
            trained: [nnz, d] the touched rows after training.
            steps: [c] taken by each user.
        """
        task, users, touched = self.task, self.users, self.touched
        name, c, m = "item_embedding", len(users), task.num_items
        shared = name in task.shared
        before = task.shared[name][None] if shared else task.private[name][users]
        factor = (1 - task.rate(name) * task.decay(name)) ** steps
        after = (before * factor[:, None, None]).astype(task.dtype)
        after[touched.row_of_value, touched.values] = trained
        changes = Changes(
            users=users,
            rows=Ragged.from_lengths(np.full(c, m), np.tile(np.arange(m, dtype=np.int32), c)),
            loss=losses,
            steps=steps,
        )
        if shared or name in task.reported:
            changes.by_item[name] = (after - before).astype(task.dtype).reshape(c * m, -1)
        if not shared:
            task.private[name][users] = after
        return changes


@cache
def _say_once() -> None:
    print(f"{missing('numba')} Without it nodes of many users train about ten times slower.", file=sys.stderr)
