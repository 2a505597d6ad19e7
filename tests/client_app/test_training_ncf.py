"""The compiled perceptron: equal to the loop for every shape of network, and never torch in disguise."""

import numpy as np
import pytest

from client_app.training import compiled
from client_app.training.compiler import ncf_kernels
from models.ncf import NCFOptions
from tests.client_app.method_tasks import outcome
from tests.client_app.test_training import SIZES, make_task

SHAPES = ["1", "16,8", "7,5,3", "6,4,3,2"]


@pytest.fixture(autouse=True)
def no_torch(monkeypatch):
    """The kernels compute what is asked here; nothing is left to torch."""

    def refuse(task):
        raise AssertionError("torch was asked")

    monkeypatch.setattr(compiled, "train_plain", refuse)


def ncf_task(hidden="16,8", **options):
    return make_task(**{"lengths": SIZES, "backbone": "ncf", "own": NCFOptions(ncf_hidden=hidden), **options})


def assert_equal_to_the_loop(atol=1e-10, **options):
    expected, found = (outcome(ncf_task(**options), backend) for backend in ("loop", "numba"))
    assert any(np.abs(values).max() > 1e-3 for name, values in expected.items() if name.startswith("change"))
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=0, atol=atol, err_msg=name)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("size", [4, 5])
@pytest.mark.parametrize("hidden", SHAPES)
def test_any_layers_and_widths(hidden, size, optimizer):
    """Widths that are no multiples of 4 are padded; padding changes nothing."""
    assert_equal_to_the_loop(hidden=hidden, size=size, optimizer=optimizer, batch_size=16)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("personal", [True, ["weight_2", "bias_1"], ["item_embedding"]], ids=["all", "some", "table"])
def test_own_models_with_decay_of_the_network(personal, optimizer):
    """All arrays of a user its own, or some of them; each with the rate and the decay that it has."""
    assert_equal_to_the_loop(
        hidden="7,5,3",
        personal=personal,
        optimizer=optimizer,
        batch_size=16,
        network_weight_decay=0.03,
        user_learning_rate=0.3,
        learning_rate_decay=0.9,
    )


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("batch_size", [1000, 2048])
def test_batches_of_more_rows_than_are_computed_at_once(batch_size, optimizer):
    """1500 samples of some 1000 items: three parts in one batch, two in each of two batches."""
    options = {"num_items": 2000, "lengths": [300, 20], "batch_size": batch_size}
    assert len(ncf_task(**options).items().row(0)) > 3 * 256
    assert_equal_to_the_loop(optimizer=optimizer, **options)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_single_precision_is_close_to_the_oracle(optimizer):
    options = {"optimizer": optimizer, "batch_size": 16, "learning_rate": 0.05}
    expected = outcome(ncf_task(**options), "loop")
    found = outcome(ncf_task(dtype=np.float32, **options), "numba")
    tolerance = 1e-6 if optimizer == "sgd" else 2e-3  # Adam turns rounding of gradients near zero into whole steps
    for name, values in expected.items():
        assert found[name].dtype == (np.float32 if name == "user_embedding" else np.float64)
        np.testing.assert_allclose(found[name], values, rtol=0, atol=tolerance, err_msg=name)


def test_the_result_does_not_depend_on_the_number_of_threads(monkeypatch):
    results = []
    for count in (1, 2, 5):
        monkeypatch.setenv("OMP_NUM_THREADS", str(count))
        results.append(outcome(ncf_task(optimizer="adam", batch_size=16), "numba"))
    for other in results[1:]:
        for name, values in results[0].items():
            np.testing.assert_array_equal(other[name], values)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_divergence_is_not_hidden(optimizer):
    """Rectified layers and the exponential could turn NaN into numbers."""
    with np.errstate(all="ignore"):
        found = outcome(ncf_task(optimizer=optimizer, dtype=np.float32, learning_rate=1e30), "numba")
    trained = np.array(SIZES) > 1
    assert not np.isfinite(found["user_embedding"][trained]).all()
    assert np.isnan(found["loss"][trained]).any()


def test_the_arrays_of_the_server_do_not_change():
    task = ncf_task()
    before = {name: values.copy() for name, values in task.shared.items()}
    outcome(task, "numba")
    for name, values in before.items():
        np.testing.assert_array_equal(task.shared[name], values)


def test_kernels_that_import_each_other_are_one_copy():
    code = ncf_kernels()
    assert code is not None
    assert code._order.__module__ == f"{code.__package__}.kernels_batches"
