"""Membership of one interaction, from the published model alone.

Who attacks knows a part of somebody's history, from elsewhere, and the model that everybody gets. It asks of an item
whether it is in the rest of that history: whether the model was trained on this interaction. Yuan et al. (WWW 2023) ask
the same of what single users send; here nothing but the model is read.

    1. take the known half of the user's training items as its history, and score all items with the model
    2. take off an item's mean score over all users' halves, so that popularity says nothing
    3. compare the other half, members, with what is held out of the same user, which it liked and nobody trained on

The share of pairs in which the member scores higher is .5 where the model tells nothing of membership. It is above
that, too, where held-out items are of another time than the others: hold them out at random (`hold-out = "random"`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bouquet.config import Settings
from bouquet.errors import ConfigError
from bouquet.experiments.ground import Ground
from bouquet.methods import METHODS
from bouquet.methods.manifest import class_at
from bouquet.published import PublishedModel
from bouquet.ragged import Ragged
from bouquet.randomness import Purpose, generator

TABLE = "item_embedding"
# Of the logistic regression that finds a user's vector; its loss is convex, and this is enough for its order of items.
_STEPS, _RATE, _DECAY = 200, 1.0, 1e-3
# Scores of so many items are held at once.
_BLOCK = 2**24

Scores = Callable[[Ragged], NDArray[np.floating]]


@dataclass(frozen=True)
class Membership:
    """Attributes:
    auc: mean over users of the share of pairs in which a member scores above what is held out.
    error: its standard error over users.
    users: who has both.
    """

    auc: float
    error: float
    users: int


def membership(model: PublishedModel, ground: Ground, seed: int = 0) -> Membership:
    """How well membership is told from a model.

    Raises:
        ConfigError: the model is no matrix that scores a history, and no item table.
    """
    train = ground.histories.train
    draws = generator(seed, 0, Purpose.USERS, "membership").random(len(train.values))
    half = np.zeros(len(draws), dtype=bool)
    order = np.lexsort((draws, train.row_of_value))
    place = np.arange(len(order)) - train.indptr[train.row_of_value]
    half[order[place < (train.lengths // 2)[train.row_of_value]]] = True
    known, hidden = _part(train, half), _part(train, ~half)
    scores = _scores(scorer_of(model, ground), known, ground.histories.num_items)
    scores -= scores.mean(axis=0)
    shares = []
    for row in range(len(train)):
        out = np.concatenate([ground.histories.validation.row(row), ground.histories.test.row(row)]).astype(np.int64)
        members = scores[row, hidden.row(row).astype(np.int64)]
        if len(out) and len(members):
            others = scores[row, out][:, None]
            shares.append(float(((members > others) + 0.5 * (members == others)).mean()))
    error = float(np.std(shares, ddof=1) / np.sqrt(len(shares))) if len(shares) > 1 else float("nan")
    return Membership(float(np.mean(shares)) if shares else float("nan"), error, len(shares))


def scorer_of(model: PublishedModel, ground: Ground) -> Scores:
    """What makes scores [k, m] of histories, with nothing but the model.

    Raises:
        ConfigError: as `membership`.
    """
    method = METHODS[model.strategy]
    if method.kind == "sums":
        settings = Settings(dict(model.settings) | {"strategy": model.strategy})
        device = class_at(str(method.device))(ground.histories.num_items, settings.of(method.options))
        return lambda histories: device.scores(model.arrays, histories)
    if TABLE not in model.arrays:
        raise ConfigError(f"{model.strategy} publishes no item table, so there is nothing to read membership from.")
    table = np.asarray(model.arrays[TABLE], np.float64)
    return lambda histories: fitted(table, histories) @ table.T


def fitted(table: NDArray[np.float64], histories: Ragged) -> NDArray[np.float64]:
    """[k, d] the vectors of users with these histories, by logistic regression against all items, which stay.

    A user's items weigh together as much as all others do.
    """
    k, m = len(histories), len(table)
    scaled = table / max(float(np.linalg.norm(table, axis=1).max()), 1e-30)
    wanted = np.zeros((k, m))
    wanted[histories.row_of_value, histories.values] = 1.0
    count = np.maximum(histories.lengths, 1)[:, None]
    weight = np.where(wanted > 0, 0.5 / count, 0.5 / np.maximum(m - count, 1))
    vectors = np.zeros((k, table.shape[1]))
    for _ in range(_STEPS):
        error = weight * (wanted - 1 / (1 + np.exp(-np.clip(vectors @ scaled.T, -30, 30))))
        vectors += 4 * _RATE * (error @ scaled - _DECAY * vectors)
    return vectors


def _scores(scores: Scores, histories: Ragged, num_items: int) -> NDArray[np.float64]:
    step = max(1, _BLOCK // max(num_items, 1))
    parts = [np.arange(start, min(start + step, len(histories))) for start in range(0, len(histories), step)]
    return np.concatenate([np.asarray(scores(histories.take(rows)), np.float64) for rows in parts])


def _part(rows: Ragged, kept: NDArray[np.bool_]) -> Ragged:
    lengths = np.bincount(rows.row_of_value[kept], minlength=len(rows))
    return Ragged.from_lengths(lengths, rows.values[kept])
