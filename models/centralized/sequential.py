"""Next-item prediction on pooled data: the networks of the federated runs with one set of weights for everybody.

The loss is that of the federated runs: at every place of a history the next item against k negatives,

    mean of  softplus(-r̂_{t, s_{t+1}})  and  softplus(r̂_{t, j})

with honest negatives (see `negatives`), drawn anew in each epoch, and Adam.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor
from torch.nn.functional import softplus

from bouquet.arrays import initial_shared
from bouquet.config import ModelOptions
from bouquet.ragged import Ragged, positions
from bouquet.randomness import Purpose, generator
from models.centralized.base import LearnsOrder, Scores, ValidationScore, binary, fitted
from models.centralized.choosing import climb
from models.centralized.negatives import NegativeSampler
from models.gru4rec import GRU4Rec
from models.sasrec import SASRec
from models.sequence import SequenceBackbone, SequenceOptions, rows_of

# Histories of so many users are read at once.
_READ_USERS = 512


@dataclass(frozen=True)
class SequentialParameters:
    """Hyper-parameters of sequence models. The defaults were chosen on Video Games' validation part.

    Attributes:
        embedding_size: d.
        max_length: the newest items of a history that are read.
        dropout: share of values dropped in training.
        learning_rate: of Adam.
        negatives: k, negatives per positive and epoch.
        batch_users: histories per step.
        epochs: passes over all histories; the most there can be if a validation score is given.
        evaluate_every: epochs between two validation scores.
        patience: validation scores without a new best before training stops.
        init_scale: standard deviation of the initial embeddings.
        averaging: what is left of the averaged weights in a step of training, of which the rest is the trained ones;
            scores are the averaged weights'. 0: nothing is averaged. The first steps count as in a plain mean, nearly.
        dropouts: ascending, `dropout` among them; validation chooses one. Empty: nothing is chosen.
    """

    embedding_size: int = 50
    max_length: int = 50
    dropout: float = 0.3
    learning_rate: float = 0.003
    negatives: int = 4
    batch_users: int = 128
    epochs: int = 30
    evaluate_every: int = 3
    patience: int = 2
    init_scale: float = 0.1
    averaging: float = 0.0
    dropouts: tuple[float, ...] = ()


class SequentialModel(LearnsOrder):
    """A model that is fitted to histories in order, where others see a matrix of users by items."""

    backbone_class: ClassVar[type[SequenceBackbone]]
    name: ClassVar[str]

    def __init__(self, parameters: SequentialParameters | None = None) -> None:
        self.parameters = parameters or SequentialParameters()
        self.epochs_trained = 0
        """Epochs behind the current weights: the best epoch after early stopping."""
        self.chosen: dict[str, float] = {}
        """The epochs, and the dropout, where validation chose them."""
        self.best_score = -np.inf
        """What the validation score was then."""
        # What scores are read from, and what is trained: the same, where nothing is averaged.
        self._weights: dict[str, Tensor] | None = None
        self._trained: dict[str, Tensor] = {}

    def fit(
        self, train: Ragged, num_items: int, *, seed: int = 0, validation_score: ValidationScore | None = None
    ) -> Self:
        """Train in epochs.

        Args:
            train: rows of items, oldest first.
            num_items: m.
            seed: of all random draws.
            validation_score: asked every few epochs; training then stops early and the best epoch is kept.
        """
        chosen = self.parameters
        if validation_score is not None and chosen.dropouts:
            return self._choose_dropout(train, num_items, seed, validation_score)
        model = ModelOptions(embedding_size=chosen.embedding_size, init_scale=chosen.init_scale)
        own = SequenceOptions(max_length=chosen.max_length, dropout=chosen.dropout)
        self._backbone = self.backbone_class(num_items, model, own)
        ones = np.ones(len(train.values), dtype=np.float32)
        matrix = binary(sparse.csr_matrix((ones, train.values, train.indptr), (len(train), num_items)))
        sampler = NegativeSampler(matrix)
        start = initial_shared(self._backbone.shared, seed)
        self._trained = {name: torch.from_numpy(values).requires_grad_() for name, values in start.items()}
        self._weights = self._trained
        best, waited, kept = -np.inf, 0, self._copy()
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            optimizer = torch.optim.Adam(self._trained.values(), lr=chosen.learning_rate, fused=True)
            if chosen.averaging:
                self._weights = self._copy()
                optimizer.register_step_post_hook(self._average())
            for epoch in range(1, chosen.epochs + 1):
                self._epoch(train, sampler, seed, epoch, optimizer)
                self.epochs_trained = epoch
                if validation_score is None or (epoch % chosen.evaluate_every and epoch != chosen.epochs):
                    continue
                value, waited = validation_score(lambda users: self.scores_after(train.take(users))), waited + 1
                if value > best:
                    best, waited, kept, best_epoch = value, 0, self._copy(), epoch
                if waited >= chosen.patience:
                    break
        finally:
            torch.set_num_threads(threads)
        if validation_score is not None and np.isfinite(best):
            self._weights, self.epochs_trained = kept, best_epoch
            self.chosen, self.best_score = {"epochs": best_epoch}, best
        return self

    def _choose_dropout(self, train: Ragged, num_items: int, seed: int, validation_score: ValidationScore) -> Self:
        chosen, made = self.parameters, dict[float, Self]()

        def value(dropout: float) -> float:
            made[dropout] = type(self)(replace(chosen, dropout=dropout, dropouts=()))
            return made[dropout].fit(train, num_items, seed=seed, validation_score=validation_score).best_score

        best = made[climb(chosen.dropouts, chosen.dropouts.index(chosen.dropout), value)]
        self._backbone, self._weights, self.epochs_trained = best._backbone, best._weights, best.epochs_trained
        self.best_score, self.chosen = best.best_score, {**best.chosen, "dropout": best.parameters.dropout}
        return self

    def scores_after(self, histories: Ragged) -> Scores:
        """[b, m] scores of all items for users who did this, oldest first."""
        weights, parts = fitted(self._weights, self.name), []
        for start in range(0, len(histories), _READ_USERS):
            part = histories.between(slice(start, min(start + _READ_USERS, len(histories))))
            items, lengths = padded(part, self.parameters.max_length)
            with torch.inference_mode():
                embedded = rows_of(weights["item_embedding"], items)
                state = self._backbone.read(weights, embedded, lengths.clamp(min=1))
                parts.append(self._backbone.scores(state, weights).numpy())
        return np.concatenate(parts)

    def _epoch(
        self, train: Ragged, sampler: NegativeSampler, seed: int, epoch: int, optimizer: torch.optim.Optimizer
    ) -> None:
        chosen, weights = self.parameters, self._trained
        draws = generator(seed, epoch, Purpose.TRAIN_NEGATIVES, self.name)
        source = torch.Generator().manual_seed(int(draws.integers(2**31)))
        users = np.flatnonzero((train.lengths > 1) & (sampler.available > 0))
        order = generator(seed, epoch, Purpose.BATCH_ORDER, self.name).permutation(users)
        for start in range(0, len(order), chosen.batch_users):
            batch = train.take(order[start : start + chosen.batch_users])
            items, lengths = padded(batch, chosen.max_length + 1)
            owners = np.repeat(order[start : start + chosen.batch_users], items.shape[1] - 1)
            drawn = sampler.draw(owners, chosen.negatives, draws).reshape(len(batch), -1, chosen.negatives)
            candidates = torch.cat([items[:, 1:, None], torch.from_numpy(drawn.astype(np.int64))], dim=2)
            valid = torch.arange(items.shape[1] - 1) < (lengths - 1).unsqueeze(1)
            logits = self._backbone.next_logits(
                weights, items[:, :-1], candidates, lambda values, site: dropped(values, chosen.dropout, source)
            )
            losses = torch.cat([softplus(-logits[..., :1]), softplus(logits[..., 1:])], dim=2)
            optimizer.zero_grad()
            losses[valid].mean().backward()
            optimizer.step()

    def _average(self) -> Callable[..., None]:
        """What is to be done after each step: the averaged weights take their share of the trained ones."""
        most, averaged, trained = self.parameters.averaging, self._weights, self._trained
        steps = count(1)

        def after_step(*_: Any) -> None:
            step = next(steps)
            left = min(most, (1 + step) / (10 + step))
            for name, values in fitted(averaged, self.name).items():
                values.lerp_(trained[name].detach(), 1 - left)

        return after_step

    def _copy(self) -> dict[str, Tensor]:
        return {name: values.detach().clone() for name, values in fitted(self._weights, self.name).items()}


class CentralGRU4Rec(SequentialModel):
    """GRU4Rec with all data in one place."""

    name = "gru4rec"
    backbone_class = GRU4Rec


class CentralSASRec(SequentialModel):
    """SASRec with all data in one place."""

    name = "sasrec"
    backbone_class = SASRec


def padded(histories: Ragged, most: int) -> tuple[Tensor, Tensor]:
    """The newest items of each row, padded at the end: [k, L] and their numbers [k]."""
    lengths: NDArray[np.int64] = np.minimum(histories.lengths, most)
    items = np.zeros((len(histories), int(lengths.max(initial=1))), dtype=np.int64)
    owner, place = np.repeat(np.arange(len(histories)), lengths), positions(lengths)
    items[owner, place] = histories.values[np.repeat(histories.indptr[1:] - lengths, lengths) + place]
    return torch.from_numpy(items), torch.from_numpy(lengths)


def dropped(values: Tensor, share: float, source: torch.Generator) -> Tensor:
    """A share of the values at zero, the others larger by as much."""
    kept = torch.rand(values.shape, generator=source) >= share
    return values * kept / (1 - share)
