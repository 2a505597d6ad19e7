"""The device side of GPFedRec: where training starts, what it is drawn to, and what a device recommends with."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bouquet.config import ModelOptions, RunConfig
from bouquet.errors import WireError
from bouquet.methods.gpfedrec import GPFedRecOptions
from client_app.personalization.gpfedrec import GuidedTable, specific
from client_app.personalization.round import Given
from client_app.training import BACKENDS
from models import BACKBONES
from tests.client_app.method_tasks import outcome
from tests.client_app.test_training import PAIRWISE, SIZES, make_task

TABLE = "item_embedding"
NOBODY = np.zeros(2, dtype=bool)


def method(backbone="mf", **options):
    model = BACKBONES[backbone](3, ModelOptions(embedding_size=2))
    return GuidedTable(model, RunConfig(), GPFedRecOptions(**options))


def given():
    return Given({TABLE: np.full((3, 2), 4, np.float32)}, {"user_embedding": np.zeros((2, 2), np.float32)})


def personal():
    return {TABLE: np.stack([np.full((3, 2), 1, np.float32), np.full((3, 2), -2, np.float32)])}


def test_training_starts_from_the_common_table_and_is_drawn_to_ones_own():
    """C = 4, D = 1 and -2: R = 5 and 2."""
    started = method().start(given(), personal(), NOBODY)
    assert (started.shared[TABLE] == 4).all()
    assert started.anchors[specific(TABLE)][:, 0, 0].tolist() == [5, 2]
    assert method(gpfedrec_lambda=0.0).start(given(), {}, NOBODY).anchors == {}


def test_a_device_recommends_with_what_it_tuned_or_with_what_its_neighbours_made():
    assert method().tuned == {TABLE}
    plain = given()
    assert method().deploy(plain, {}, NOBODY) is plain
    deployed = method(gpfedrec_evaluate="user-specific").deploy(given(), personal(), NOBODY)
    assert deployed.own[TABLE][:, 0, 0].tolist() == [5, 2]
    assert TABLE not in deployed.shared
    assert method(gpfedrec_evaluate="user-specific").tuned == frozenset()


@pytest.mark.parametrize("wrong", [{}, {TABLE: np.zeros((2, 3, 3), np.float32)}, {TABLE: np.zeros((2, 3, 2))}])
def test_a_message_without_the_users_tables_is_refused(wrong):
    with pytest.raises(WireError, match=r"'item_embedding' should be float32 \[3, 2\] of each user"):
        method().start(given(), wrong, NOBODY)


def test_the_distance_by_hand():
    """λ ‖Q - R‖² with λ = 0.5 and Q - R = (1, 2; 0, 0; 0, 2): 0.5 * (1 + 4 + 4) = 4.5."""
    arrays = {TABLE: torch.tensor([[[1.0, 2.0], [0.0, 0.0], [0.0, 2.0]]]), specific(TABLE): torch.zeros(1, 3, 2)}
    assert method(gpfedrec_lambda=0.5).penalty(arrays, arrays, None, None).tolist() == [4.5]


def test_the_gradient_by_hand_is_that_of_autograd():
    device, random = method(gpfedrec_lambda=0.7), torch.Generator().manual_seed(0)
    arrays = {name: torch.randn(4, 3, 2, generator=random, dtype=torch.float64) for name in (TABLE, specific(TABLE))}
    table = arrays[TABLE].requires_grad_()
    (expected,) = torch.autograd.grad(device.penalty(arrays, arrays, None, None).sum(), table)
    seen, pull = device.forward(arrays, None, None)
    assert seen is arrays
    other = torch.randn(4, 3, 2, generator=random, dtype=torch.float64)
    torch.testing.assert_close(pull({TABLE: other})[TABLE], other + expected)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("batch_size", [10, 2048])
@pytest.mark.parametrize("backbone", PAIRWISE)
def test_training_is_the_same_in_every_backend(backbone, batch_size, optimizer):
    """Users of different sizes, one of them without samples: nothing is drawn where nothing is trained."""

    def task():
        made = make_task(
            lengths=SIZES, batch_size=batch_size, backbone=backbone, optimizer=optimizer, learning_rate=0.01
        )
        device = GuidedTable(made.backbone, RunConfig(), GPFedRecOptions(gpfedrec_lambda=0.3))
        apart = np.random.default_rng(1).normal(size=(len(SIZES), *made.shared[TABLE].shape))
        anchors = {specific(name): made.shared[name] + apart for name in device.tables}
        return replace(made, anchors=anchors, personalizations=(device,))

    tolerance = 1e-10 if optimizer == "sgd" else 1e-6
    expected = outcome(task(), "loop")
    for backend in BACKENDS.keys() - {"loop"}:
        found = outcome(task(), backend)
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, rtol=0, atol=tolerance, err_msg=name)
    moved = np.abs(expected[f"change of {TABLE}"]).min(axis=(1, 2))
    assert ((moved > 0) == (np.array(SIZES) > 0)).all(), "every row of who trains is drawn, and none of who does not"
