"""Sequence models at full strength: every event of every history is learned, against the whole catalogue.

The loss at place t of a history is the cross-entropy of the item that came next, over all m items,

    -log softmax(h_t Qᵀ)_{s_{t+1}}

where the networks of `sequential` learn from the newest events of a user, and against a few drawn negatives. A long
history is cut into windows, anew in each epoch, so that each item but the first is a target once in an epoch. Dropout
decides most about these networks on sets of this size, so validation chooses it beside the epochs.

`Averaged…` score with an average of the weights over the last thousand steps. Where there are events for it they are
larger, too: 200 items are read in place of 50, embeddings are twice as large, and steps half as long.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray

from bouquet.ragged import Ragged
from bouquet.randomness import Purpose, generator
from models.centralized.base import ValidationScore
from models.centralized.negatives import NegativeSampler
from models.centralized.sequential import SequentialModel, SequentialParameters, dropped, padded
from models.centralized.softmax_loss import over_all_items
from models.gru4rec import GRU4Rec
from models.sasrec import SASRec
from models.sequence import rows_of

# Chosen on MovieLens-100K's validation part.
_SMALL = SequentialParameters(
    embedding_size=64,
    learning_rate=0.002,
    batch_users=16,
    dropout=0.5,
    dropouts=(0.3, 0.5, 0.7),
    epochs=40,
    evaluate_every=2,
    patience=3,
)

# An average rises for longer and shakes less.
_AVERAGED = replace(_SMALL, averaging=0.999, epochs=100)

# Chosen on MovieLens-1M's, by a few trials: more of them take days on one core. On MovieLens-100K it is worse.
_LARGE = replace(_AVERAGED, embedding_size=128, max_length=200, learning_rate=0.001, dropouts=(), epochs=60, patience=5)
_MANY_EVENTS = 300_000


class SoftmaxSequential(SequentialModel):
    """A sequence model whose loss sees all items."""

    def __init__(self, parameters: SequentialParameters | None = None) -> None:
        super().__init__(parameters or _SMALL)

    def _epoch(
        self, train: Ragged, sampler: NegativeSampler, seed: int, epoch: int, optimizer: torch.optim.Optimizer
    ) -> None:
        chosen, weights = self.parameters, self._trained
        draws = generator(seed, epoch, Purpose.BATCH_ORDER, self.name)
        source = torch.Generator().manual_seed(int(draws.integers(2**31)))
        windows = cut(train, chosen.max_length, draws)
        # Windows of one length stand together, so that next to nothing is read that is only there to fill up.
        order = np.lexsort((draws.random(len(windows)), windows.lengths))
        batches = [order[start : start + chosen.batch_users] for start in range(0, len(order), chosen.batch_users)]
        for place in draws.permutation(len(batches)):
            items, lengths = padded(windows.take(batches[place]), chosen.max_length + 1)
            valid = torch.arange(items.shape[1] - 1) < (lengths - 1).unsqueeze(1)
            states = self._backbone.states(
                weights,
                rows_of(weights["item_embedding"], items[:, :-1]),
                lambda values, site: dropped(values, chosen.dropout, source),
            )
            loss = over_all_items(states[valid], weights["item_embedding"], items[:, 1:][valid])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def cut(histories: Ragged, length: int, draws: np.random.Generator) -> Ragged:
    """Windows of at most length + 1 items; each item but a history's first is behind another one in one of them.

    Args:
        histories: oldest first; of those with a single item there is no window.
        length: inputs of a window.
        draws: where the first window of each history ends.
    """
    first = draws.integers(1, length + 1, len(histories))
    pieces: list[NDArray[np.int32]] = []
    for row, end in enumerate(first.tolist()):
        items, start = histories.row(row), 0
        while start + 1 < len(items):
            pieces.append(items[start : end + 1])
            start, end = end, end + length
    return Ragged.from_lengths([len(piece) for piece in pieces], np.concatenate(pieces) if pieces else [])


class SoftmaxGRU4Rec(SoftmaxSequential):
    """GRU4Rec with all data in one place, against all items."""

    name = "gru4rec-softmax"
    backbone_class = GRU4Rec


class SoftmaxSASRec(SoftmaxSequential):
    """SASRec with all data in one place, against all items."""

    name = "sasrec-softmax"
    backbone_class = SASRec


class AveragedSequential(SoftmaxSequential):
    """A sequence model against all items, scored with averaged weights, as large as its data allow.

    Attributes:
        large_dropout: where there are events for the larger size, in which no other dropout is tried.
    """

    large_dropout: ClassVar[float]

    def __init__(self, parameters: SequentialParameters | None = None) -> None:
        super().__init__(parameters or _AVERAGED)
        self._given = parameters is not None

    @classmethod
    def usual(cls, events: int) -> SequentialParameters:
        """Parameters for so many training interactions."""
        return replace(_LARGE, dropout=cls.large_dropout) if events >= _MANY_EVENTS else _AVERAGED

    def fit(
        self, train: Ragged, num_items: int, *, seed: int = 0, validation_score: ValidationScore | None = None
    ) -> Self:
        """Train in epochs, as `SequentialModel.fit`; without given parameters, with the usual ones for its data."""
        if not self._given:
            self.parameters = self.usual(len(train.values))
        return super().fit(train, num_items, seed=seed, validation_score=validation_score)


class AveragedGRU4Rec(AveragedSequential):
    """GRU4Rec with all data in one place, against all items, with averaged weights."""

    name = "gru4rec-averaged"
    backbone_class = GRU4Rec
    large_dropout = 0.3


class AveragedSASRec(AveragedSequential):
    """SASRec with all data in one place, against all items, with averaged weights."""

    name = "sasrec-averaged"
    backbone_class = SASRec
    large_dropout = 0.2
