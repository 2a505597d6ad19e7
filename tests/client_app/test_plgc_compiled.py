"""PLGC's compiled steps against the loop, on more rows than a tile has, and what they leave to others."""

from dataclasses import replace

import numpy as np
import pytest

from client_app.personalization import plgc_compiled
from client_app.personalization.round import GLOBAL
from client_app.training import compiled
from client_app.training.compiler import row_kernels
from tests.client_app import test_personalizations
from tests.client_app.test_personalizations import make_task, outcome

BASE = {"strategy": "fcf", "personalization": "plgc", "embedding_size": 8, "plgc_lambda": 0.3, "batch_size": 2048}
# One item, some, none, and more rows than a tile has.
SIZES = [1, 6, 150, 0, 9, 2]


@pytest.fixture(autouse=True)
def several_tiles(monkeypatch):
    monkeypatch.setattr(test_personalizations, "NUM_ITEMS", 600)


def steps_of(task):
    (method,) = task.personalizations
    return method.compiled(task)


def assert_equal_to_the_loop(options, seed=0, sizes=SIZES, atol=1e-10):
    assert steps_of(make_task(sizes, seed, **options)) is not None
    expected, found = (outcome(make_task(sizes, seed, **options), backend) for backend in ("loop", "numba"))
    assert np.abs(expected["change of item_embedding"]).max() > 1e-3
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-11, atol=atol, err_msg=name)


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
    assert_equal_to_the_loop(BASE | {"embedding_size": size, "local_epochs": 3, "backbone": backbone}, seed)


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
    for name, values in found[0].items():
        np.testing.assert_allclose(found[1][name], values, rtol=1e-11, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("backbone", ["mf", "ncf"])
def test_single_precision_is_near_double_precision(backbone):
    expected = outcome(make_task(SIZES, **BASE, backbone=backbone), "loop")
    found = outcome(make_task(SIZES, **BASE, backbone=backbone, dtype=np.float32), "numba")
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-3, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("backbone", ["mf", "ncf"])
def test_threads_and_blocks_change_nothing(monkeypatch, backbone):
    found = []
    for count, block in (("1", 16 * 2**20), ("2", 16 * 2**20), ("1", 1)):
        monkeypatch.setenv("OMP_NUM_THREADS", count)
        monkeypatch.setattr(plgc_compiled, "_BLOCK_BYTES", block)
        found.append(outcome(make_task(SIZES, **BASE, backbone=backbone), "numba"))
    for other in found[1:]:
        for name, values in found[0].items():
            np.testing.assert_array_equal(other[name], values, err_msg=name)


@pytest.mark.parametrize("name", ["user_embedding", "item_embedding", "projector_1"])
@pytest.mark.parametrize("backbone", ["mf", "ncf"])
def test_a_user_who_has_diverged_is_nothing_to_the_others(name, backbone):
    options = BASE | {"backbone": backbone}
    expected, task = outcome(make_task(SIZES, **options), "numba"), make_task(SIZES, **options)
    task.private[name][2] = np.nan
    found, others = outcome(task, "numba"), np.arange(len(SIZES)) != 2
    assert np.isnan(found["change of item_embedding"][2]).any()
    for array, values in expected.items():
        np.testing.assert_array_equal(found[array][others], values[others], err_msg=array)


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
    expected = outcome(make_task(SIZES, **BASE), "loop")
    for module, names in ((compiled, ("kernels", "row_kernels")), (plgc_compiled, ("mixed_kernels", "row_kernels"))):
        for name in names:
            monkeypatch.setattr(module, name, lambda: None)
    assert steps_of(make_task(SIZES, **BASE)) is None
    found = outcome(make_task(SIZES, **BASE), "numba")
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-11, atol=1e-10, err_msg=name)


def test_norms_of_the_rest_are_those_of_numpy(monkeypatch):
    task = make_task(SIZES, **BASE, dtype=np.float32)
    users, rows = np.array([2, 0, 3]), task.items().take([2, 0, 3])
    assert row_kernels() is not None
    found = task.norms_outside("item_embedding", users, rows)
    monkeypatch.setattr("client_app.training.task.row_kernels", lambda: None)
    np.testing.assert_allclose(found, task.norms_outside("item_embedding", users, rows), rtol=1e-6)
