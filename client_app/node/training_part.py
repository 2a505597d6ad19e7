"""How training items of a node's users rank, each in the place of the hidden one; told by a simulation that asks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bouquet.evaluation import Ranks, user_metrics
from bouquet.evaluation.metrics import CANDIDATE_SETS, METRICS
from bouquet.ragged import one_after_another
from bouquet.training_part import TRAINING
from bouquet.wire import EvaluateReply
from client_app.node.histories import Histories


class Learned:
    """Collects, of the users of a node, how their training items rank.

    Args:
        histories: of the hosted users.
        exclude_known: whether other items that a user is known to have are no candidates.
    """

    def __init__(self, histories: Histories, *, exclude_known: bool) -> None:
        self._histories, self._exclude_known = histories, exclude_known
        shape = (len(histories.users), len(CANDIDATE_SETS), len(METRICS))
        self._told = np.full(shape, -1.0, np.float32)

    def take(self, positions: NDArray[np.int64], scores: NDArray[np.float32]) -> None:
        """As `Watch`; a user without training items says nothing."""
        histories = self._histories
        train, drawn = histories.train.take(positions), histories.candidates["test"].take(positions)
        known = one_after_another(histories.had.take(positions), histories.validation.take(positions))
        counts: dict[str, list[NDArray[np.int64]]] = {kind: [] for kind in CANDIDATE_SETS}
        for user in range(len(positions)):
            own = scores[user, train.row(user)]
            others = np.ones(scores.shape[1], dtype=bool)
            others[known.row(user)] = not self._exclude_known
            for kind, pool in (("full", scores[user, others]), ("sampled-99", scores[user, drawn.row(user)])):
                pool = np.sort(pool)
                up_to = np.searchsorted(pool, own, side="right")
                counts[kind].append(np.stack([len(pool) - up_to, up_to - np.searchsorted(pool, own, side="left")]))
        lengths = train.lengths
        (some,) = np.nonzero(lengths)
        for place, kind in enumerate(CANDIDATE_SETS):
            higher, equal = np.concatenate(counts[kind], axis=1)
            # Among all items, known ones included, an item is one of those that score as itself.
            itself = int(kind == "full" and not self._exclude_known)
            values = user_metrics(Ranks(np.arange(len(higher) + 1), higher, equal - itself))
            sums = np.zeros((len(lengths), len(METRICS)))
            np.add.at(sums, train.row_of_value, values)
            self._told[positions[some], place] = sums[some] / lengths[some, None]

    def told(self, reply: EvaluateReply, places: NDArray[np.int64]) -> EvaluateReply:
        """The reply with what its users tell, who live at these places."""
        reply.reports[TRAINING] = self._told[places]
        return reply
