"""Local training: the stacked backend equals the loop, and the loop equals a step taken by hand."""

import math

import numpy as np
import pytest

from bouquet.arrays import initial_private, initial_shared
from bouquet.config import ModelOptions, TrainingOptions
from bouquet.ragged import Ragged
from bouquet.randomness import SeededDraws, user_keys
from client_app.training import BACKENDS, LocalTask, compiled, stacked, task
from client_app.training.task import batch_order
from models import BACKBONES
from models.sequence import SequenceBackbone
from tests.client_app.method_tasks import outcome

NUM_ITEMS = 60
# Backbones of a user and an item; those that read sequences are in test_sequences.py.
PAIRWISE = sorted(name for name, backbone in BACKBONES.items() if not issubclass(backbone, SequenceBackbone))


def make_task(
    *,
    lengths,
    personal=False,
    seed=0,
    dtype=np.float64,
    backbone="mf",
    num_items=NUM_ITEMS,
    size=4,
    own=None,
    **options,
):
    """Users with the given numbers of positives and four negatives each, which may repeat.

    With `personal` every user has a model of its own, whose change is reported too; or only some of its arrays.
    """
    random = np.random.default_rng(seed)
    model = BACKBONES[backbone](num_items, ModelOptions(embedding_size=size, init_scale=0.1), own)
    lengths = np.array(lengths)
    drawn = [random.choice(num_items // 2, size, replace=False) for size in lengths]
    users = user_keys([str(i) for i in range(len(lengths))])
    shared = initial_shared(model.shared, seed)
    spec = model.private["user_embedding"]
    private = {"user_embedding": initial_private("user_embedding", spec, seed, users).astype(dtype)}
    kept = set(model.shared) if personal is True else set(personal or ())
    for name in kept:
        private[name] = np.repeat(shared.pop(name)[None], len(lengths), axis=0).astype(dtype)
    return LocalTask(
        backbone=model,
        options=TrainingOptions(**{"learning_rate": 0.05, "local_epochs": 3, **options}),
        users=users,
        round=2,
        draws=SeededDraws(seed),
        positives=Ragged.from_lengths(lengths, np.concatenate(drawn) if len(drawn) else []),
        negatives=Ragged.from_lengths(4 * lengths, random.integers(num_items // 2, num_items, 4 * lengths.sum())),
        shared=shared,
        private=private,
        reported=frozenset(kept),
        dtype=dtype,
    )


SIZES = [1, 14, 3, 0, 9, 2, 2, 29, 7, 1, 5, 11]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("batch_size", [16, 2048])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize("personal", [False, True], ids=["shared model", "own model"])
@pytest.mark.parametrize("backbone", PAIRWISE)
@pytest.mark.parametrize("fast", sorted(BACKENDS.keys() - {"loop"}))
def test_fast_backends_equal_the_loop(fast, backbone, optimizer, batch_size, weight_decay, personal):
    """Users of very different sizes, users without batches left, a user without samples: equal to 1e-10."""
    options = {
        "backbone": backbone,
        "network_weight_decay": weight_decay / 2,
        "lengths": SIZES,
        "personal": personal,
        "optimizer": optimizer,
        "batch_size": batch_size,
        "weight_decay": weight_decay,
        "user_learning_rate": 0.3,
        "learning_rate_decay": 0.9,
    }
    expected, found = (outcome(make_task(**options), backend) for backend in ("loop", fast))
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=0, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("backend", sorted(BACKENDS))
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_shard_is_its_users(backend, optimizer, monkeypatch):
    """K users together give what each gives alone; small chunks, so that there are several."""
    monkeypatch.setattr(stacked, "CHUNK_VALUES", 300)
    options = {"optimizer": optimizer, "batch_size": 16}
    together_task = make_task(lengths=SIZES, **options)
    together = outcome(together_task, backend)
    for user in range(len(SIZES)):
        task = make_task(lengths=SIZES, **options)
        alone = LocalTask(
            **{
                **vars(task),
                "users": task.users[[user]],
                "positives": task.positives.take([user]),
                "negatives": task.negatives.take([user]),
                "private": {name: values[[user]] for name, values in task.private.items()},
            }
        )
        for name, values in outcome(alone, backend).items():
            np.testing.assert_allclose(values[0], together[name][user], rtol=0, atol=1e-12, err_msg=f"{name} {user}")


@pytest.mark.parametrize("backend", sorted(BACKENDS))
def test_one_step_by_hand(backend):
    """One user, p = (1, 0), one positive item with q = (0, 1), one negative with q' = (1, 0), lr = 1, one epoch.

    Logits: z = p·q = 0 and z' = p·q' = 1. The mean loss of N = 2 samples has
        dL/dz = (σ(0) - 1)/2 = -1/4,    dL/dz' = σ(1)/2 = s/2 with s = 0.731059.
    So Δq = -dL/dz p = (1/4, 0), Δq' = -(s/2) p = (-s/2, 0), Δp = 1/4 q - s/2 q' = (-s/2, 1/4), and
        L = (log 2 + log(1 + e)) / 2.
    """
    backbone = BACKBONES["mf"](5, ModelOptions(embedding_size=2))
    table = np.zeros((5, 2), dtype=np.float32)
    table[3], table[1] = (0, 1), (1, 0)
    task = LocalTask(
        backbone=backbone,
        options=TrainingOptions(learning_rate=1.0, user_learning_rate=0.0, local_epochs=1),
        users=user_keys(["u"]),
        round=1,
        draws=SeededDraws(0),
        positives=Ragged.from_lengths([1], [3]),
        negatives=Ragged.from_lengths([1], [1]),
        shared={"item_embedding": table},
        private={"user_embedding": np.array([[1.0, 0.0]])},
        dtype=np.float64,
    )
    (changes,) = list(BACKENDS[backend](task))
    s = 1 / (1 + math.exp(-1))
    assert list(changes.rows.values) == [1, 3]
    np.testing.assert_allclose(changes.by_item["item_embedding"], [[-s / 2, 0], [0.25, 0]], atol=1e-12)
    np.testing.assert_allclose(task.private["user_embedding"], [[1 - s / 2, 0.25]], atol=1e-12)
    np.testing.assert_allclose(changes.loss, [(math.log(2) + math.log(1 + math.e)) / 2], atol=1e-12)
    assert np.array_equal(table[3], [0, 1]), "the array that came from the server must not change"


@pytest.mark.parametrize("backbone", PAIRWISE)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("batch_size", [16, 2048])
@pytest.mark.parametrize("fast", sorted(BACKENDS.keys() - {"loop"}))
def test_early_stop_is_each_users_own(fast, batch_size, optimizer, backbone):
    """Some users stop after two epochs, some go on: the same in every backend, and not what all epochs give."""
    options = {
        "lengths": SIZES,
        "backbone": backbone,
        "optimizer": optimizer,
        "batch_size": batch_size,
        "local_epochs": 8,
        "early_stop_tolerance": 0.15,
    }
    expected, found = (outcome(make_task(**options), backend) for backend in ("loop", fast))
    # Over eight epochs Adam turns the rounding of gradients near its ε into more than the last digits.
    tolerance = 1e-10 if optimizer == "sgd" else 1e-5
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=0, atol=tolerance, err_msg=name)
    whole = outcome(make_task(**{**options, "early_stop_tolerance": 0.0}), "loop")
    differs = np.abs(whole["user_embedding"] - expected["user_embedding"]).max(axis=1) > 1e-9
    assert differs.any()


def test_early_stop_by_hand():
    """No epoch changes the loss by more than the whole of it, so with a tolerance of 1 two epochs are run."""
    options = {"lengths": [5], "learning_rate": 1e-3}
    stopped = outcome(make_task(**options, local_epochs=8, early_stop_tolerance=1.0), "loop")
    two = outcome(make_task(**options, local_epochs=2), "loop")
    np.testing.assert_array_equal(stopped["user_embedding"], two["user_embedding"])


def test_only_touched_items_are_in_an_update():
    task = make_task(lengths=[5])
    (changes,) = list(BACKENDS["torch"](task))
    touched = set(task.positives.row(0)) | set(task.negatives.row(0))
    assert set(changes.rows.values) == touched


def test_batch_order_is_a_permutation_that_depends_on_the_user_alone():
    users, lengths = user_keys(["a", "b", "c"]), np.array([5, 0, 9])
    order = batch_order(users, lengths, draws=SeededDraws(1), round_=3, epoch=0, batch_size=2)
    assert sorted(order[:5]) == list(range(5))
    assert sorted(order[5:]) == list(range(9))
    alone = [
        batch_order(users[2:], lengths[2:], draws=SeededDraws(1), round_=3, epoch=epoch, batch_size=2)
        for epoch in (0, 1)
    ]
    assert np.array_equal(order[5:], alone[0])
    assert not np.array_equal(order[5:], alone[1])


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_batches_are_the_same_with_and_without_compiled_code(batch_size, monkeypatch):
    users, lengths = user_keys([str(i) for i in range(30)]), np.arange(30) * 13
    arguments = {"draws": SeededDraws(1), "round_": 3, "epoch": 2, "batch_size": batch_size}
    compiled = batch_order(users, lengths, **arguments)
    monkeypatch.setattr(task, "batch_kernels", lambda: None)
    plain = batch_order(users, lengths, **arguments)
    starts = np.cumsum(lengths) - lengths
    for start, length in zip(starts, lengths, strict=True):
        for begin in range(start, start + length, batch_size):
            end = min(begin + batch_size, start + length)
            assert set(compiled[begin:end]) == set(plain[begin:end])


def test_without_numba_numpy_trains_and_one_line_says_so(monkeypatch, capsys):
    monkeypatch.setattr(compiled, "kernels", lambda: None)
    compiled._say_once.cache_clear()
    expected, found = (outcome(make_task(lengths=SIZES), backend) for backend in ("numpy", "numba"))
    for _ in BACKENDS["numba"](make_task(lengths=[3])):
        pass
    np.testing.assert_array_equal(found["change of item_embedding"], expected["change of item_embedding"])
    said = 'numba is not installed: pip install "bouquet[numba]". '
    assert capsys.readouterr().err == f"{said}Without it nodes of many users train about ten times slower.\n"


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_single_precision_is_close_to_the_oracle(optimizer):
    """The kernels' float32 exponential is a polynomial: still within float32 of the loop in float64."""
    options = {"lengths": SIZES, "optimizer": optimizer, "batch_size": 16, "learning_rate": 0.5}
    expected = outcome(make_task(**options), "loop")
    found = outcome(make_task(**options, dtype=np.float32), "numba")
    tolerance = 1e-6 if optimizer == "sgd" else 2e-3  # Adam turns rounding of gradients near zero into whole steps
    np.testing.assert_allclose(found["change of item_embedding"], expected["change of item_embedding"], atol=tolerance)
    np.testing.assert_allclose(found["loss"], expected["loss"], atol=tolerance)


def test_the_result_does_not_depend_on_the_number_of_threads(monkeypatch):
    results = []
    for count in (1, 2, 5):
        monkeypatch.setenv("OMP_NUM_THREADS", str(count))
        results.append(outcome(make_task(lengths=SIZES, batch_size=16), "numba"))
    for other in results[1:]:
        for name, values in results[0].items():
            np.testing.assert_array_equal(other[name], values)
