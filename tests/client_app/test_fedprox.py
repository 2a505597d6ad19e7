"""The device side of FedProx: what it is drawn back to, by hand, in every backend, and not at all with μ = 0."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bouquet.config import ModelOptions, RunConfig
from bouquet.errors import ConfigError
from bouquet.methods.fedprox import FedProxOptions
from bouquet.ragged import Ragged
from client_app.personalization.fedprox import ProximalTerm, sent
from client_app.personalization.round import Given
from client_app.training import BACKENDS
from models import BACKBONES
from tests.client_app.method_tasks import outcome
from tests.client_app.test_training import PAIRWISE, SIZES, make_task
from tests.runs.helpers import last_checkpoint, run_here, small_settings

TABLE = "item_embedding"
NOBODY = np.zeros(2, dtype=bool)


def device(**options):
    return ProximalTerm(BACKBONES["mf"](3, ModelOptions(embedding_size=2)), RunConfig(), FedProxOptions(**options))


def held(task, mu):
    """The task with the proximal term, as a device of it starts."""
    term = ProximalTerm(task.backbone, RunConfig(), FedProxOptions(fedprox_mu=mu))
    frozen = {sent(name): values for name, values in task.shared.items()}
    return replace(task, frozen=frozen, personalizations=(term,))


def test_what_the_server_sent_is_kept_beside_what_is_trained():
    given = Given({TABLE: np.ones((3, 2), np.float32)}, {})
    assert (device().start(given, {}, NOBODY).frozen[sent(TABLE)] == 1).all()
    assert device(fedprox_mu=0.0).start(given, {}, NOBODY) is given
    assert not device(fedprox_mu=0.0).in_loss


def test_the_term_by_hand():
    """(μ / 2) ‖w - w^t‖² with μ = 0.5 and w - w^t = (1, 2; 0, 0; 0, 2): 0.25 * 9."""
    arrays = {TABLE: torch.tensor([[[1.0, 2.0], [0.0, 0.0], [0.0, 2.0]]]), sent(TABLE): torch.zeros(1, 3, 2)}
    assert device(fedprox_mu=0.5).penalty(arrays, arrays, None, None).tolist() == [2.25]


@pytest.mark.parametrize("backend", ["loop", "torch"])
def test_two_steps_by_hand(backend):
    """One positive, d = 1, p = 1 (and as good as fixed), q = 0, η = 0.1, μ = 2.

    The first step is drawn by nothing: q = 0.1 (1 - σ(0)) = 0.05. The second: 0.05 + 0.1 (1 - σ(0.05)) - 0.1 * 2 * 0.05
    = 0.05 + 0.04875026 - 0.01.
    """
    task = make_task(lengths=[1], size=1, num_items=4, learning_rate=0.1, user_learning_rate=1e-12, local_epochs=2)
    task.private["user_embedding"][:] = 1
    task.shared[TABLE][:] = 0
    task = replace(task, positives=Ragged.from_lengths([1], [2]), negatives=Ragged.from_lengths([0], []))
    found = outcome(held(task, 2.0), backend)
    np.testing.assert_allclose(found[f"change of {TABLE}"][0, :, 0], [0, 0, 0.08875026, 0], atol=1e-8)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("backbone", PAIRWISE)
def test_training_is_the_same_in_every_backend(backbone, optimizer):
    """Users of different sizes, one of them without samples, with a weight decay that moves every row, and without."""
    for decay in (0.0, 0.01):
        options = {"backbone": backbone, "optimizer": optimizer, "batch_size": 10, "weight_decay": decay}
        expected = outcome(held(make_task(lengths=SIZES, **options), 0.7), "loop")
        for backend in BACKENDS.keys() - {"loop"}:
            found = outcome(held(make_task(lengths=SIZES, **options), 0.7), backend)
            for name, values in expected.items():
                np.testing.assert_allclose(found[name], values, rtol=0, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("backbone", ["mf", "ncf"])
def test_without_the_term_it_is_fedavg_bit_for_bit(tmp_path, backbone):
    common = {"backbone": backbone, "fraction_train": 0.4, "num_server_rounds": 4}
    one = run_here(tmp_path / "prox", small_settings(tmp_path, strategy="fedprox", fedprox_mu=0.0, **common), 2)
    other = run_here(tmp_path / "avg", small_settings(tmp_path, strategy="fedavg", **common), 2)
    for name, values in last_checkpoint(other).shared.items():
        np.testing.assert_array_equal(last_checkpoint(one).shared[name], values)
    np.testing.assert_array_equal(one.read_users()[1], other.read_users()[1])


def test_the_larger_mu_the_nearer_a_device_stays():
    moved = [
        np.abs(outcome(held(make_task(lengths=[9], local_epochs=20), mu), "torch")[f"change of {TABLE}"]).max()
        for mu in (0.0, 1.0, 15.0)
    ]
    assert moved[0] > 1.2 * moved[1] > 1.2**2 * moved[2] > 0


def test_a_step_that_overshoots_is_refused():
    with pytest.raises(ConfigError, match="their product must be below 2"):
        FedProxOptions(fedprox_mu=0.2).check_run(RunConfig(learning_rate=10.0))
    FedProxOptions(fedprox_mu=0.2).check_run(RunConfig(learning_rate=10.0, optimizer="adam"))
