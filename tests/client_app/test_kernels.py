"""The compiled kernels where they differ from a plain loop: two layouts, decay in closed form, early stop."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bouquet.arrays import initial_private, initial_shared
from bouquet.config import ModelOptions, TrainingOptions
from bouquet.ragged import Ragged
from bouquet.randomness import SeededDraws, user_keys
from client_app.personalization.round import PERSONAL
from client_app.training import BACKENDS, LocalTask, compiled
from client_app.training.denormals import flushed_denormals
from client_app.training.task import batch_order
from models import BACKBONES
from tests.client_app.method_tasks import make_task as make_method_task
from tests.client_app.method_tasks import outcome
from tests.client_app.test_scaffold import trained, with_variates
from tests.client_app.test_training import SIZES, make_task


@pytest.fixture(autouse=True)
def nothing_is_left_to_torch(monkeypatch):
    def refuse(task):
        raise AssertionError("the kernels compute this")

    monkeypatch.setattr(compiled, "train_plain", refuse)


def task_of(rows, embedding_size=3, dtype=np.float64, **options):
    """Users with given (positives, negatives) among 12 items."""
    model = BACKBONES["mf"](12, ModelOptions(embedding_size=embedding_size, init_scale=0.5))
    users = user_keys([f"user {i}" for i in range(len(rows))])
    return LocalTask(
        backbone=model,
        options=TrainingOptions(**options),
        users=users,
        round=1,
        draws=SeededDraws(3),
        positives=Ragged.from_lengths([len(p) for p, _ in rows], [item for p, _ in rows for item in p]),
        negatives=Ragged.from_lengths([len(n) for _, n in rows], [item for _, n in rows for item in n]),
        shared={"item_embedding": initial_shared(model.shared, 3)["item_embedding"].astype(dtype)},
        private={
            "user_embedding": initial_private("user_embedding", model.private["user_embedding"], 3, users).astype(dtype)
        },
        dtype=dtype,
    )


def assert_equal_outcomes(make, tolerance=1e-10):
    expected, found = outcome(make(), "loop"), outcome(make(), "numba")
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=0, atol=tolerance, err_msg=name)
    return expected


@pytest.mark.parametrize("batch_size", [1, 4, 16, 2048])
@pytest.mark.parametrize("personal", [False, True], ids=["shared table", "own table"])
@pytest.mark.parametrize("early_stop_tolerance", [0.0, 0.05])
def test_weight_decay_in_closed_form(batch_size, personal, early_stop_tolerance):
    """Rows outside a batch, rows that nobody touched, users who stop early and so decay less: equal to 1e-10."""
    options = {
        "batch_size": batch_size,
        "personal": personal,
        "weight_decay": 0.3,
        "learning_rate": 0.2,
        "user_learning_rate": 0.7,
        "local_epochs": 6,
        "early_stop_tolerance": early_stop_tolerance,
    }
    assert_equal_outcomes(lambda: make_task(lengths=SIZES, **options))


@pytest.mark.parametrize("batch_size", [4, 2048])
@pytest.mark.parametrize("early_stop_tolerance", [0.0, 0.05])
def test_a_sum_of_two_tables_is_trained_as_one(batch_size, early_stop_tolerance):
    """FedRAP without its two terms, at different rates: what the loop makes of both tables, without torch."""
    options = {
        "strategy": "fedrap",
        "learning_rate": 0.3,
        "fedrap_personal_learning_rate": 1.7,
        "batch_size": batch_size,
    }

    def make():
        return make_method_task(**options, local_epochs=6, early_stop_tolerance=early_stop_tolerance)

    expected = assert_equal_outcomes(make)
    assert np.abs(expected["change of item_embedding"]).max() > 1e-2
    own = expected[PERSONAL] - make().private[PERSONAL]
    np.testing.assert_allclose(own, 1.7 / 0.3 * expected["change of item_embedding"], atol=1e-12)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("batch_size", [4, 2048])
@pytest.mark.parametrize("early_stop_tolerance", [0.0, 0.05])
def test_a_table_that_is_drawn_back(batch_size, early_stop_tolerance, optimizer):
    """FedProx: rows that have moved are drawn in steps without samples of theirs, too; without torch."""
    options = {"strategy": "fedprox", "fedprox_mu": 0.7, "learning_rate": 0.3 if optimizer == "sgd" else 0.01}

    def make():
        further = {"batch_size": batch_size, "early_stop_tolerance": early_stop_tolerance, "optimizer": optimizer}
        return make_method_task(**options, **further, local_epochs=6)

    expected = assert_equal_outcomes(make)
    assert np.abs(expected["change of item_embedding"]).max() > 1e-2


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("batch_size", [4, 2048])
@pytest.mark.parametrize("early_stop_tolerance", [0.0, 0.05])
def test_a_table_that_is_moved_along(batch_size, early_stop_tolerance, option):
    """Scaffold: every step corrects rows without samples of theirs, too; without torch."""
    options = {"batch_size": batch_size, "early_stop_tolerance": early_stop_tolerance, "local_epochs": 6}

    def sent(backend):
        task, device = with_variates(make_task(lengths=SIZES, learning_rate=0.05, **options), option, random=1)
        return trained(task, device, backend) | task.private

    expected, found = sent("loop"), sent("numba")
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=0, atol=1e-10, err_msg=name)
    assert np.abs(expected["item_embedding"]).max() > 1e-2


@pytest.mark.parametrize("further", [{"weight_decay": 0.1}, {"optimizer": "adam"}, {"backbone": "ncf"}], ids=str)
def test_what_else_is_moved_along_is_left_to_torch(further):
    task, _ = with_variates(make_task(lengths=SIZES, **further), "II", random=1)
    assert not compiled.fits(task)


@pytest.mark.parametrize("further", [{"weight_decay": 0.1}, {"backbone": "ncf"}], ids=str)
def test_what_else_is_drawn_back_is_left_to_torch(further):
    assert not compiled.fits(make_method_task(strategy="fedprox", fedprox_mu=0.7, **further))


def test_decay_of_a_row_without_samples_by_hand():
    """lr = 1/2, decay = 1/5, one sample less than a batch, three epochs: a factor of (1 - 1/10)^3 = .729."""
    task = task_of([([2], [5]), ([], [])], learning_rate=0.5, weight_decay=0.2, local_epochs=3)
    before = task.shared["item_embedding"].copy()
    (changes,) = list(BACKENDS["numba"](task))
    change = changes.by_item["item_embedding"].reshape(2, 12, 3)
    outside = [item for item in range(12) if item not in (2, 5)]
    np.testing.assert_allclose(change[0, outside], (0.729 - 1) * before[outside], atol=1e-15)
    np.testing.assert_array_equal(change[1], 0)  # a user without samples takes no step
    assert np.abs(change[0, [2, 5]] - (0.729 - 1) * before[[2, 5]]).min() > 1e-3


def test_a_decay_that_empties_the_table():
    """lr · decay = 1: every step leaves nothing of a row but the gradient's part, and of other rows nothing."""
    options = {"learning_rate": 0.5, "user_learning_rate": 0.1, "weight_decay": 2.0, "batch_size": 4}
    expected = assert_equal_outcomes(lambda: make_task(lengths=SIZES, **options))
    start = make_task(lengths=SIZES, **options).shared["item_embedding"]
    np.testing.assert_allclose(expected["change of item_embedding"][0, -1], -start[-1])


@pytest.mark.parametrize("batch_size", [4, 16, 2048])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_stopping_early_is_stopping_after_the_epoch_that_changed_little(batch_size, weight_decay):
    """The rule, applied to the losses of runs of 1, 2, … 9 epochs without it, says where each user stops."""
    tolerance, longest = 0.1, 9

    def run(**options):
        given = {"batch_size": batch_size, "weight_decay": weight_decay, "user_learning_rate": 0.0, **options}
        task = make_task(lengths=SIZES, learning_rate=0.3, **given)
        task.private["user_embedding"][:] *= 10
        task.shared["item_embedding"][:] *= 10
        return outcome(task, "numba")

    runs = [run(local_epochs=epochs) for epochs in range(1, longest + 1)]
    losses = np.array([run["loss"] for run in runs])
    found = run(local_epochs=longest, early_stop_tolerance=tolerance)
    stops = []
    for user, size in enumerate(SIZES):
        little = np.abs(np.diff(losses[:, user])) <= tolerance * np.abs(losses[:-1, user])
        stop = int(np.flatnonzero(little)[0]) + 1 if little.any() else longest - 1
        stops.append(stop)
        for name, values in runs[stop].items():
            np.testing.assert_allclose(found[name][user], values[user], rtol=0, atol=1e-12, err_msg=f"{name} {size}")
    assert len(set(stops)) > 2


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("embedding_size", [1, 3, 16, 37])
@pytest.mark.parametrize("batch_size", [2, 2048])
def test_every_embedding_size(optimizer, embedding_size, batch_size):
    rows = [([0, 1, 2], [3, 4, 5, 6, 3, 7, 8, 9]), ([11], [0])]
    # Adam turns the rounding of gradients near its ε into more than the last digits.
    assert_equal_outcomes(
        lambda: task_of(rows, embedding_size, optimizer=optimizer, batch_size=batch_size, local_epochs=3),
        tolerance=1e-8 if optimizer == "adam" else 1e-10,
    )


items = st.lists(st.integers(0, 11), max_size=9)


@settings(max_examples=60)
@given(
    users=st.lists(st.tuples(items.map(lambda drawn: sorted(set(drawn))), items), min_size=1, max_size=4),
    batch_size=st.integers(1, 20),
    weight_decay=st.sampled_from([0.0, 0.2]),
    tolerance=st.sampled_from([0.0, 0.05]),
)
def test_any_users(users, batch_size, weight_decay, tolerance):
    """Repeated samples, items that are positive and negative at once, empty users: equal to the loop."""
    options = {"batch_size": batch_size, "weight_decay": weight_decay, "early_stop_tolerance": tolerance}
    assert_equal_outcomes(lambda: task_of(users, learning_rate=0.3, local_epochs=4, **options))


def test_blocks_of_users_do_not_matter(monkeypatch):
    for weight_decay in (0.0, 0.1):
        options = {"lengths": SIZES, "batch_size": 16, "weight_decay": weight_decay}
        whole = outcome(make_task(**options), "numba")
        with monkeypatch.context() as patched:
            patched.setattr(compiled, "BLOCK_BYTES", 2000)
            parts = outcome(make_task(**options), "numba")
            assert len(list(BACKENDS["numba"](make_task(**options)))) > 3
        for name, values in whole.items():
            np.testing.assert_array_equal(parts[name], values)


@pytest.mark.parametrize("flushed", [False, True])
def test_the_thread_keeps_its_way_with_tiny_numbers(flushed):
    def tiny_are_zero():
        return bool(np.float64(1e-310) * np.float64(1.0) == 0)

    if not torch.set_flush_denormal(flushed):
        pytest.skip("this processor has no such mode")
    try:
        for _ in BACKENDS["numba"](make_task(lengths=SIZES, optimizer="adam")):
            assert tiny_are_zero() == flushed
        with flushed_denormals():
            assert tiny_are_zero()
        assert tiny_are_zero() == flushed
    finally:
        torch.set_flush_denormal(False)


def test_adam_on_samples_that_are_fitted_beyond_precision():
    """Logits of ±120 in float32: gradients of e^-120 are nothing, their squares less, and nothing is not finite."""
    task = task_of([([0, 1], [2, 3])], embedding_size=4, dtype=np.float32, optimizer="adam", local_epochs=20)
    task.private["user_embedding"][:] = 10.0
    task.shared["item_embedding"][[0, 1]], task.shared["item_embedding"][[2, 3]] = 3.0, -3.0
    (changes,) = list(BACKENDS["numba"](task))
    np.testing.assert_array_equal(changes.by_item["item_embedding"], 0)
    assert changes.loss[0] < 1e-30


def test_a_keyed_order_cuts_the_same_batches_as_the_kernel():
    """A positive and a negative in batches of one: two plain steps, in the order that `batch_order` says."""
    task = task_of([([0], [1])], batch_size=1, local_epochs=1, learning_rate=0.5, user_learning_rate=0.5)
    order = batch_order(task.users, np.array([2]), task.draws, task.round, 0, 1)
    p, table = task.private["user_embedding"][0].copy(), task.shared["item_embedding"].copy()
    for sample in order:
        item, label = (0, 1.0) if sample == 0 else (1, 0.0)
        slope = 1 / (1 + np.exp(-p @ table[item])) - label
        step, table[item] = 0.5 * slope * table[item], table[item] - 0.5 * slope * p
        p -= step
    for _ in BACKENDS["numba"](task):
        pass
    np.testing.assert_allclose(task.private["user_embedding"][0], p, atol=1e-14)
