"""The compiled recurrent network: equal to the loop for every kind of task it takes, and never torch in disguise."""

from dataclasses import replace

import numpy as np
import pytest

from bouquet.arrays import initial_shared
from bouquet.config import ModelOptions, Options, RunConfig
from bouquet.ragged import Ragged
from bouquet.secret_draws import SecretDraws
from client_app.training import compiled
from client_app.training.compiled_gru import fits_gru
from models import BACKBONES
from models.sequence import SequenceOptions
from tests.client_app.method_tasks import outcome
from tests.client_app.test_sequences import SIZES, HalfTable, assert_equal, make_task


@pytest.fixture
def no_torch(monkeypatch):
    """The kernels compute what is asked here; nothing is left to torch."""

    def refuse(task):
        raise AssertionError("torch was asked")

    monkeypatch.setattr(compiled, "train_plain", refuse)


def of_size(size, task):
    """The task with a model of another embedding size."""
    backbone = BACKBONES["gru4rec"](
        task.num_items, ModelOptions(embedding_size=size, init_scale=0.5), SequenceOptions(max_length=12, dropout=0.3)
    )
    return replace(task, backbone=backbone, shared=initial_shared(backbone.shared, 0), private={})


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("own", ["nothing", "network", "everything"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_equal_to_the_loop(optimizer, own, weight_decay, dropout, no_torch):
    """Users of very different lengths, one with a single item, one without any, one cut to the newest 12 + 1."""
    options = {"optimizer": optimizer, "own": own, "weight_decay": weight_decay, "dropout": dropout}
    if optimizer == "adam":
        options["learning_rate"] = 0.01
    expected, found = (outcome(make_task(**options), backend) for backend in ("loop", "numba"))
    assert_equal(found, expected)
    assert np.isfinite(expected["loss"]).sum() == sum(size > 1 for size in SIZES)
    assert np.abs(expected["change of item_embedding"][4]).max() > 1e-3


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 9, 16, 20])
def test_any_embedding_size(size, no_torch):
    """Products are taken in eights, fours and twos of rows, with what is left over beside them."""
    expected, found = (outcome(of_size(size, make_task(own="nothing")), backend) for backend in ("loop", "numba"))
    assert_equal(found, expected)
    assert np.abs(expected["change of hidden_weight"]).max() > 1e-5


@pytest.mark.parametrize("share", [0, 1, 5])
def test_any_number_of_negatives(share, no_torch):
    task = make_task()
    lengths = task.positives.lengths
    drawn = np.random.default_rng(1).integers(0, task.num_items, share * lengths.sum())
    task = replace(task, negatives=Ragged.from_lengths(share * lengths, drawn))
    again = replace(task, private={name: values.copy() for name, values in task.private.items()})
    assert_equal(outcome(again, "numba"), outcome(task, "loop"))


def test_rates_and_decays_of_their_own(no_torch):
    options = {"own": "network", "network_weight_decay": 0.03, "learning_rate_decay": 0.9}
    expected, found = (outcome(make_task(**options), backend) for backend in ("loop", "numba"))
    assert_equal(found, expected)


def test_a_stop_before_the_last_epoch_is_each_users_own(no_torch):
    options = {"local_epochs": 8, "early_stop_tolerance": 0.05, "own": "nothing"}
    expected, found = (outcome(make_task(**options), backend) for backend in ("loop", "numba"))
    assert_equal(found, expected)
    whole = outcome(make_task(**{**options, "early_stop_tolerance": 0.0}), "numba")
    assert np.abs(whole["loss"] - found["loss"])[np.array(SIZES) > 1].max() > 1e-9


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_single_precision_is_close_to_the_oracle(optimizer, no_torch):
    options = {"optimizer": optimizer, "own": "nothing", "learning_rate": 0.05}
    expected = outcome(make_task(**options), "loop")
    found = outcome(replace(make_task(**options), dtype=np.float32), "numba")
    tolerance = 1e-6 if optimizer == "sgd" else 2e-3  # Adam turns rounding of gradients near zero into whole steps
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=0, atol=tolerance, err_msg=name)


def test_the_result_depends_neither_on_threads_nor_on_company(monkeypatch, no_torch):
    results = []
    for count in (1, 2, 5):
        monkeypatch.setenv("OMP_NUM_THREADS", str(count))
        results.append(outcome(make_task(), "numba"))
    for other in results[1:]:
        for name, values in results[0].items():
            np.testing.assert_array_equal(other[name], values)
    task = make_task()
    alone = replace(
        task,
        users=task.users[[7]],
        positives=task.positives.take([7]),
        negatives=task.negatives.take([7]),
        private={name: values[[7]] for name, values in task.private.items()},
    )
    for name, values in outcome(alone, "numba").items():
        np.testing.assert_array_equal(values[0], results[0][name][7], err_msg=name)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize(("dtype", "rate"), [(np.float32, 1e30), (np.float64, 1e250)])
def test_divergence_is_not_hidden(optimizer, dtype, rate, no_torch):
    """σ and tanh of anything are at most 1, and could turn NaN into numbers."""
    task = replace(make_task(optimizer=optimizer, own="nothing", learning_rate=rate), dtype=dtype)
    with np.errstate(all="ignore"):
        found = outcome(task, "numba")
    trained = np.array(SIZES) > 1
    assert not np.isfinite(found["change of hidden_weight"][trained]).all()
    assert np.isnan(found["loss"][trained]).any()


def test_the_arrays_of_the_server_do_not_change(no_torch):
    task = make_task(own="nothing")
    before = {name: values.copy() for name, values in task.shared.items()}
    outcome(task, "numba")
    for name, values in before.items():
        np.testing.assert_array_equal(task.shared[name], values)


def test_what_the_kernels_do_not_compute_is_left_to_torch():
    """A method in the loss, an array that nobody trains, dropout that only the node can draw."""
    task = make_task()
    method = HalfTable(task.backbone, RunConfig(), Options())
    secret = replace(make_task(), draws=SecretDraws(bytes(range(32))))
    shared = dict(task.shared)
    frozen = replace(make_task(), shared={}, frozen={"item_embedding": shared["item_embedding"]})
    others = [replace(make_task(), personalizations=(method,)), secret, frozen, make_task(backbone="sasrec")]
    assert fits_gru(task)
    assert not any(fits_gru(other) for other in others)
    again = replace(secret, private={name: values.copy() for name, values in secret.private.items()})
    assert_equal(outcome(again, "numba"), outcome(secret, "torch"))
