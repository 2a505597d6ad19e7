"""Where users come back to items: what a method of sums sees of a history, and how it recommends what a user has had.

A method of sums counts an item of a history once, which is what its limits rest on (`strategies.sums`); so of an item
that comes more than once the last event stays. What comes back is a matter of the user alone, and needs no sum: with
the items of a history numbered from the newest, n = 0, 1, …,

    s_i ← s_i + w (1 + n)^-a max_j s_j        for its own items i,

a share of the best score, so that w means the same whatever the sums are of.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bouquet.methods.parts import OwnItemsOptions
from bouquet.ragged import Ragged
from client_app.sums.counter import until_end


def each_once(histories: Ragged) -> Ragged:
    """[k] rows of distinct items, in the order of their last events."""
    owner = histories.row_of_value
    key = owner * (int(histories.values.max(initial=0)) + 1) + histories.values
    _, from_end = np.unique(key[::-1], return_index=True)
    kept = np.sort(len(key) - 1 - from_end)
    return Ragged.from_lengths(np.bincount(owner[kept], minlength=len(histories)), histories.values[kept])


def with_own_items(scores: NDArray[np.float32], histories: Ragged, options: OwnItemsOptions) -> NDArray[np.float32]:
    """[k, m] the scores, and what each user's own items count besides.

    Args:
        scores: [k, m]; where the best is not above 0, nothing speaks for any item, and 1 stands for it.
        histories: [k] rows of distinct items, oldest first.
    """
    owner, items = histories.row_of_value, histories.values
    best = scores.max(axis=1, initial=0.0)
    best = np.where(best > 0, best, np.float32(1))
    found = scores.copy()
    weight = options.own_items_weight * (1.0 + until_end(histories)) ** -options.own_items_decay
    found[owner, items] += (weight * best[owner]).astype(np.float32)
    return found
