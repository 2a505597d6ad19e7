"""FedRAP's compiled steps against the loop, alone and with its tables mixed, and what they leave to others."""

import numpy as np
import pytest

from client_app.personalization import fedrap_compiled
from client_app.personalization.round import PERSONAL
from client_app.training import compiled
from tests.client_app import test_personalizations
from tests.client_app.test_personalizations import make_task, outcome

TERMS = {"fedrap_lambda": 0.3, "fedrap_mu": 0.2}
BASE = {"strategy": "fedrap", "embedding_size": 8, "batch_size": 2048, **TERMS}
MIXED = BASE | {"personalization": "plgc", "plgc_tables": "base", "plgc_lambda": 0.3}
# One item, some, none, and more rows than a tile has.
SIZES = [1, 6, 150, 0, 9, 2]


@pytest.fixture(autouse=True)
def several_tiles(monkeypatch):
    monkeypatch.setattr(test_personalizations, "NUM_ITEMS", 600)


def steps_of(task):
    return task.personalizations[0].compiled(task)


def assert_equal_to_the_loop(options, seed=0, sizes=SIZES, atol=1e-10):
    start = make_task(sizes, seed, **options)
    assert steps_of(make_task(sizes, seed, **options)) is not None
    expected, found = (outcome(make_task(sizes, seed, **options), backend) for backend in ("loop", "numba"))
    assert np.abs(expected[PERSONAL] - start.private[PERSONAL]).max() > 1e-3
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-11, atol=atol, err_msg=name)


@pytest.mark.parametrize("batch_size", [40, 2048])
@pytest.mark.parametrize(
    "further", [{}, {"fedrap_mu": 0.0}, {"fedrap_lambda": 0.0}, {"fedrap_schedule": "constant"}], ids=str
)
def test_alone_they_equal_the_loop(further, batch_size):
    assert_equal_to_the_loop(BASE | further | {"batch_size": batch_size})


@pytest.mark.parametrize("batch_size", [40, 2048])
@pytest.mark.parametrize("terms", [TERMS, {"fedrap_lambda": 0.0, "fedrap_mu": 0.0}], ids=["terms", "none"])
@pytest.mark.parametrize("mixing", ["ntk", "half", "local", "none"])
@pytest.mark.parametrize(
    "loss", [{}, {"plgc_redundancy": "none"}, {"plgc_redundancy": "au", "plgc_lambda": 0.0}], ids=str
)
def test_mixed_they_equal_the_loop(loss, mixing, terms, batch_size):
    assert_equal_to_the_loop(MIXED | loss | terms | {"plgc_mixing": mixing, "batch_size": batch_size})


@pytest.mark.parametrize("size", [1, 6, 16, 32, 64])
@pytest.mark.parametrize("options", [BASE, MIXED], ids=["alone", "mixed"])
def test_for_every_width(size, options):
    assert_equal_to_the_loop(options | {"embedding_size": size, "local_epochs": 3}, seed=size)


@pytest.mark.parametrize("batch_size", [1, 2])
@pytest.mark.parametrize("options", [BASE, MIXED], ids=["alone", "mixed"])
def test_batches_with_next_to_no_statistics(batch_size, options):
    """Statistics of two rows are small differences, in which the order of sums shows: stacked torch is as far away."""
    assert_equal_to_the_loop(options | {"batch_size": batch_size}, sizes=[1, 2, 0, 3], atol=1e-7)


@pytest.mark.parametrize("options", [BASE, MIXED], ids=["alone", "mixed"])
def test_single_precision_is_near_double_precision(options):
    expected = outcome(make_task(SIZES, **options), "loop")
    found = outcome(make_task(SIZES, **options, dtype=np.float32), "numba")
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-3, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("options", [BASE, MIXED], ids=["alone", "mixed"])
def test_threads_and_blocks_change_nothing(monkeypatch, options):
    found = []
    for count, block in (("1", 16 * 2**20), ("2", 16 * 2**20), ("1", 1)):
        monkeypatch.setenv("OMP_NUM_THREADS", count)
        monkeypatch.setattr(fedrap_compiled, "_BLOCK_BYTES", block)
        found.append(outcome(make_task(SIZES, **options), "numba"))
    for other in found[1:]:
        for name, values in found[0].items():
            np.testing.assert_array_equal(other[name], values, err_msg=name)


@pytest.mark.parametrize("name", ["user_embedding", PERSONAL])
@pytest.mark.parametrize("options", [BASE, MIXED], ids=["alone", "mixed"])
def test_a_user_who_has_diverged_is_nothing_to_the_others(name, options):
    expected, task = outcome(make_task(SIZES, **options), "numba"), make_task(SIZES, **options)
    task.private[name][2] = np.nan
    found, others = outcome(task, "numba"), np.arange(len(SIZES)) != 2
    assert np.isnan(found["change of item_embedding"][2]).any()
    for array, values in expected.items():
        np.testing.assert_array_equal(found[array][others], values[others], err_msg=array)


@pytest.mark.parametrize(
    "options",
    [
        *(BASE | rest for rest in ({"optimizer": "adam"}, {"weight_decay": 0.1}, {"early_stop_tolerance": 0.1})),
        BASE | {"backbone": "ncf"},
        BASE | {"personalization": "plgc"},
        BASE | {"personalization": "ace"},
        MIXED | {"plgc_learn_through_mu": True},
        MIXED | {"plgc_redundancy": "feddecorr"},
    ],
    ids=str,
)
def test_the_rest_is_left_to_others(options):
    """A plug-in that the loops do not know is not left out of training: torch computes it."""
    expected, found = (outcome(make_task(SIZES, **options), backend) for backend in ("loop", "numba"))
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-9, atol=1e-9, err_msg=name)


def test_without_numba_all_of_it_is(monkeypatch):
    expected = outcome(make_task(SIZES, **BASE), "loop")
    for module, names in ((compiled, ("kernels", "row_kernels")), (fedrap_compiled, ("mixed_kernels", "row_kernels"))):
        for name in names:
            monkeypatch.setattr(module, name, lambda: None)
    assert steps_of(make_task(SIZES, **BASE)) is None
    found = outcome(make_task(SIZES, **BASE), "numba")
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-11, atol=1e-10, err_msg=name)
