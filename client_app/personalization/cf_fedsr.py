"""The device side of CF-FedSR (Luo et al., 2022).

    representation    Section III-B.2   mean embeddings of the newest v_1 and v_2 items, side by side
    performance       eq. 2             HR_k and NDCG_k of the model that training left, on the user's validation item
    personalisation   eq. 11 and 12     w_local = w - η ∇L(w, d), used as γ w_local + (1 - γ) w

HR and NDCG are those at 10 among sampled candidates: over a whole catalogue nearly all of them are 0, and say nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Array
from bouquet.config import Options, RunConfig
from bouquet.evaluation.metrics import CANDIDATE_SETS, METRICS
from bouquet.methods.cf_fedsr import CFFedSROptions
from bouquet.ragged import Ragged
from bouquet.randomness import Draws, Words
from client_app.personalization.base import Personalization
from client_app.personalization.profiles import mean_rows
from client_app.personalization.round import Given, Tuning
from models import Backbone

_SAMPLED = CANDIDATE_SETS.index("sampled-99")
_PERFORMANCE = [METRICS.index(name) for name in ("HR@10", "NDCG@10")]


class InterestsAndTuning(Personalization):
    """Tells its interests and how well it is served, and fine-tunes the model before use."""

    options: CFFedSROptions
    without_order = "choose users at random: cf-fedsr-selection = false"

    def __init__(self, backbone: Backbone, config: RunConfig, options: Options) -> None:
        super().__init__(backbone, config, options)
        chosen = self.options
        if chosen.cf_fedsr_tuning_epochs and chosen.cf_fedsr_gamma:
            self.tuning = Tuning(chosen.cf_fedsr_tuning_epochs, chosen.cf_fedsr_gamma)
        self.needs_validation = chosen.cf_fedsr_fair

    @classmethod
    def reads_order(cls, options: Options) -> bool:
        """Interests are those of the newest items, and only the selection of users asks for them."""
        return isinstance(options, CFFedSROptions) and options.cf_fedsr_selection

    def reports(
        self, given: Given, users: Words, positives: Ragged, negatives: Ragged, round_: int, draws: Draws
    ) -> dict[str, Array]:
        return self.evaluation_reports(given, positives)

    def validation_reports(self, metrics: NDArray[np.float64]) -> dict[str, Array]:
        performance = metrics[:, _SAMPLED][:, _PERFORMANCE]
        return {"performance": np.nan_to_num(performance).astype(np.float32)}

    def evaluation_reports(self, given: Given, positives: Ragged) -> dict[str, Array]:
        if not self.options.cf_fedsr_selection:
            return {}
        name = next(name for name, spec in self.backbone.shared.items() if spec.by_item)
        lengths = (self.options.cf_fedsr_short_term, self.options.cf_fedsr_long_term)
        return {"representation": interests(given.shared[name], positives, *lengths)}


def interests(table: Array, histories: Ragged, short_term: int, long_term: int) -> Array:
    """What users liked lately and for longer: the mean of their newest items' rows, twice.

    Args:
        table: [m, d].
        histories: [k] rows of items, oldest first.
        short_term, long_term: v_1 and v_2; a shorter history counts as a whole.
    Returns:
        [k, 2 d]; zeros for a user without items.
    """
    return np.concatenate([mean_rows(table, histories, newest) for newest in (short_term, long_term)], axis=1)
