"""The compiled steps of ACE before FedRAP against the loop, and what they leave to others."""

import numpy as np
import pytest

from client_app.personalization import ace_fedrap_compiled
from client_app.personalization.round import PERSONAL
from tests.client_app import compiled_steps, test_personalizations
from tests.client_app.compiled_steps import steps_of
from tests.client_app.test_personalizations import make_task

BASE = {
    "strategy": "fedrap", "personalization": "ace", "embedding_size": 8, "ace_learning_rate": 0.2, "batch_size": 2048,
    "fedrap_lambda": 0.3, "fedrap_mu": 0.2,
}  # fmt: skip


@pytest.fixture(autouse=True)
def several_tiles(monkeypatch):
    monkeypatch.setattr(test_personalizations, "NUM_ITEMS", 600)


def assert_equal_to_the_loop(options, **further):
    expected = compiled_steps.assert_equal_to_the_loop(options, **further)
    for name in ("change of item_embedding", "change of transfer_weight_1", "change of transfer_weight_2"):
        assert np.abs(expected[name]).max() > 1e-4


@pytest.mark.parametrize(
    "further",
    [
        {},
        {"fedrap_mu": 0.0},
        {"fedrap_lambda": 0.0},
        {"fedrap_lambda": 0.0, "fedrap_mu": 0.0, "local_epochs": 5},
        {"ace_hidden_layers": 1, "fedrap_schedule": "constant"},
        {"ace_hidden_layers": 3, "ace_identity_residual": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("batch_size", [25, 2048])
def test_they_equal_the_loop(further, batch_size):
    assert_equal_to_the_loop(BASE | further | {"batch_size": batch_size})


@pytest.mark.parametrize("batch_size", [1, 2])
def test_more_steps_than_are_remembered_as_vectors(batch_size):
    slow = {"learning_rate": 0.01, "ace_learning_rate": 0.02, "fedrap_personal_learning_rate": 0.05}
    sizes = [1, 6, 40, 0, 9, 2]
    assert 2 * -(-3 * 40 // batch_size) > 64
    assert_equal_to_the_loop(BASE | slow | {"batch_size": batch_size}, sizes=sizes)


@pytest.mark.parametrize("size", [4, 16, 32, 64])
@pytest.mark.parametrize("seed", [1, 2])
def test_for_every_width(size, seed):
    assert_equal_to_the_loop(BASE | {"embedding_size": size, "ace_learning_rate": 0.05, "batch_size": 20}, seed=seed)


def test_single_precision_is_near_double_precision():
    compiled_steps.assert_single_precision_is_near_double_precision(BASE)


def test_threads_and_blocks_change_nothing(monkeypatch):
    compiled_steps.assert_threads_and_blocks_change_nothing(monkeypatch, ace_fedrap_compiled, BASE)


@pytest.mark.parametrize("name", ["user_embedding", PERSONAL])
def test_a_user_who_has_diverged_is_nothing_to_the_others(name):
    compiled_steps.assert_who_has_diverged_is_nothing_to_the_others(name, BASE)


@pytest.mark.parametrize(
    "further",
    [
        {"optimizer": "adam"},
        {"weight_decay": 0.1},
        {"network_weight_decay": 0.1},
        {"early_stop_tolerance": 0.1},
        {"embedding_size": 6},
        {"backbone": "ncf"},
    ],
    ids=str,
)
def test_the_rest_is_left_to_others(further):
    assert steps_of(make_task(**BASE | further)) is None


def test_without_numba_all_of_it_is(monkeypatch):
    names = ("enhanced_sum_kernels", "row_kernels")
    compiled_steps.assert_nothing_is_compiled_without_numba(monkeypatch, ace_fedrap_compiled, names, BASE)
