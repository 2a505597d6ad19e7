"""Training on sequences: the stacked backend equals the loop, which equals one step taken by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from bouquet.arrays import initial_shared
from bouquet.config import ModelOptions, Options, RunConfig, TrainingOptions
from bouquet.methods.fedca import FedCAOptions
from bouquet.ragged import Ragged
from bouquet.randomness import SeededDraws, user_keys
from client_app.personalization.base import Personalization
from client_app.personalization.fedca import MixedTable
from client_app.personalization.round import Batch
from client_app.training import BACKENDS, LocalTask, stacked
from client_app.training.sequences import Dropout, newest, sequence_batch
from models import BACKBONES
from models.sequence import SequenceBackbone, SequenceOptions
from tests.client_app.method_tasks import outcome

NAMES = sorted(name for name, backbone in BACKBONES.items() if issubclass(backbone, SequenceBackbone))
NUM_ITEMS = 60
SIZES = [1, 9, 3, 0, 30, 2, 2, 14]


def make_task(*, backbone="gru4rec", lengths=SIZES, own="network", dropout=0.3, max_length=12, repeats=True, **options):
    """Users with the given numbers of events, repeats among them, and two negatives each.

    `own` says which arrays every user has a version of: nothing, the "network", or "everything".
    """
    random = np.random.default_rng(0)
    model = BACKBONES[backbone](
        NUM_ITEMS,
        ModelOptions(embedding_size=4, init_scale=0.5),
        SequenceOptions(max_length=max_length, dropout=dropout),
    )
    lengths = np.array(lengths)
    drawn = [random.choice(NUM_ITEMS // 2, size, replace=repeats) for size in lengths]
    shared = initial_shared(model.shared, 0)
    names = {"nothing": [], "network": [n for n in shared if n != "item_embedding"], "everything": list(shared)}[own]
    private = {name: np.repeat(shared.pop(name)[None], len(lengths), axis=0).astype(np.float64) for name in names}
    for values in private.values():
        values += 0.1 * random.standard_normal(values.shape)
    return LocalTask(
        backbone=model,
        options=TrainingOptions(**{"learning_rate": 0.2, "local_epochs": 3, **options}),
        users=user_keys([str(i) for i in range(len(lengths))]),
        round=2,
        draws=SeededDraws(0),
        positives=Ragged.from_lengths(lengths, np.concatenate(drawn)),
        negatives=Ragged.from_lengths(2 * lengths, random.integers(NUM_ITEMS // 2, NUM_ITEMS, 2 * lengths.sum())),
        shared=shared,
        private=private,
        reported=frozenset(names) if own == "everything" else frozenset(),
        dtype=np.float64,
    )


def assert_equal(found, expected, tolerance=1e-10):
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("backbone", NAMES)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("own", ["nothing", "network", "everything"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_stacked_users_equal_the_loop(backbone, optimizer, own, weight_decay):
    """Users of very different lengths, one with a single item, one without any, one cut to the newest 12 + 1."""
    options = {"backbone": backbone, "optimizer": optimizer, "own": own, "weight_decay": weight_decay}
    if optimizer == "adam":
        options["learning_rate"] = 0.01
    expected, found = (outcome(make_task(**options), backend) for backend in ("loop", "torch"))
    assert_equal(found, expected)
    assert np.isfinite(expected["loss"]).sum() == sum(size > 1 for size in SIZES)
    assert np.abs(expected["change of item_embedding"][4]).max() > 1e-3


@pytest.mark.parametrize("backbone", NAMES)
def test_a_stop_before_the_last_epoch_is_each_users_own(backbone):
    options = {"backbone": backbone, "local_epochs": 8, "early_stop_tolerance": 0.05, "own": "nothing"}
    expected, found = (outcome(make_task(**options), backend) for backend in ("loop", "torch"))
    assert_equal(found, expected)
    whole = outcome(make_task(**{**options, "early_stop_tolerance": 0.0}), "loop")
    assert np.abs(whole["loss"] - expected["loss"])[np.array(SIZES) > 1].max() > 1e-9


@pytest.mark.parametrize("backbone", NAMES)
@pytest.mark.parametrize("backend", ["loop", "torch"])
def test_a_shard_is_its_users(backbone, backend, monkeypatch):
    """What a user gets does not depend on its company, dropout included; small chunks, so that there are several."""
    monkeypatch.setattr(stacked, "SEQUENCE_CHUNK_VALUES", 2000)
    together = outcome(make_task(backbone=backbone), backend)
    for user in range(len(SIZES)):
        task = make_task(backbone=backbone)
        alone = replace(
            task,
            users=task.users[[user]],
            positives=task.positives.take([user]),
            negatives=task.negatives.take([user]),
            private={name: values[[user]] for name, values in task.private.items()},
        )
        for name, values in outcome(alone, backend).items():
            np.testing.assert_allclose(values[0], together[name][user], rtol=0, atol=1e-12, err_msg=f"{name} {user}")


class HalfTable(Personalization):
    """A method that shows the backbone half of every row and pulls the items of a batch towards 0."""

    def view(self, arrays, working):
        return {**arrays, "item_embedding": 0.5 * arrays["item_embedding"]}

    def penalty(self, arrays, seen, batch, working):
        rows = batch.pick(arrays["item_embedding"])
        return (batch.samples.unsqueeze(2) * rows.square()).sum(dim=(1, 2))


@pytest.mark.parametrize("backbone", NAMES)
def test_personalizations_see_the_entries_of_a_sequence(backbone):
    outcomes = []
    for backend in ("loop", "torch"):
        task = make_task(backbone=backbone)
        method = HalfTable(task.backbone, RunConfig(), Options())
        outcomes.append(outcome(replace(task, personalizations=(method,)), backend))
    assert_equal(outcomes[1], outcomes[0])
    plain = outcome(make_task(backbone=backbone), "loop")
    assert np.abs(plain["change of item_embedding"] - outcomes[0]["change of item_embedding"]).max() > 1e-3


@pytest.mark.parametrize("backbone", NAMES)
def test_fedca_trains_whole_models_of_each_user(backbone):
    """Its proximal term reads every row; nothing in it may expect a dot product of a user with an item."""
    outcomes = []
    for backend in ("loop", "torch"):
        task = make_task(backbone=backbone, own="everything")
        method = MixedTable(task.backbone, RunConfig(strategy="fedca"), FedCAOptions(fedca_proximal=0.1))
        anchors = {f"aggregate/{name}": 0.9 * values for name, values in task.private.items()}
        outcomes.append(outcome(replace(task, personalizations=(method,), anchors=anchors), backend))
    assert_equal(outcomes[1], outcomes[0])


class Echo(SequenceBackbone):
    """A network without weights: h_t is the embedding of s_t itself."""

    sites = 1

    def network(self):
        return {}

    def states(self, shared, embedded, drop=None):
        return embedded


def echo_task(lengths, positives, negatives, table, **changes):
    backbone = Echo(len(table), ModelOptions(embedding_size=table.shape[1]), SequenceOptions(max_length=2, dropout=0.0))
    return LocalTask(
        backbone=backbone,
        options=TrainingOptions(learning_rate=1.0, local_epochs=1),
        users=user_keys([str(i) for i in range(len(lengths))]),
        round=1,
        draws=SeededDraws(0),
        positives=Ragged.from_lengths(lengths, positives),
        negatives=Ragged.from_lengths(np.array(lengths), negatives),
        shared={"item_embedding": table},
        private={},
        dtype=np.float64,
        **changes,
    )


@pytest.mark.parametrize("backend", ["loop", "torch"])
def test_one_step_by_hand(backend):
    """A network that gives back its input; items 0, 1 with q_0 = 1, q_1 = 2 (d = 1), item 2 with q_2 = -1 the negative.

    One user saw 0, then 1, so the state is q_0, the positive 1 and the negative 2: z = q_0 q_1 = 2, z' = q_0 q_2 = -1.
    The mean loss of N = 2 samples has slopes s = (σ(2) - 1)/2 and s' = σ(-1)/2, so with lr = 1
        Δq_0 = -(s q_1 + s' q_2) = -2 s + s',   Δq_1 = -s q_0 = -s,   Δq_2 = -s' q_0 = -s',
    and L = (log(1 + e^-2) + log(1 + e^-1)) / 2. The negative that was drawn for item 0, item 3, is not used.
    """
    table = np.array([[1.0], [2.0], [-1.0], [5.0]], dtype=np.float32)
    (changes,) = list(BACKENDS[backend](echo_task([2], [0, 1], [3, 2], table)))
    s, t = (1 / (1 + math.exp(-2)) - 1) / 2, 1 / (1 + math.exp(1)) / 2
    assert list(changes.rows.values) == [0, 1, 2]
    np.testing.assert_allclose(changes.by_item["item_embedding"], [[-2 * s + t], [-s], [-t]], atol=1e-12)
    np.testing.assert_allclose(changes.loss, [(math.log(1 + math.exp(-2)) + math.log(1 + math.exp(-1))) / 2])


def test_the_batch_of_three_users_by_hand():
    """max-length 2, one negative per positive. Events 4 5 6 7 keep 5 6 7; a single event has nothing to predict.

    User 0: rows 5 6 7 20 21 are 0 to 4; inputs 5 6; places predict 6 (negative 20) and 7 (negative 21).
    User 2: rows 8 9 22; input 8, padded; predicts 9 (negative 22).
    """
    table = np.zeros((30, 1), dtype=np.float32)
    task = newest(echo_task([4, 1, 2], [4, 5, 6, 7, 1, 8, 9], [18, 19, 20, 21, 2, 3, 22], table))
    items = task.items()
    assert [list(items.row(user)) for user in range(3)] == [[5, 6, 7, 20, 21], [], [8, 9, 22]]
    batch = sequence_batch(task, np.arange(3), items, 0, torch.device("cpu"))
    assert batch.inputs.tolist() == [[0, 1], [0, 0], [0, 0]]
    assert batch.rows.tolist() == [[1, 3, 2, 4], [0, 0, 0, 0], [1, 2, 0, 0]]
    assert batch.positive.tolist() == [[1, 0, 1, 0], [0, 0, 0, 0], [1, 0, 0, 0]]
    assert batch.negative.tolist() == [[0, 1, 0, 1], [0, 0, 0, 0], [0, 1, 0, 0]]
    assert batch.size.tolist() == [4, 0, 2]
    assert isinstance(batch, Batch)


def test_dropout_is_a_users_own_and_keeps_the_mean():
    """The same values are dropped in any company and under any padding; the share is p, what is kept is scaled."""
    streams = np.array([1, 2, 3], dtype=np.uint64) << np.uint64(40)
    drop, alone = Dropout(0.3, streams, 4), Dropout(0.3, streams[1:2], 4)
    ones = torch.ones(3, 50, 8, dtype=torch.float64)
    values = drop(ones, 0)
    torch.testing.assert_close(alone(ones[:1, :20], 0)[0], values[1, :20])
    assert not torch.equal(drop(ones, 1), values)
    assert not torch.equal(Dropout(0.3, streams, 5)(ones, 1), values)
    assert sorted(values.unique().tolist()) == pytest.approx([0, 1 / 0.7])
    # 1,200 draws: the share of dropped ones has standard deviation .0132.
    assert float((values == 0).double().mean()) == pytest.approx(0.3, abs=0.05)
    assert torch.equal(Dropout(0.0, streams, 4)(ones, 0), ones)
