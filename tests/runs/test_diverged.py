"""Training that runs away: a run that waits for a better round ends with the best one it had, any other fails."""

import pytest

from bouquet.errors import Diverged, RunFailed
from strategies.federation.replies import Failure, Received, require_enough
from tests.runs.helpers import run_here, small_settings

# Devices step too far, and the server steps twenty times as far as they did.
FAR = {
    "strategy": "fcf",
    "optimizer": "sgd",
    "learning_rate": 20.0,
    "user_learning_rate": 20.0,
    "local_epochs": 5,
    "server_optimizer": "sgd",
    "server_learning_rate": 20.0,
    "num_server_rounds": 40,
    "evaluate_every": 1,
}


@pytest.mark.parametrize("nodes", [1, 7, 40])
def test_a_run_that_waits_for_a_better_round_keeps_its_best(tmp_path, nodes):
    directory = run_here(tmp_path / "run", small_settings(tmp_path, **FAR, patience=40), nodes)
    summary, rounds = directory.read_summary(), directory.rounds()
    assert summary["status"] == "completed"
    assert 1 <= summary["best_round"] <= summary["rounds"] == len(rounds) < 40
    assert summary["diverged"]["round"] == len(rounds) + 1
    assert "of 40 users gave a valid reply" in summary["diverged"]["reason"]
    (remark,) = summary["remarks"]
    assert remark.startswith(f"Training diverged in round {len(rounds) + 1}; the best round before it is reported.")
    best = rounds[summary["best_round"] - 1]
    assert summary["test"] == best["test"]
    (told,) = [line for line in directory.read_events() if line["event"] == "diverged"]
    assert told["round"] == len(rounds) + 1


def test_a_run_that_reports_its_last_round_fails(tmp_path):
    with pytest.raises(RunFailed, match="only 0 of 40 users gave a valid reply"):
        run_here(tmp_path / "run", small_settings(tmp_path, **FAR), 1)


def test_a_run_without_a_best_round_fails(tmp_path):
    settings = small_settings(tmp_path, **FAR | {"learning_rate": 1e30}, patience=40)
    with pytest.raises(Diverged, match="Round 1: only 0 of 40"):
        run_here(tmp_path / "run", settings, 1)


@pytest.mark.parametrize(
    ("reasons", "kind"),
    [
        (["user 1: training diverged: 'x' is not finite", "its update is far larger than those of others"], Diverged),
        (["user 1: training diverged: 'x' is not finite", "Node Unavailable"], RunFailed),
        (["the battery is empty"], RunFailed),
        ([], RunFailed),
    ],
)
def test_what_else_went_wrong_is_no_divergence(reasons, kind):
    """Where a node has another reason, what it would have sent is not known."""
    received = Received([], [], [Failure(n, 1, reason) for n, reason in enumerate(reasons)], 0, set(), [], [])
    with pytest.raises(RunFailed) as error:
        require_enough(received, max(len(reasons), 1), 0.5, "Round 3")
    assert type(error.value) is kind
