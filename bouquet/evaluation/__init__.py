"""Evaluation that cannot be fooled: ranks with fair ties, per-user metrics, summaries, paired tests.

`evaluate_users` turns a scorer into per-user values; `summarise` turns these into the figures of a report.
"""

from bouquet.evaluation.evaluate import ScoreBlock, evaluate_users
from bouquet.evaluation.metrics import CANDIDATE_SETS, CUTOFFS, METRICS, PARTS, user_metrics
from bouquet.evaluation.overlap import rank_biased_overlap
from bouquet.evaluation.projection import on_a_plane
from bouquet.evaluation.ranks import Ranks, rank_full, rank_sampled
from bouquet.evaluation.seeds import seeded_test
from bouquet.evaluation.significance import PairedDifference, holm, paired_test
from bouquet.evaluation.spectra import information_abundance, singular_value_variance, singular_values
from bouquet.evaluation.summary import evaluated_users, fairness, flattened, metric_values, standard_error, summarise

__all__ = [
    "CANDIDATE_SETS",
    "CUTOFFS",
    "METRICS",
    "PARTS",
    "PairedDifference",
    "Ranks",
    "ScoreBlock",
    "evaluate_users",
    "evaluated_users",
    "fairness",
    "flattened",
    "holm",
    "information_abundance",
    "metric_values",
    "on_a_plane",
    "paired_test",
    "rank_biased_overlap",
    "rank_full",
    "rank_sampled",
    "seeded_test",
    "singular_value_variance",
    "singular_values",
    "standard_error",
    "summarise",
    "user_metrics",
]
