"""Recommenders made of sums over users, with the settings and the ideas beside them that `champions_search` tries.

    successions    S = Σ_u S_u        counts of "j came δ after i", weighted by the lag δ     sequential rules
    contexts       P = Σ_t x_t x_tᵀ   what was known together, newer items weighing more      sequential ridge (SLIST)
    continuations  Q = Σ_t x_t y_tᵀ   what came next after it                                 sequential ridge
    Gram matrix    G = Σ_u x_u x_uᵀ   items of one user                                       EASE

One process computes them here from all histories; a federation of any size has the same sums, and so the same figures.
Histories must hold no item twice (repeats = "drop").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse

from bouquet.ragged import Ragged, positions

Matrix = NDArray[np.floating[Any]]
Scorer = Callable[[Ragged], Matrix]
"""`scorer(histories) -> [b, m]` scores of all items for users who did this, oldest first."""

EVERYTHING = 10**6
LAG_GROUPS = ((1, 1), (2, 5), (6, 20))


def decayed(lags: NDArray[np.int64], power: float) -> NDArray[np.float64]:
    """lag^-power."""
    return np.asarray(lags, dtype=np.float64) ** -power


def recent(
    histories: Ragged, num_items: int, decay: float, first: int = 1, last: int = EVERYTHING
) -> sparse.csr_matrix:
    """[b, m] lag^-decay for the items of each history, the newest having lag 1, from lag `first` to `last`."""
    lags = np.repeat(histories.lengths, histories.lengths) - positions(histories.lengths)
    weights = np.where((lags >= first) & (lags <= last), decayed(lags, decay), 0).astype(np.float32)
    shape = (len(histories), num_items)
    found = sparse.csr_matrix((weights, histories.values, histories.indptr), shape=shape, copy=True)
    found.eliminate_zeros()
    return found


class Sums:
    """The sums over users that all settings are made of; those used last are kept.

    Attributes:
        counts: [m] how many users have each item.
        late_counts: [m] the same among the last ten items of each user.
    """

    def __init__(self, train: Ragged, num_items: int) -> None:
        self.train, self.num_items = train, num_items
        self.precision = np.float64 if num_items < 5000 else np.float32
        lags = np.repeat(train.lengths, train.lengths) - positions(train.lengths)
        self.counts = np.bincount(train.values, minlength=num_items).astype(np.float64)
        self.late_counts = np.bincount(train.values[lags <= 10], minlength=num_items).astype(np.float64)
        self.successions = lru_cache(4)(self._successions)
        self.contexts = lru_cache(1)(self._contexts)
        self.continuations = lru_cache(1)(self._continuations)
        self.factorised = lru_cache(1)(self._factorised)
        self.autoencoder = lru_cache(1)(self._autoencoder)

    def _successions(self, first: int, last: int, decay: float, user_power: float) -> sparse.csr_matrix:
        """S[i_t, i_{t+δ}] += δ^-decay for δ = first … last, each user times n^-user_power."""
        owner, items = self.train.row_of_value, self.train.values
        of_user = np.maximum(self.train.lengths, 1.0) ** -user_power
        total = sparse.csr_matrix((self.num_items, self.num_items), dtype=np.float32)
        for lag in range(first, min(last, int(self.train.lengths.max()) - 1) + 1):
            at = np.flatnonzero(owner[lag:] == owner[:-lag])
            weights = (of_user[owner[at]] * lag**-decay).astype(np.float32)
            total = total + sparse.csr_matrix((weights, (items[at], items[at + lag])), shape=total.shape)
        return total

    def _contexts(self, decay: float, user_power: float) -> Matrix:
        """P = Σ_t x_t x_tᵀ, x_t = Σ_age (1 + age)^-decay e_{i_{t-age}}, over all steps that have a next item.

        Counted from the end of a history, the sum over t of the weights of two places is the same for all users.
        """
        steps = int(self.train.lengths.max())
        lower = linalg.toeplitz(decayed(1 + np.arange(steps), decay), np.zeros(steps))
        of_places = lower @ lower.T
        return self._over_users(lambda row: row[-2::-1], of_places, user_power)

    def _continuations(self, decay: float, foresight: float, user_power: float) -> Matrix:
        """Q = Σ_t x_t y_tᵀ, y_t the next item, or with a foresight Σ_{d >= 0} (1 + d)^-foresight e_{i_{t+1+d}}."""
        places = 1 + np.arange(int(self.train.lengths.max()))
        by_lag = decayed(places, decay)
        if foresight:
            by_lag = np.convolve(by_lag, decayed(places, foresight))[: len(places)]
        upper = linalg.toeplitz(np.zeros(len(places)), np.concatenate([[0.0], by_lag[:-1]]))
        return self._over_users(lambda row: row, upper, user_power)

    def _over_users(
        self, items: Callable[[NDArray[np.int32]], NDArray[np.int32]], of_places: Matrix, power: float
    ) -> Matrix:
        total = np.zeros((self.num_items, self.num_items), dtype=self.precision)
        of_places = of_places.astype(self.precision)
        for user, length in enumerate(self.train.lengths):
            if length < 2:
                continue
            row = items(self.train.row(user))
            total[np.ix_(row, row)] += of_places[: len(row), : len(row)] * float(length) ** -power
        return total

    def _factorised(self, decay: float, ridge: float, ridge_power: float, user_power: float) -> Any:
        """Cholesky factor of P + λ diag((count / mean count)^ridge_power)."""
        matrix = self.contexts(decay, user_power).copy()
        relative = np.maximum(self.counts, 1) / np.maximum(self.counts, 1).mean()
        matrix.ravel()[:: self.num_items + 1] += (ridge * relative**ridge_power).astype(self.precision)
        return linalg.cho_factor(matrix, lower=True, overwrite_a=True, check_finite=False)

    def _autoencoder(self, ridge: float) -> Matrix:
        """B of EASE."""
        rows = recent(self.train, self.num_items, 0).astype(self.precision)
        gram = (rows.T @ rows).toarray(order="C")  # so that `ravel` is a view
        gram.ravel()[:: self.num_items + 1] += ridge
        weights = inverse(linalg.cho_factor(gram, lower=True, overwrite_a=True, check_finite=False))
        weights /= -np.diag(weights).copy()
        np.fill_diagonal(weights, 0)
        return weights


def inverse(factor: Any) -> Matrix:
    """The inverse of a matrix from its lower Cholesky factor."""
    invert = linalg.lapack.dpotri if factor[0].dtype == np.float64 else linalg.lapack.spotri
    lower = np.tril(invert(factor[0], lower=1)[0])
    return np.asarray(lower + np.tril(lower, -1).T)


class Setting(Protocol):
    """One model with all of its settings."""

    def scorer(self, sums: Sums) -> Scorer:
        """The fitted model."""
        ...


@dataclass(frozen=True)
class Rules:
    """Sequential rules: K = D^-source (S + backward Sᵀ) D^-target, scores Σ_{age < reach} (1 + age)^-recency K[i_age].

    Attributes:
        window, decay: of counting.
        reach, recency: of scoring; 0: as in counting.
        shrinkage: h, K times count / (count + h).
        user_power: each user's sum is taken times n^-user_power.
        groups: weights of one matrix per group of lags, each used for items of that age; empty: one matrix.
        columns: how many entries of the largest absolute value are kept in each row; 0: all.
    """

    window: int = 10
    decay: float = 0.7
    source: float = 0.3
    target: float = 0.3
    backward: float = 0.5
    reach: int = 0
    recency: float = 0.0
    shrinkage: float = 0.0
    user_power: float = 0.0
    groups: tuple[float, ...] = ()
    columns: int = 0

    def scorer(self, sums: Sums) -> Scorer:
        spans = LAG_GROUPS if self.groups else ((1, self.window),)
        reaches = LAG_GROUPS if self.groups else ((1, self.reach or self.window),)
        matrices = [
            weight * self._matrix(sums, *span) for span, weight in zip(spans, self.groups or (1.0,), strict=True)
        ]
        recency = self.recency or self.decay

        def scores(histories: Ragged) -> Matrix:
            parts = zip(matrices, reaches, strict=True)
            found = sum(recent(histories, sums.num_items, recency, *reach) @ matrix for matrix, reach in parts)
            return np.asarray(found.toarray())

        return scores

    def _matrix(self, sums: Sums, first: int, last: int) -> sparse.csr_matrix:
        counted = sums.successions(first, last, self.decay, self.user_power)
        matrix = (counted + self.backward * counted.T).tocsr() if self.backward else counted.copy()
        rows = np.repeat(np.arange(sums.num_items), np.diff(matrix.indptr))
        counts = np.maximum(sums.counts, 1)
        if self.shrinkage:
            matrix.data *= matrix.data / (matrix.data + self.shrinkage)
        matrix.data *= (counts**-self.source)[rows] * (counts**-self.target)[matrix.indices]
        if self.columns:
            order = np.lexsort((-matrix.data, rows))
            matrix.data[order[positions(np.diff(matrix.indptr)) >= self.columns]] = 0
            matrix.eliminate_zeros()
        return matrix


@dataclass(frozen=True)
class Ridge:
    """Sequential ridge: W = (P + Λ)^-1 (Q + backward Qᵀ) D^-target, scores x W.

    Attributes:
        decay, ridge: a and λ.
        ridge_power: Λ = λ diag((count / mean count)^ridge_power); the same as items normalised before the regression.
        recency: decay of x when it is scored; 0: `decay`.
        foresight: the target is not the next item alone but all later ones, with this decay; 0: the next one.
        no_diagonal: W under the constraint of EASE, diag(W) = 0.
        user_power, columns: as in `Rules`.
    """

    decay: float = 0.7
    ridge: float = 300.0
    ridge_power: float = 0.0
    target: float = 0.0
    recency: float = 0.0
    backward: float = 0.0
    foresight: float = 0.0
    user_power: float = 0.0
    no_diagonal: bool = False
    columns: int = 0

    def scorer(self, sums: Sums) -> Scorer:
        factor = sums.factorised(self.decay, self.ridge, self.ridge_power, self.user_power)
        asked: Any = sums.continuations(self.decay, self.foresight, self.user_power)
        if self.backward:
            asked = asked + self.backward * asked.T
        if np.count_nonzero(asked) < 0.05 * asked.size:
            asked = sparse.csr_matrix(asked)
        scale = np.maximum(sums.counts, 1) ** -self.target
        weights = self._weights(factor, asked) if self.columns or self.no_diagonal else None

        def scores(histories: Ragged) -> Matrix:
            read = recent(histories, sums.num_items, self.recency or self.decay).astype(sums.precision)
            if weights is not None:
                found = read @ weights
                return np.asarray((found.toarray() if sparse.issparse(found) else found) * scale)
            solved = linalg.cho_solve(factor, read.toarray().T, overwrite_b=True, check_finite=False)
            return np.asarray((asked.T @ solved).T * scale)

        return scores

    def _weights(self, factor: Any, asked: Any) -> Any:
        inverted = inverse(factor)
        weights = np.asarray((asked.T @ inverted).T)
        if self.no_diagonal:
            weights -= inverted * (np.diag(weights) / np.diag(inverted))
        if not self.columns:
            return weights
        dropped = np.argpartition(-np.abs(weights), self.columns, axis=1)[:, self.columns :]
        np.put_along_axis(weights, dropped, 0, axis=1)
        return sparse.csr_matrix(weights)


@dataclass(frozen=True)
class Ease:
    """EASE, and with a recency the same with each item of a history times (1 + age)^-recency when it is scored."""

    ridge: float = 300.0
    recency: float = 0.0

    def scorer(self, sums: Sums) -> Scorer:
        weights = sums.autoencoder(self.ridge)
        return lambda histories: recent(histories, sums.num_items, self.recency).astype(sums.precision) @ weights


@dataclass(frozen=True)
class Popularity:
    """log(1 + count), of all items or of the late ones of each history."""

    late: bool = False

    def scorer(self, sums: Sums) -> Scorer:
        scores = np.log1p(sums.late_counts if self.late else sums.counts)
        return lambda histories: np.repeat(scores[None], len(histories), axis=0)


@dataclass(frozen=True)
class Mix:
    """z(first) + weight z(second), each user's scores standardised."""

    first: Setting
    second: Setting
    weight: float

    def scorer(self, sums: Sums) -> Scorer:
        first, second = self.first.scorer(sums), self.second.scorer(sums)
        return lambda histories: standardised(first(histories)) + self.weight * standardised(second(histories))


def standardised(scores: Matrix) -> Matrix:
    """Rows of mean 0 and deviation 1."""
    spread = scores.std(axis=1, keepdims=True)
    return np.asarray((scores - scores.mean(axis=1, keepdims=True)) / np.where(spread > 0, spread, 1))
