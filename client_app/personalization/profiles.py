"""What a device tells of its user so that the server can find users who are alike: a profile.

    x_u = (1/n_u) Σ_i q_i over the user's training items, with the item embeddings as the server sent them

Papers that cluster users by user embeddings have these uploaded. Here they stay; a matrix factorisation turns a user
embedding to the items that the user likes, so their mean stands for it. It tells more than nothing: whoever has the
item embeddings can tell which short histories have such a mean.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Array
from bouquet.config import Options, RunConfig
from bouquet.ragged import Ragged, positions
from bouquet.randomness import Draws, Words
from client_app.personalization.base import Personalization
from client_app.personalization.round import GLOBAL, Given, OwnArrays
from models import Backbone

_AS_SENT = "profile/item_embedding"


class Profiled(Personalization):
    """Each user tells its profile, in training and when it is evaluated."""

    def __init__(self, backbone: Backbone, config: RunConfig, options: Options) -> None:
        super().__init__(backbone, config, options)
        self.table = next(name for name, spec in backbone.shared.items() if spec.by_item)

    def start(self, given: Given, personal: OwnArrays, first: NDArray[np.bool_]) -> Given:
        return self.noted(given)

    def noted(self, given: Given) -> Given:
        """The same, with the item table as the server sent it where `reports` finds it."""
        table = given.frozen[GLOBAL] if GLOBAL in given.frozen else given.shared[self.table]
        return replace(given, frozen={**given.frozen, _AS_SENT: table})

    def reports(
        self, given: Given, users: Words, positives: Ragged, negatives: Ragged, round_: int, draws: Draws
    ) -> dict[str, Array]:
        return self.evaluation_reports(given, positives)

    def evaluation_reports(self, given: Given, positives: Ragged) -> dict[str, Array]:
        return {"representation": mean_rows(given.frozen[_AS_SENT], positives)}


def mean_rows(table: Array, histories: Ragged, newest: int | None = None) -> Array:
    """The mean row of what users had, or of the newest of it.

    Args:
        table: [m, d].
        histories: [k] rows of items, oldest first.
        newest: how many items count; a shorter history counts as a whole. None: all.
    Returns:
        [k, d]; zeros for a user without items.
    """
    counts = histories.lengths if newest is None else np.minimum(histories.lengths, newest)
    at = np.repeat(histories.indptr[1:] - counts, counts) + positions(counts)
    sums = np.zeros((len(counts), table.shape[1]))
    some = counts > 0
    if some.any():
        starts = (np.cumsum(counts) - counts)[some]
        sums[some] = np.add.reduceat(table[histories.values[at]].astype(np.float64), starts, axis=0)
    return (sums / np.maximum(counts, 1)[:, None]).astype(np.float32)
