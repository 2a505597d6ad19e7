"""A private run over real processes: what is spent stands on the disk, and nothing unpaid is told."""

import json

import numpy as np
import pytest

from bouquet.accounting import Releases, epsilon_of
from bouquet.reporting.run_directory import RunDirectory
from bouquet.testing.runs import figures_of
from strategies.federation.ledger import LEDGER
from tests.deployment.test_processes import settings_of, up
from tests.runs.helpers import bouquet, last_checkpoint, run_here

pytestmark = [pytest.mark.flower, pytest.mark.slow]

ROUNDS, METRICS_NOISE = 2, 3.0


def test_a_deployment_spends_its_budget_tells_nothing_unpaid_and_goes_no_further(tmp_path, deployment):
    """40 users on two nodes; beside it the same settings in one process, whose noise comes from the seed."""
    changes = {"strategy": "fcf", "num_server_rounds": ROUNDS, "evaluate_every": 1}
    changes |= {"dp_epsilon": 8.0, "dp_metrics_noise": METRICS_NOISE}
    settings, data, given = settings_of(tmp_path, **changes)
    up(deployment, data)
    out = RunDirectory(tmp_path / "run")
    folder = ["--dir", str(deployment.folder)]
    done = bouquet("deploy", "run", *folder, *given, "--out", str(out.path))
    assert done.returncode == 0, done.stderr

    ledger, summary, lines = json.loads((out.path / LEDGER).read_text()), out.read_summary(), out.rounds()
    assert (ledger["users"], ledger["delta"], ledger["rounds"], ledger["evaluations"]) == (40, 1 / 40, ROUNDS, 1)
    spent = [Releases(ledger["noise"], 1.0, ROUNDS), Releases(METRICS_NOISE, 1.0, 1)]
    told = summary["privacy"]
    assert told["epsilon"] == ledger["epsilon"] == pytest.approx(epsilon_of(spent, 1 / 40))
    assert 7.99 < told["epsilon"] <= 8.0
    assert (told["spent_rounds"], told["noise_from"]) == (ROUNDS, "secret draws")
    assert told["metrics"] == "noisy means, within the budget"

    assert ["test" in line for line in lines] == [False, True], "metrics are paid for once"
    assert {line["loss"] for line in lines} == {None}
    assert {(line["users"], line["asked"]) for line in lines} == {(40, 40)}
    assert len({line["bytes"]["up_per_user"] for line in lines}) == 1
    assert summary["interactions"] is None
    assert np.isnan(out.read_users()[1]).all()
    assert set(figures_of(summary["standard_error"]).values()) == {None}

    seeded = last_checkpoint(run_here(tmp_path / "here", settings, 2)).shared
    for name, values in last_checkpoint(out).shared.items():
        assert np.abs(values - seeded[name]).max() > 0.01, "else whoever has the seed could take the noise off"

    more = bouquet("deploy", "run", *folder, "-c", f'resume="{out.path}" num-server-rounds={ROUNDS + 1}')
    assert more.returncode != 0
    assert f"The budget allows no further round: after {ROUNDS} rounds ε is" in more.stderr
    assert json.loads((out.path / LEDGER).read_text()) == ledger
    assert len(out.rounds()) == ROUNDS
