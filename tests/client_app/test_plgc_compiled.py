"""PLGC's compiled steps against the loop, on more rows than a tile has, and what they leave to others."""

from dataclasses import replace

import numpy as np
import pytest

from client_app.personalization import plgc_compiled
from client_app.personalization.round import GLOBAL
from client_app.training.compiler import row_kernels
from tests.client_app import compiled_steps
from tests.client_app.compiled_steps import SIZES, steps_of
from tests.client_app.method_tasks import make_task, outcome

# Of so many items an own table has several tiles of rows.
BASE = {
    "num_items": 600, "strategy": "fcf", "personalization": "plgc", "embedding_size": 8, "plgc_lambda": 0.3,
    "batch_size": 2048,
}  # fmt: skip


def assert_equal_to_the_loop(options, **further):
    expected = compiled_steps.assert_equal_to_the_loop(options, **further)
    assert np.abs(expected["change of item_embedding"]).max() > 1e-3


@pytest.mark.parametrize(
    "further",
    [
        {},
        {"plgc_mixing": "half", "plgc_learning_rate": 0.7},
        {"plgc_mixing": "local", "plgc_kappa": 0.1},
        {"plgc_mixing": "none"},
        {"plgc_redundancy": "none"},
        {"plgc_redundancy": "au", "plgc_lambda": 0.0},
        {"plgc_mixing": "none", "plgc_redundancy": "none"},
    ],
    ids=str,
)
@pytest.mark.parametrize("batch_size", [40, 2048])
@pytest.mark.parametrize("backbone", ["mf", "ncf"])
def test_they_equal_the_loop(further, batch_size, backbone):
    assert_equal_to_the_loop(BASE | further | {"batch_size": batch_size, "backbone": backbone})


@pytest.mark.parametrize("hidden", ["1", "16,8", "7,5,3"])
def test_any_layers(hidden):
    assert_equal_to_the_loop(BASE | {"backbone": "ncf", "ncf_hidden": hidden, "embedding_size": 5})


def test_a_perceptron_of_each_user():
    """PFedRec keeps the whole score function on the device."""
    assert_equal_to_the_loop(BASE | {"strategy": "pfedrec", "backbone": "ncf"})


@pytest.mark.parametrize("batch_size", [1, 2])
@pytest.mark.parametrize("backbone", ["mf", "ncf"])
def test_batches_with_next_to_no_statistics(batch_size, backbone):
    """A single sample correlates with nothing. Few steps: with so few rows every one of them multiplies rounding."""
    options = BASE | {"batch_size": batch_size, "backbone": backbone}
    assert_equal_to_the_loop(options, sizes=[1, 2, 0, 3], atol=1e-7 if backbone == "ncf" else 1e-10)


@pytest.mark.parametrize("size", [6, 16, 32, 64])
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("backbone", ["mf", "ncf"])
def test_for_every_width(size, seed, backbone):
    assert_equal_to_the_loop(BASE | {"embedding_size": size, "local_epochs": 3, "backbone": backbone}, seed=seed)


@pytest.mark.parametrize("mixing", ["ntk", "none"])
@pytest.mark.parametrize("batch_size", [40, 2048])
def test_common_tables_of_each_user(mixing, batch_size):
    """PerFedRec adds what a user's cluster has to the common table."""
    found = []
    for backend in ("loop", "numba"):
        task = make_task(SIZES, **BASE | {"plgc_mixing": mixing, "batch_size": batch_size})
        apart = np.random.default_rng(3).normal(0, 0.1, (len(SIZES), *task.frozen[GLOBAL].shape))
        task = replace(task, frozen={}, anchors={GLOBAL: (task.frozen[GLOBAL] + apart).astype(np.float64)})
        assert steps_of(task) is not None
        found.append(outcome(task, backend))
    compiled_steps.assert_equal(found[1], found[0])


@pytest.mark.parametrize("backbone", ["mf", "ncf"])
def test_single_precision_is_near_double_precision(backbone):
    compiled_steps.assert_single_precision_is_near_double_precision(BASE | {"backbone": backbone})


@pytest.mark.parametrize("backbone", ["mf", "ncf"])
def test_threads_and_blocks_change_nothing(monkeypatch, backbone):
    options = BASE | {"backbone": backbone}
    compiled_steps.assert_threads_and_blocks_change_nothing(monkeypatch, plgc_compiled, options)


@pytest.mark.parametrize("name", ["user_embedding", "item_embedding", "projector_1"])
@pytest.mark.parametrize("backbone", ["mf", "ncf"])
def test_a_user_who_has_diverged_is_nothing_to_the_others(name, backbone):
    options = BASE | {"backbone": backbone}
    compiled_steps.assert_who_has_diverged_is_nothing_to_the_others(name, options)


@pytest.mark.parametrize(
    "further",
    [
        {"optimizer": "adam"},
        {"weight_decay": 0.1},
        {"early_stop_tolerance": 0.1},
        {"plgc_learn_through_mu": True},
        {"plgc_redundancy": "feddecorr"},
    ],
    ids=str,
)
def test_the_rest_is_left_to_others(further):
    assert steps_of(make_task(**BASE | further)) is None


def test_without_numba_all_of_it_is(monkeypatch):
    names = ("mixed_kernels", "row_kernels")
    compiled_steps.assert_nothing_is_compiled_without_numba(monkeypatch, plgc_compiled, names, BASE)


def test_norms_of_the_rest_are_those_of_numpy(monkeypatch):
    task = make_task(SIZES, **BASE, dtype=np.float32)
    users, rows = np.array([2, 0, 3]), task.items().take([2, 0, 3])
    assert row_kernels() is not None
    found = task.norms_outside("item_embedding", users, rows)
    monkeypatch.setattr("client_app.training.task.row_kernels", lambda: None)
    np.testing.assert_allclose(found, task.norms_outside("item_embedding", users, rows), rtol=1e-6)
