"""ACE's compiled steps against the loop, and what they leave to others."""

import numpy as np
import pytest

from client_app.personalization import ace_compiled
from tests.client_app import compiled_steps
from tests.client_app.compiled_steps import steps_of
from tests.client_app.method_tasks import make_task, outcome

BASE = {
    "num_items": 200, "strategy": "fcf", "personalization": "ace", "embedding_size": 8, "ace_learning_rate": 0.2,
    "batch_size": 2048,
}  # fmt: skip
# One item, some, none, and many.
SIZES = [1, 6, 40, 0, 9, 2]


def assert_equal_to_the_loop(options, seed=0):
    expected = compiled_steps.assert_equal_to_the_loop(options, seed, SIZES)
    for name in ("change of item_embedding", "change of transfer_weight_1", "change of transfer_weight_2"):
        assert np.abs(expected[name]).max() > 1e-4


@pytest.mark.parametrize(
    "further",
    [
        {},
        {"strategy": "fedavg", "local_epochs": 5},
        {"strategy": "pfedrec", "user_learning_rate": 0.0},
        {"ace_hidden_layers": 1},
        {"ace_hidden_layers": 3, "ace_identity_residual": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("batch_size", [1, 2, 25, 2048])
@pytest.mark.parametrize("backbone", ["mf", "ncf"])
def test_they_equal_the_loop(further, batch_size, backbone):
    """With batches of one sample, users take more steps than are remembered as vectors."""
    options = BASE | further | {"batch_size": batch_size, "backbone": backbone}
    assert_equal_to_the_loop(
        options | {"learning_rate": 0.01, "ace_learning_rate": 0.02} if batch_size < 3 else options
    )


@pytest.mark.parametrize("size", [4, 16, 32, 64])
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("backbone", ["mf", "ncf"])
def test_for_every_width(size, seed, backbone):
    further = {"embedding_size": size, "ace_learning_rate": 0.05, "batch_size": 20, "backbone": backbone}
    assert_equal_to_the_loop(BASE | further, seed)


@pytest.mark.parametrize("hidden", ["1", "16,8", "7,5,3"])
def test_any_layers_of_a_perceptron(hidden):
    assert_equal_to_the_loop(BASE | {"backbone": "ncf", "ncf_hidden": hidden, "embedding_size": 4})


def test_more_rows_than_a_perceptron_sees_at_once():
    many = BASE | {"num_items": 1000}
    assert len(make_task([300, 2], **many).items().row(0)) > 2 * 256
    for batch_size in (400, 2048):
        options = many | {"backbone": "ncf", "batch_size": batch_size}
        expected, found = (outcome(make_task([300, 2], **options), backend) for backend in ("loop", "numba"))
        compiled_steps.assert_equal(found, expected)


@pytest.mark.parametrize("backbone", ["mf", "ncf"])
def test_single_precision_is_near_double_precision(backbone):
    compiled_steps.assert_single_precision_is_near_double_precision(BASE | {"backbone": backbone}, SIZES)


@pytest.mark.parametrize("backbone", ["mf", "ncf"])
def test_threads_and_blocks_change_nothing(monkeypatch, backbone):
    options = BASE | {"backbone": backbone}
    compiled_steps.assert_threads_and_blocks_change_nothing(monkeypatch, ace_compiled, options, SIZES)


@pytest.mark.parametrize("backbone", ["mf", "ncf"])
def test_a_user_who_has_diverged_is_nothing_to_the_others(backbone):
    options = BASE | {"backbone": backbone}
    compiled_steps.assert_who_has_diverged_is_nothing_to_the_others("user_embedding", options, SIZES)


@pytest.mark.parametrize(
    "further",
    [
        {"optimizer": "adam"},
        {"weight_decay": 0.1},
        {"network_weight_decay": 0.1},
        {"early_stop_tolerance": 0.1},
        {"embedding_size": 6},
    ],
    ids=str,
)
def test_the_rest_is_left_to_others(further):
    assert steps_of(make_task(**BASE | further)) is None


def test_without_numba_all_of_it_is(monkeypatch):
    names = ("enhanced_kernels", "row_kernels")
    compiled_steps.assert_nothing_is_compiled_without_numba(monkeypatch, ace_compiled, names, BASE, SIZES)
