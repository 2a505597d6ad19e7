"""`evaluate-training`: how training items rank in the place of the hidden one."""

import numpy as np
import pytest

from bouquet.attacks import refuse_in_deployment
from bouquet.config import RunConfig
from bouquet.errors import ConfigError
from bouquet.evaluation.metrics import METRICS
from bouquet.training_part import training_means, training_summary
from client_app.node.host import host_of
from client_app.node.training_part import Learned
from tests.runs.helpers import run_here, small_settings, write_histories


def told(tmp_path, histories, scores, **changes):
    """What users of these histories tell whose scores of the items i0, i1, … are given: [users, sets, metrics]."""
    data = write_histories(tmp_path / "by-hand.csv", histories)
    host = host_of(small_settings(tmp_path, data_file=str(data), **changes), {})
    learned = Learned(host.histories, exclude_known=True)
    # The catalogue is in an order of its own; ids are i0, i1, …, sorted as text.
    learned.take(np.arange(len(histories)), np.tile(np.asarray(scores, np.float32), (len(histories), 1)))
    return learned._told


def test_ranks_by_hand(tmp_path):
    """User 0 has i0 … i9 in this order: i8 is for validation, i9 for test, i0 … i7 are trained.

    The others have i0 and i1 and one more, so that the catalogue has three more items. Scores fall from i1 to i9, i0 is
    below all of them, the three others are above. Unknown to user 0 are i9 and these three: every trained item but i0
    has the three above it, rank 4, NDCG 1 / log2(5); i0 has i9 above it, too, rank 5, NDCG 1 / log2(6).
    """
    histories = [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], *([0, 1, 10 + k] for k in range(3))]
    names = sorted({f"i{item}" for history in histories for item in history})
    score = {f"i{item}": 20.0 - item for item in range(10)} | {"i0": 1.0} | {f"i{10 + k}": 30.0 + k for k in range(3)}
    found = told(tmp_path, histories, [score[name] for name in names])
    full = dict(zip(METRICS, found[0, 0].tolist(), strict=True))
    assert full["HR@5"] == 1
    assert full["NDCG@10"] == pytest.approx((7 / np.log2(5) + 1 / np.log2(6)) / 8, abs=1e-6)
    assert full["MRR"] == pytest.approx((7 / 4 + 1 / 5) / 8, abs=1e-6)


def test_ties_count_half(tmp_path):
    """All scores are equal: with u unknown items every trained item has rank 1 + u / 2."""
    histories = [[0, 1, 2, 3, 4], *([0, 1, 10 + k] for k in range(6))]
    found = told(tmp_path, histories, np.zeros(11))
    # User 0: unknown are the test item i4 and the six others.
    assert dict(zip(METRICS, found[0, 0].tolist(), strict=True))["MRR"] == pytest.approx(1 / 4.5)


def test_means_by_hand():
    """Two users who tell .2 and .6, one without training items (-1) and one who did not answer."""
    values = np.stack([np.full((2, len(METRICS)), value) for value in (0.2, 0.6, -1, np.nan)])
    assert training_means(values)["full"]["HR@10"] == pytest.approx(0.4)
    rounds = [{"round": 1, "training": {"full": 1}}, {"round": 2}, {"round": 3, "training": {"full": 3}}]
    assert training_summary(rounds, 3) == {"training": {"full": 3}}
    assert training_summary([{"round": 1}], 1) == {}


@pytest.mark.parametrize("strategy", ["fcf", "fedca", "hetefedrec", "sequential-rules"])
def test_the_same_however_users_are_spread(tmp_path, strategy):
    settings = small_settings(tmp_path, strategy=strategy, evaluate_training=True, num_server_rounds=2)
    one, many = (run_here(tmp_path / f"{nodes}", settings, nodes).read_summary() for nodes in (1, 7))
    for kind, metrics in one["training"].items():
        for name, value in metrics.items():
            assert many["training"][kind][name] == pytest.approx(value, abs=0.02), (kind, name)
    assert 0 < one["training"]["sampled-99"]["HR@10"] <= 1


def test_what_is_learned_by_heart_ranks_above_what_is_hidden(tmp_path):
    """Each user alone, with fast rates: its training items come first, and of the hidden one it knows nothing."""
    settings = small_settings(tmp_path, strategy="local", evaluate_training=True, local_epochs=20, learning_rate=2.0)
    summary = run_here(tmp_path / "run", settings, 2).read_summary()
    assert summary["training"]["full"]["HR@10"] > 0.9
    assert summary["test"]["full"]["HR@10"] < 0.6


def test_it_is_not_there_where_nobody_asks_and_refused_in_a_deployment(tmp_path):
    directory = run_here(tmp_path / "run", small_settings(tmp_path, num_server_rounds=1), 2)
    assert "training" not in directory.read_summary()
    assert all("training" not in line for line in directory.rounds())
    with pytest.raises(ConfigError, match="evaluate-training .* this is a deployment"):
        refuse_in_deployment(RunConfig(evaluate_training=True))
