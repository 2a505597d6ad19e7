"""Secure sums between processes whose registered keys are certified; one is killed in the middle of a round."""

import pytest

from bouquet.reporting.run_directory import RunDirectory
from tests.deployment.devices import kill
from tests.deployment.test_processes import settings_of, up
from tests.runs.helpers import await_condition, run_here, start_bouquet

pytestmark = [pytest.mark.flower, pytest.mark.slow]


def test_a_node_that_is_killed_in_a_round_costs_its_users_and_nobody_elses(tmp_path, deployment):
    """Four nodes of ten users, three of which are enough; the first round is that of one process without masks."""
    changes = {"num_server_rounds": 3, "evaluate_every": 3, "server_optimizer": "sgd", "server_learning_rate": 1.0}
    changes["round_timeout"] = 90.0
    settings, data, given = settings_of(tmp_path, **changes)
    up(deployment, data, nodes=4)
    out = RunDirectory(tmp_path / "run")
    authority = deployment.keys / "server" / "ca.crt"
    masks = ["-c", f'secure-sums=true secure-sums-authority="{authority}"']
    arguments = ["deploy", "run", "--dir", str(deployment.folder), *given, *masks, "--out", str(out.path)]
    run = start_bouquet(*arguments)
    await_condition(lambda: len(out.rounds()) >= 1, seconds=300)
    kill(deployment.processes("node-2"))
    said = run.communicate(timeout=500)
    assert run.returncode == 0, said
    first, second, third = out.rounds()
    plain = run_here(tmp_path / "here", settings, 4).rounds()[0]
    assert first["users"] == 40
    assert first["loss"] == pytest.approx(plain["loss"], abs=1e-5)
    assert (first["failures"], first["clipped"]) == ([], 0)
    assert {line["users"] for line in (second, third)} <= {30, 40}
    assert third["users"] == 30
    lost = [failure["reason"] for line in (second, third) for failure in line["failures"]]
    assert lost
    assert all(reason.startswith("stage '") for reason in lost)
    assert out.read_summary()["status"] == "completed"
