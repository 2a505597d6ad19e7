"""The built-in data set: made by a small model of people with tastes, so that no download is needed to learn something.

A user is a mixture of a few themes, an item belongs mostly to one theme and is more or less popular:

    score of item i for user u = log popularity_i + taste * <user vector, item vector> + Gumbel noise

and the user takes the items with the highest scores, which is the same as drawing without replacement with
probabilities proportional to exp(score without noise). Popularity falls like Zipf's law, numbers of interactions are
lognormal. Items have a date: a user reaches older items earlier, so that what is held out by time differs a little
from what is learned from, as in real data.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from bouquet.errors import DataError
from bouquet.ragged import Ragged
from data_partition.interactions import Interactions

NUM_USERS = 600
NUM_ITEMS = 800
MEAN_LENGTH = 64.0
MIN_LENGTH = 10

_THEMES = 12
_BLOCK_CELLS = 2**21
_FLOWERS = (
    "rose", "tulip", "lily", "orchid", "iris", "peony", "dahlia", "aster", "violet", "poppy", "anemone", "lotus",
)  # fmt: skip


def synthetic(
    num_users: int = NUM_USERS,
    num_items: int = NUM_ITEMS,
    *,
    mean_length: float = MEAN_LENGTH,
    taste: float = 2.7,
    skew: float = 0.85,
    drift: float = 1.0,
    seed: int = 0,
) -> Interactions:
    """A data set of the given size; equal arguments give equal data.

    Args:
        num_users: n.
        num_items: items to choose from; those that nobody takes do not appear.
        mean_length: interactions per user on average.
        taste: weight of taste against popularity.
        skew: exponent of Zipf's law of popularity.
        drift: weight of the items' dates in the order of a history; 0: a random order.
        seed: of everything.
    Raises:
        DataError: too few users or items for the lengths asked.
    """
    if num_users < 1 or num_items <= 2 * MIN_LENGTH or mean_length < MIN_LENGTH:
        raise DataError(
            f"A synthetic set needs at least 1 user, {2 * MIN_LENGTH + 1} items and {MIN_LENGTH} interactions per user."
        )
    random = np.random.default_rng([seed, 0])
    theme = random.integers(_THEMES, size=num_items)
    item_vectors = np.eye(_THEMES)[theme] + 0.25 * random.normal(size=(num_items, _THEMES))
    log_popularity = -skew * np.log(random.permutation(num_items) + 8.0)
    dates = random.normal(size=num_items)
    lengths = _lengths(random, num_users, mean_length, num_items)
    values = []
    step = max(1, _BLOCK_CELLS // num_items)
    for block, first in enumerate(range(0, num_users, step)):
        random = np.random.default_rng([seed, 1, block])
        size = min(step, num_users - first)
        users = _user_vectors(random, size)
        # In float64: what is taken must not depend on the last bits of a machine's logarithm or matrix product.
        scores = log_popularity + taste * users @ item_vectors.T
        scores -= np.log(random.standard_exponential(size=scores.shape))
        values.append(_histories(random, scores, lengths[first : first + size], dates, drift))
    return _interactions(Ragged.from_lengths(lengths, np.concatenate(values)), theme)


def _user_vectors(random: np.random.Generator, count: int) -> NDArray[np.float64]:
    """[count, themes] few strong themes per user: a peaked mixture, scaled to a largest weight of 1."""
    mixture = random.gamma(0.35, size=(count, _THEMES)) + 1e-9
    return mixture / mixture.max(axis=1, keepdims=True)


def _lengths(random: np.random.Generator, count: int, mean: float, num_items: int) -> NDArray[np.int64]:
    """[count] lognormal numbers of interactions, from MIN_LENGTH to half of the items.

    The quantiles of the distribution in random order, not draws from it: its long tail would make the size of a small
    set a matter of luck.
    """
    spread = 0.8
    quantiles = [NormalDist().inv_cdf((place + 0.5) / count) for place in range(count)]
    normal = np.asarray(quantiles)[random.permutation(count)]
    drawn = MIN_LENGTH + (mean - MIN_LENGTH) * np.exp(spread * normal - spread**2 / 2)
    return np.clip(np.rint(drawn), MIN_LENGTH, num_items // 2).astype(np.int64)


def _histories(
    random: np.random.Generator,
    scores: NDArray[np.float64],
    lengths: NDArray[np.int64],
    dates: NDArray[np.float64],
    drift: float,
) -> NDArray[np.int64]:
    """[sum(lengths)] the best items of every user of a block, in the order in which the user meets them."""
    longest = int(lengths.max())
    best = np.argpartition(-scores, longest - 1, axis=1)[:, :longest]
    by_score = np.argsort(-np.take_along_axis(scores, best, axis=1), axis=1)
    best = np.take_along_axis(best, by_score, axis=1)
    meeting = drift * dates[best] + random.normal(size=best.shape)
    meeting[np.arange(longest) >= lengths[:, None]] = np.inf
    best = np.take_along_axis(best, np.argsort(meeting, axis=1), axis=1)
    return best[np.arange(longest) < lengths[:, None]]


def _interactions(histories: Ragged, theme: NDArray[np.int64]) -> Interactions:
    taken, values = np.unique(histories.values, return_inverse=True)
    return Interactions(
        name="synthetic",
        user_ids=np.arange(1, len(histories) + 1).astype(np.str_),
        item_ids=(taken + 1).astype(np.str_),
        histories=Ragged.from_lengths(histories.lengths, values),
        has_time=True,
        titles=tuple(f"{_FLOWERS[theme[item]]} {item + 1}" for item in taken),
        rows=len(histories.values),
    )
