"""Invariant 6: a run that was stopped and resumed equals one that was not, private state included."""

import os
import signal

import pytest

from bouquet.errors import StateError
from bouquet.reporting.run_directory import RunDirectory
from bouquet.testing import assert_equal_runs
from tests.runs.helpers import (
    WITH_PLUG_INS,
    await_condition,
    bouquet,
    method,
    pairs,
    run_here,
    small_settings,
    start_bouquet,
)


@pytest.mark.parametrize(
    "strategy",
    [
        "fedavg",
        "fedca",
        "fed3cr",
        "fedfast",
        "hetefedrec",
        "local",
        "perfedrec",
        "pfedgraph",
        "scaffold",
        *WITH_PLUG_INS,
    ],
)
@pytest.mark.parametrize("fraction", [1.0, 0.4])
def test_five_rounds_and_five_more_are_ten(tmp_path, strategy, fraction):
    settings = small_settings(
        tmp_path, **method(strategy), fraction_train=fraction, evaluate_every=5, checkpoint_every=5
    )
    whole = run_here(tmp_path / "whole", settings | {"num-server-rounds": 10}, 3)
    run_here(tmp_path / "parts", settings | {"num-server-rounds": 5}, 3)
    resumed = settings | {"num-server-rounds": 10, "resume": str(tmp_path / "parts")}
    assert_equal_runs(run_here(tmp_path / "parts", resumed, 3), whole)


@pytest.mark.parametrize("strategy", ["fedavg", "fedca", "local"])
def test_a_run_that_was_killed_goes_on_exactly(tmp_path, strategy):
    """kill -9 between checkpoints: nodes are ahead of the server's checkpoint and must go back to it."""
    settings = small_settings(tmp_path, strategy=strategy, num_server_rounds=120, checkpoint_every=20)
    given = {key: settings[key] for key in ("dataset", "data-file", "time-column", "embedding-size", "batch-size")}
    given |= {"strategy": strategy, "num-server-rounds": 120, "evaluate-every": 10, "checkpoint-every": 20}
    common = ["run", "--engine", "local", "--nodes", "3", "--compare-with", "", *pairs(given)]
    whole, killed = RunDirectory(tmp_path / "whole"), RunDirectory(tmp_path / "killed")
    assert bouquet(*common, "--out", str(whole.path)).returncode == 0

    process = start_bouquet(*common, "--out", str(killed.path))
    await_condition(lambda: len(killed.rounds()) >= 47)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    rounds = len(killed.rounds())
    assert 47 <= rounds < 120
    assert killed.read_summary() == {"status": "running"}, "a killed run must not look finished"

    done = bouquet("run", "--compare-with", "", "-c", f'resume="{killed.path}"')
    assert done.returncode == 0, done.stderr
    assert_equal_runs(killed, whole)


def test_resume_refuses_another_run(tmp_path):
    settings = small_settings(tmp_path, num_server_rounds=2)
    run_here(tmp_path / "run", settings, 2)
    done = bouquet("run", "-c", f'resume="{tmp_path / "run"}" learning-rate=0.5')
    assert done.returncode == 2
    assert done.stderr.strip() == "'learning-rate' cannot change when a run is resumed: it was 0.1."
    done = bouquet("run", "-c", f'resume="{tmp_path / "nothing"}"')
    assert done.returncode == 2
    assert "There is no configuration file" in done.stderr


def test_resume_notices_lost_private_state(tmp_path):
    settings = small_settings(tmp_path, num_server_rounds=2)
    directory = run_here(tmp_path / "run", settings, 1)
    (state,) = (directory.path / "nodes").glob("*/node-0-of-1/index.safetensors")
    state.unlink()
    resumed = settings | {"num-server-rounds": 4, "resume": str(directory.path)}
    with pytest.raises(Exception, match="private state of user .* is missing"):
        run_here(tmp_path / "run", resumed, 1)
    assert directory.read_summary()["status"] == "failed"


def test_a_damaged_checkpoint_is_named(tmp_path):
    settings = small_settings(tmp_path, num_server_rounds=2)
    directory = run_here(tmp_path / "run", settings, 1)
    newest = sorted(directory.checkpoints.iterdir())[-1]
    newest.write_bytes(newest.read_bytes()[:100])
    with pytest.raises(StateError, match=newest.name):
        run_here(tmp_path / "run", settings | {"num-server-rounds": 4, "resume": str(directory.path)}, 1)
