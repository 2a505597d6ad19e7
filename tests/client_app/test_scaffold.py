"""Scaffold: corrected steps and both control variates by hand, in every backend, and over rounds."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from safetensors.numpy import load_file

from bouquet.arrays import ArraySpec
from bouquet.config import ModelOptions, RunConfig
from bouquet.errors import ConfigError
from bouquet.methods.scaffold import ScaffoldOptions
from bouquet.packed import PackedArray
from bouquet.ragged import Ragged
from bouquet.reporting.run_directory import RunDirectory
from bouquet.wire import TrainReply
from client_app.personalization.scaffold import ControlVariates, common, own
from client_app.training import BACKENDS
from models import BACKBONES
from strategies.federation.roster import Roster
from strategies.scaffold import Scaffold
from tests.client_app.test_training import PAIRWISE, SIZES, make_task
from tests.runs.helpers import last_checkpoint, run_here, small_settings, write_histories

TABLE = "item_embedding"


def with_variates(task, option, random=None, c=None, mine=None):
    """The task as a device of Scaffold gets it, and the device."""
    device = ControlVariates(task.backbone, RunConfig(), ScaffoldOptions(scaffold_option=option))
    shared, private, source = dict(task.shared), dict(task.private), np.random.default_rng(random)
    for name, values in task.shared.items():
        shared[common(name)] = source.normal(0, 0.1, values.shape) if c is None else c
        private[own(name)] = source.normal(0, 0.1, (len(task.users), *values.shape)) if mine is None else mine
    return replace(task, shared=shared, private=private, personalizations=(device,)), device


def trained(task, device, backend):
    """[k, …] what each user sends of every array."""
    specs = dict(task.backbone.shared) | device.shared
    found = {name: np.zeros((len(task.users), *spec.shape)) for name, spec in specs.items()}
    for part in partial(device.train, BACKENDS[backend])(task):
        for name, values in part.by_item.items():
            found[name][part.users[part.rows.row_of_value], part.rows.values] += values
        for name, values in part.dense.items():
            found[name][part.users] += values
    return found


def by_hand(option):
    """One positive, item 0 of 3, d = 1, p = 1 (and as good as fixed), q = 0, η = 0.1, 2 steps."""
    task = make_task(lengths=[1], size=1, num_items=3, learning_rate=0.1, user_learning_rate=1e-12, local_epochs=2)
    task.private["user_embedding"][:] = 1
    task.shared[TABLE][:] = 0
    task = replace(task, positives=Ragged.from_lengths([1], [0]), negatives=Ragged.from_lengths([0], []))
    c, mine = np.array([[0.2], [0.1], [-0.1]]), np.array([[[0.05], [0.0], [0.3]]])
    return with_variates(task, option, c=c, mine=mine)


@pytest.mark.parametrize("backend", ["loop", "torch", "numba"])
def test_corrected_steps_and_option_2_by_hand(backend):
    """c - c_u = (0.15, 0.1, -0.4).

    Item 0: 0 - 0.1 (-0.5 + 0.15) = 0.035, then 0.035 - 0.1 (σ(0.035) - 1 + 0.15) = 0.06912509. The others are moved by
    -2 * 0.1 * (c - c_u): -0.02 and 0.08. c_u⁺ of item 0 is the mean of both gradients, (-0.5 - 0.4912509) / 2, and 0 of
    the others, which have none.
    """
    task, device = by_hand("II")
    found = trained(task, device, backend)
    np.testing.assert_allclose(found[TABLE][0, :, 0], [0.06912509, -0.02, 0.08], atol=1e-8)
    np.testing.assert_allclose(task.private[own(TABLE)][0, :, 0], [-0.49562545, 0, 0], atol=1e-8)
    np.testing.assert_allclose(found[common(TABLE)][0, :, 0], [-0.54562545, 0, -0.3], atol=1e-8)


@pytest.mark.parametrize("backend", ["loop", "torch", "numba"])
def test_option_1_by_hand(backend):
    """The same steps; c_u⁺ is the gradient before the first, σ(0) - 1."""
    task, device = by_hand("I")
    found = trained(task, device, backend)
    np.testing.assert_allclose(found[TABLE][0, :, 0], [0.06912509, -0.02, 0.08], atol=1e-8)
    np.testing.assert_allclose(task.private[own(TABLE)][0, :, 0], [-0.5, 0, 0], atol=1e-8)
    np.testing.assert_allclose(task.private["user_embedding"], 1, atol=1e-9)


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("backbone", PAIRWISE)
def test_training_is_the_same_in_every_backend(backbone, option):
    """Several batches, a decay that moves every row and none, epochs that end early; a user without samples keeps all.

    The mean gradient says what training did: w - w^t = -K η (c_u⁺ - c_u + c), of every user and array.
    """
    for extra in ({}, {"weight_decay": 0.01}, {"early_stop_tolerance": 0.05, "local_epochs": 9}):
        options = {"backbone": backbone, "batch_size": 10, "lengths": SIZES, "learning_rate": 0.02, **extra}
        task, device = with_variates(make_task(**options), option, 1)
        before = {name: values.copy() for name, values in task.private.items()}
        expected = trained(task, device, "loop")
        nothing = SIZES.index(0)
        for name, values in expected.items():
            assert (values[nothing] == 0).all(), name
        for name in device.corrected:
            np.testing.assert_array_equal(task.private[own(name)][nothing], before[own(name)][nothing])
            change = task.private[own(name)] - before[own(name)]
            np.testing.assert_allclose(expected[common(name)], change, atol=1e-12)
        for backend in ("torch", "numba"):
            other, _ = with_variates(make_task(**options), option, 1)
            found = trained(other, device, backend)
            for name, values in expected.items():
                np.testing.assert_allclose(found[name], values, rtol=0, atol=1e-9, err_msg=f"{name} {extra}")


def strategy(tmp_path, users):
    method = Scaffold(
        RunConfig(), ScaffoldOptions(server_optimizer="sgd", server_learning_rate=1.0), RunDirectory(tmp_path)
    )
    spec = ArraySpec((2, 1), by_item=True)
    keys = np.arange(users, dtype=np.uint64)
    specs = {"w": spec, "variate_w": spec}
    method.roster = Roster(keys, np.full(users, 2), np.ones(users, np.uint64), 1, 2 * users, 0, 2, "", specs)
    method.prepare()
    return method


def test_a_round_of_the_server_by_hand(tmp_path):
    """Two of N = 4 users sum to 6 and 2 in w, 8 and 4 in c: w moves by their mean, c by a quarter of the sum.

    Four users more join, who have c_u = 0: with nothing new c is half of what it was.
    """
    method, array = strategy(tmp_path, 4), np.array([[1], [1]], np.float32)

    def of(w, c, count):
        users = np.arange(count, dtype=np.uint64)
        sums = {"w": PackedArray(None, np.array(w, float)), "variate_w": PackedArray(None, np.array(c, float))}
        return TrainReply(users, np.zeros(count, np.float32), np.zeros(count, np.int64), sums=sums, weight=float(count))

    found = method.aggregate(1, {"w": array, "variate_w": array}, [of([[6], [2]], [[8], [4]], 2)], [np.array([0, 1])])
    assert found["w"].ravel().tolist() == [4, 2]
    assert found["variate_w"].ravel().tolist() == [3, 2]
    method.roster = strategy(tmp_path, 8).roster
    later = method.aggregate(2, found, [of([[0], [0]], [[0], [0]], 2)], [np.array([0, 1])])
    assert later["variate_w"].ravel().tolist() == [1.5, 1]
    assert method.extra_arrays()["count"] == 8


def test_while_all_variates_are_0_it_is_the_plain_mean(tmp_path):
    """The first round, in which nothing corrects anything: FCF, but for the rounding of another backend."""
    runs = [
        run_here(tmp_path / name, small_settings(tmp_path, strategy=name, num_server_rounds=1, checkpoint_every=1), 2)
        for name in ("scaffold", "fcf")
    ]
    tables = [last_checkpoint(run).shared[TABLE] for run in runs]
    np.testing.assert_allclose(*tables, atol=2e-5)
    assert np.abs(last_checkpoint(runs[0]).shared[common(TABLE)]).max() > 1e-5


@pytest.mark.parametrize("option", ["I", "II"])
def test_of_one_user_alone_nothing_is_corrected(tmp_path, option):
    """c is the mean over one user, so c - c_u = 0 in every round: FCF."""
    write_histories(tmp_path / "data.csv", [[3, 1, 4, 0, 5, 2, 6]])
    chosen = {"server_optimizer": "sgd", "server_learning_rate": 1.0, "scaffold_option": option}
    runs = [run_here(tmp_path / n, small_settings(tmp_path, strategy=n, **chosen), 1) for n in ("scaffold", "fcf")]
    np.testing.assert_allclose(*(last_checkpoint(run).shared[TABLE] for run in runs), atol=1e-6)


def test_the_common_variate_is_the_mean_of_the_users(tmp_path):
    """However few train in a round: of those who have not yet it is 0."""
    settings = small_settings(tmp_path, strategy="scaffold", fraction_train=0.3, num_server_rounds=4)
    directory = run_here(tmp_path / "run", settings, 1)
    checkpoint = last_checkpoint(directory)
    (folder,) = (directory.path / "nodes").glob("*/node-0-of-1")
    kept, index = np.load(folder / f"{own(TABLE)}.npy"), load_file(folder / "index.safetensors")
    version_of = dict(zip(checkpoint.users.tolist(), checkpoint.versions.tolist(), strict=True))
    versions = np.array([version_of[user] for user in index["users"].tolist()])
    assert 0 < (versions > 0).sum() < len(versions)
    slots = (index["rounds"] == versions).argmax(axis=0)
    mine = kept[slots, np.arange(len(versions))] * (versions > 0)[:, None, None]
    np.testing.assert_allclose(checkpoint.shared[common(TABLE)], mine.mean(axis=0), atol=1e-7)


@pytest.mark.parametrize(
    ("run", "words"), [({"optimizer": "adam"}, "take optimizer = 'sgd'"), ({"decoy_rows": 3}, "leave them out")]
)
def test_settings_that_cannot_be_used_are_refused(run, words):
    with pytest.raises(ConfigError, match=words):
        ScaffoldOptions().check_run(RunConfig(**run))


def test_networks_that_stay_have_no_variates():
    model = BACKBONES["ncf"](3, ModelOptions(embedding_size=2))
    device = ControlVariates(model, RunConfig(backbone="ncf", exchange="embedding"), ScaffoldOptions())
    assert device.shared.keys() == {common(TABLE)}
