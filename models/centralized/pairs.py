"""Models of pooled data that learn from pairs of a user and an item: positives, each against drawn negatives.

Negatives are honest (see `negatives`) and drawn anew in each epoch; the optimiser is Adam. The loss of a batch is that
of the model plus weight_decay / 2 times the mean squared norm of the embeddings in it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from scipy import sparse
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from bouquet.errors import BouquetError
from bouquet.randomness import Purpose, generator
from models.centralized.base import Rows, Scores, ValidationScore, binary, fitted
from models.centralized.negatives import NegativeSampler


@dataclass(frozen=True)
class FactorizationParameters:
    """Hyper-parameters of models of pairs. The defaults of the models were chosen on ML-100K's validation part.

    Attributes:
        embedding_size: d.
        learning_rate: of Adam.
        weight_decay: L2 weight on the rows of a batch.
        negatives: k, negatives per positive and epoch.
        batch_size: positives per step.
        epochs: passes over all positives.
        most_epochs: the most there can be if a validation score is given; 0: as many as `epochs`.
        evaluate_every: epochs between two validation scores.
        patience: validation scores without a new best before training stops.
        init_scale: standard deviation of the initial embeddings.
    """

    embedding_size: int
    learning_rate: float
    weight_decay: float
    epochs: int
    negatives: int = 4
    batch_size: int = 4096
    evaluate_every: int = 2
    patience: int = 5
    init_scale: float = 0.1
    most_epochs: int = 0


class PairModel(ABC):
    """What is trained in this way; a model says what its weights are and how they score pairs."""

    name: ClassVar[str]
    parameters: FactorizationParameters

    def __init__(self) -> None:
        self.epochs_trained = 0
        """Epochs behind the current weights: the best epoch after early stopping."""
        self.chosen: dict[str, float] = {}
        self._weights: tuple[Tensor, ...] | None = None

    @staticmethod
    @abstractmethod
    def loss(positive: Tensor, negative: Tensor) -> Tensor:
        """Mean loss of scores [b, 1] of positives and [b, k] of their negatives."""

    @abstractmethod
    def _initial(self, matrix: sparse.csr_matrix, seed: int) -> tuple[Tensor, ...]:
        """The weights before training, for the training positives [n, m]."""

    @abstractmethod
    def _logits(self, users: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        """Scores [b, 1 + k] of items [b, 1 + k] for users [b], and the mean squared norm of their embeddings."""

    @abstractmethod
    def scores(self, users: Rows) -> Scores:
        """[b, m] (see `CentralizedModel.scores`)."""

    def fit(self, train: sparse.csr_matrix, *, seed: int = 0, validation_score: ValidationScore | None = None) -> Self:
        """Train in epochs (see `CentralizedModel.fit`).

        The same seed gives the same weights whatever number of threads torch is set to.

        Raises:
            BouquetError: nothing can be learned: no positives, or every user has every item.
        """
        matrix = binary(train)
        self._weights = self._initial(matrix, seed)
        with _one_thread():
            stops_early, chosen = validation_score is not None, self.parameters
            most = chosen.most_epochs if stops_early and chosen.most_epochs else chosen.epochs
            trained = self._epochs(matrix, seed, most)
            if validation_score is None:
                for epoch in trained:
                    self.epochs_trained = epoch
            else:
                self._train_until_no_better(trained, most, validation_score)
        return self

    def _epochs(self, matrix: sparse.csr_matrix, seed: int, most: int) -> Iterator[int]:
        """Train epoch after epoch; yields the number of epochs done."""
        weights, chosen = fitted(self._weights, self.name), self.parameters
        sampler = NegativeSampler(matrix)
        users = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
        items = matrix.indices.astype(np.int64)
        contrasted = sampler.available[users] > 0
        users, items = users[contrasted], items[contrasted]
        if not len(users):
            raise BouquetError(f"{self.name} needs negatives, and every user has every item.")
        optimizer = torch.optim.Adam(weights, lr=chosen.learning_rate)
        for epoch in range(1, most + 1):
            order = generator(seed, epoch, Purpose.BATCH_ORDER, self.name).permutation(len(users))
            draws = generator(seed, epoch, Purpose.TRAIN_NEGATIVES, self.name)
            negatives = sampler.draw(users[order], chosen.negatives, draws)
            all_users = torch.from_numpy(users[order])
            all_items = torch.from_numpy(np.concatenate([items[order, None], negatives], axis=1))
            for start in range(0, len(users), chosen.batch_size):
                batch = slice(start, start + chosen.batch_size)
                logits, norm = self._logits(all_users[batch], all_items[batch])
                loss = self.loss(logits[:, :1], logits[:, 1:])
                optimizer.zero_grad()
                (loss + 0.5 * chosen.weight_decay * norm).backward()
                optimizer.step()
            yield epoch

    def _train_until_no_better(self, trained: Iterator[int], most: int, validation_score: ValidationScore) -> None:
        chosen = self.parameters
        weights = fitted(self._weights, self.name)
        best, best_epoch, best_weights, waited = -np.inf, 0, [w.detach().clone() for w in weights], 0
        for epoch in trained:
            if epoch % chosen.evaluate_every and epoch != most:
                continue
            value = validation_score(self.scores)
            if np.isnan(value):
                raise BouquetError(f"{self.name} cannot stop early: its validation score is not a number.")
            waited += 1
            if value > best:
                best, best_epoch, waited = value, epoch, 0
                best_weights = [w.detach().clone() for w in weights]
            if waited >= chosen.patience:
                break
        self.epochs_trained = best_epoch
        self.chosen = {"epochs": best_epoch}
        with torch.no_grad():
            for weight, kept in zip(weights, best_weights, strict=True):
                weight.copy_(kept)


def cross_entropy(positive: Tensor, negative: Tensor) -> Tensor:
    """Numerically stable BCE on logits, averaged over positives and negatives alike."""
    total = softplus(-positive).sum() + softplus(negative).sum()
    return total / (positive.numel() + negative.numel())


def pairwise_ranking(positive: Tensor, negative: Tensor) -> Tensor:
    """BPR-Opt (Rendle et al., UAI 2009), averaged over all pairs of a positive and one of its negatives."""
    return -logsigmoid(positive - negative).mean()


def drawn(seed: int, name: str, shapes: list[tuple[tuple[int, ...], float]]) -> tuple[Tensor, ...]:
    """Weights to train: for each shape and standard deviation a normal draw, zeros where the deviation is 0."""
    draws = generator(seed, 0, Purpose.SHARED_INIT, name)
    tables = [scale * draws.standard_normal(shape) if scale else np.zeros(shape) for shape, scale in shapes]
    return tuple(torch.tensor(table, dtype=torch.float32, requires_grad=True) for table in tables)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums of gradients come in one order, and small steps are not spread over cores that cost more than they give."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
