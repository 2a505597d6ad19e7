"""Sequences of users as batches: at every place of a history the next item is to be told from negatives.

Of a history s_1, …, s_n the newest L + 1 items are used. Item s_t is an input, s_{t+1} the positive at its place, and
the P negatives that were drawn for s_{t+1} the negatives there, so a user has (n - 1)(1 + P) samples:

    L_u = (1/N) Σ_t [ softplus(-r̂_{t, s_{t+1}}) + Σ_j softplus(r̂_{t, j}) ],      r̂_t from s_1, …, s_t

A sequence is one step: it is not cut into batches. Dropout is keyed by seed, user, round and epoch, and by the place in
the sequence, so neither the company nor the padding that a user is trained in changes what it drops.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bouquet.ragged import Ragged, positions
from bouquet.randomness import Purpose, Streams, draw, uniforms
from client_app.personalization.round import Batch, Tensors
from client_app.training.task import LocalTask
from client_app.training.torch_draws import uniforms_there
from models import SequenceBackbone, is_sequential


@dataclass(frozen=True, kw_only=True)
class SequenceBatch(Batch):
    """One step over whole sequences. Entries are the items of each place, the positive first: b = L (1 + P).

    Attributes:
        inputs: [k, L] the row of each input; padded at the end.
        dropout: what is dropped in this step.
    """

    inputs: Tensor
    dropout: Dropout

    def logits(self, backbone: SequenceBackbone, shared: Tensors) -> Tensor:
        """[k, b] logits of the entries, from `item_embedding` [k, R, d] and the network's arrays [k, …]."""
        assert self.rows is not None
        candidates = self.rows.view(*self.inputs.shape, -1)
        return backbone.next_logits(shared, self.inputs, candidates, self.dropout).flatten(1)


@dataclass(frozen=True)
class Dropout:
    """Which values are dropped: called as `models.sequence.Drop`.

    Attributes:
        share: p of the values are dropped, the others divided by 1 - p.
        streams: [k] one stream per user and round.
        counter: where the step's numbers start; sites and places count on from there.
    """

    share: float
    streams: Streams
    counter: int

    def __call__(self, values: Tensor, site: int) -> Tensor:
        if self.share == 0:
            return values
        _, length, width = values.shape
        # A place has the same numbers however long the padded sequence is.
        first, count = (self.counter + site) << 32, length * width
        if values.device.type == "cpu" or not isinstance(self.streams, np.ndarray):
            counter = first + np.arange(count)
            drawn = torch.from_numpy(uniforms(draw(self.streams[:, None], counter[None]))).to(values.device)
        else:
            drawn = uniforms_there(self.streams, first, count, values.device)
        return values * (drawn >= self.share).view(values.shape) / (1 - self.share)


def newest(task: LocalTask) -> LocalTask:
    """The task with what its sequences are made of: the newest L + 1 items and the negatives of all but the first.

    Negatives are drawn for one positive after another, so those of the newest are the last ones. A user with a single
    item has nothing to predict and gets nothing. What methods read of all that a user likes stays whole.
    """
    assert is_sequential(task.backbone)
    lengths = task.positives.lengths
    used = np.minimum(lengths, task.backbone.settings.max_length + 1)
    used[used < 2] = 0
    per_positive = task.negatives.lengths // np.maximum(lengths, 1)
    negatives = per_positive * np.maximum(used - 1, 0)
    return replace(
        task,
        positives=last(task.positives, used),
        negatives=last(task.negatives, negatives),
        liked=last(task.positives, np.where(used > 0, lengths, 0)),
    )


def last(rows: Ragged, counts: NDArray[np.int64]) -> Ragged:
    """The last `counts` [k] values of each row."""
    at = np.repeat(rows.indptr[1:] - counts, counts) + positions(counts)
    return Ragged.from_lengths(counts, rows.values[at])


def samples_of(task: LocalTask) -> NDArray[np.int64]:
    """[k] number of samples of each user, for a task that `newest` made."""
    return np.maximum(task.positives.lengths - 1, 0) + task.negatives.lengths


def sequence_batch(
    task: LocalTask, users: NDArray[np.int64], rows: Ragged, epoch: int, device: torch.device
) -> SequenceBatch:
    """The step of some users in one epoch.

    Args:
        task: as `newest` made it.
        users: [c] positions in the task.
        rows: [c] the items whose rows they work on, ascending.
    """
    backbone = task.backbone
    assert is_sequential(backbone)
    positives, negatives = task.positives.take(users), task.negatives.take(users)
    inputs = np.maximum(positives.lengths - 1, 0)
    length = int(inputs.max(initial=0))
    share = negatives.lengths // np.maximum(inputs, 1)
    per_place = int(share.max(initial=0))
    row_of = np.zeros((len(users), task.num_items), dtype=np.int64)
    row_of[rows.row_of_value, rows.values] = positions(rows.lengths)

    owner, place = positives.row_of_value, positions(positives.lengths)
    row = row_of[owner, positives.values]
    read, told = place < inputs[owner], place > 0
    input_rows = np.zeros((len(users), length), dtype=np.int64)
    input_rows[owner[read], place[read]] = row[read]
    entries = np.zeros((len(users), length, 1 + per_place), dtype=np.int64)
    positive, negative = (np.zeros(entries.shape, dtype=task.dtype) for _ in range(2))
    at = (owner[told], place[told] - 1, 0)
    entries[at], positive[at] = row[told], 1
    owner, number = negatives.row_of_value, positions(negatives.lengths)
    each = np.maximum(share[owner], 1)
    of_negative = (owner, number // each, 1 + number % each)
    entries[of_negative], negative[of_negative] = row_of[owner, negatives.values], 1

    def tensor(values: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(values).to(device)

    stream = task.draws.streams(task.users[users], task.round, Purpose.DROPOUT)
    return SequenceBatch(
        positive=tensor(positive.reshape(len(users), -1)),
        negative=tensor(negative.reshape(len(users), -1)),
        size=tensor((inputs + negatives.lengths).astype(task.dtype)),
        rows=tensor(entries.reshape(len(users), -1)),
        inputs=tensor(input_rows),
        dropout=Dropout(backbone.settings.dropout, stream, epoch * backbone.sites),
    )
