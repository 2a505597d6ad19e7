"""Whether users would be shown an item: what a simulated node tells where an attack promotes one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bouquet.attacks import CUTOFFS, EXPOSURE
from bouquet.evaluation import rank_full
from bouquet.ragged import Ragged, one_after_another
from bouquet.wire import EvaluateReply
from client_app.node.histories import Histories


class Exposed:
    """Collects, of the users of a node, whether the target is among their best items.

    Args:
        histories: of the hosted users.
        target: the promoted item.
        exclude_known: whether what a user is known to have is left out.
    """

    def __init__(self, histories: Histories, target: int, *, exclude_known: bool) -> None:
        self._histories, self._target, self._exclude_known = histories, target, exclude_known
        self._told = np.full((len(histories.users), len(CUTOFFS)), -1.0, np.float32)

    def take(self, positions: NDArray[np.int64], scores: NDArray[np.float32]) -> None:
        """As `Watch`; who has met the target at all, test items included, says nothing."""
        histories = self._histories
        whole = histories.whole.take(positions)
        met = np.zeros(len(positions), dtype=bool)
        met[whole.row_of_value[whole.values == self._target]] = True
        (new,) = np.nonzero(~met)
        if not len(new):
            return
        known = one_after_another(histories.train.take(positions[new]), histories.validation.take(positions[new]))
        nothing = Ragged.from_lengths(np.zeros(len(new)), [])
        wanted = Ragged.from_lengths(np.ones(len(new), np.int64), np.full(len(new), self._target))
        ranks = rank_full(scores[new], wanted, known if self._exclude_known else nothing).values
        self._told[positions[new]] = ranks[:, None] <= np.array(CUTOFFS)

    def told(self, reply: EvaluateReply, places: NDArray[np.int64]) -> EvaluateReply:
        """The reply with what its users tell, who live at these places."""
        reply.reports[EXPOSURE] = self._told[places]
        return reply
