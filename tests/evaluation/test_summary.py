from __future__ import annotations

import numpy as np
import pytest

from bouquet.evaluation import (
    CANDIDATE_SETS,
    METRICS,
    PARTS,
    evaluated_users,
    fairness,
    metric_values,
    standard_error,
    summarise,
)


@pytest.fixture
def values():
    """Four users; at test, full candidates, HR@10 is 1, 0, 0 and "not evaluated"; everything else is 0."""
    array = np.zeros((4, len(PARTS), len(CANDIDATE_SETS), len(METRICS)))
    array[3, PARTS.index("test")] = np.nan
    array[0, PARTS.index("test"), CANDIDATE_SETS.index("full"), METRICS.index("HR@10")] = 1
    return array


def test_means_are_over_evaluated_users(values):
    summary = summarise(values)
    assert summary["test"]["full"]["HR@10"] == pytest.approx(1 / 3)
    assert summary["test"]["sampled-99"]["HR@10"] == 0
    assert set(summary) == set(PARTS)
    assert set(summary["validation"]) == set(CANDIDATE_SETS)
    assert tuple(summary["validation"]["full"]) == METRICS
    assert evaluated_users(values) == {"validation": 4, "test": 3}


def test_standard_error_by_hand(values):
    """1, 0, 0: mean 1/3, squared deviations 4/9 + 1/9 + 1/9 = 2/3, s^2 = 1/3, error sqrt(1/9) = 1/3."""
    assert standard_error(values)["test"]["full"]["HR@10"] == pytest.approx(1 / 3)


def test_fairness_by_hand(values):
    """The variance of 1, 0, 0 divided by n is p (1 - p) = 2/9; NDCG@10 is 0 for all, so the sum has it too."""
    assert fairness(values)["variance_of"] == {"HR@10": pytest.approx(2 / 9), "NDCG@10": 0}
    assert fairness(values)["variance"] == pytest.approx(2 / 9)


def test_fairness_by_hand_among_sampled_candidates(values):
    """Sampled, HR@10 is 1, 1, 0 and NDCG@10 1, 0, 0: variances 2/9 and 2/9, and that of 2, 1, 0 is 2/3."""
    place = PARTS.index("test"), CANDIDATE_SETS.index("sampled-99")
    values[:3, *place, METRICS.index("HR@10")] = [1, 1, 0]
    values[:3, *place, METRICS.index("NDCG@10")] = [1, 0, 0]
    sampled = fairness(values)["sampled-99"]
    assert sampled["variance_of"] == {"HR@10": pytest.approx(2 / 9), "NDCG@10": pytest.approx(2 / 9)}
    assert sampled["variance"] == pytest.approx(2 / 3)
    assert fairness(values)["variance"] == pytest.approx(2 / 9)


def test_nobody_evaluated_is_nan(values):
    values[:, PARTS.index("test")] = np.nan
    assert np.isnan(summarise(values)["test"]["full"]["HR@10"])
    assert np.isnan(standard_error(values)["test"]["full"]["HR@10"])
    assert np.isnan(fairness(values)["variance"])
    assert evaluated_users(values)["test"] == 0


def test_metric_values(values):
    np.testing.assert_array_equal(metric_values(values, "test", "full", "HR@10"), [1, 0, 0, np.nan])
