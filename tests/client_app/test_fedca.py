"""The device side of FedCA: interpolation, what stands for a user's items, the proximal term, and noise."""

import numpy as np
import pytest
import torch

from bouquet.config import ModelOptions, RunConfig
from bouquet.errors import WireError
from bouquet.methods.fedca import FedCAOptions, interpolate, interpolate_some
from bouquet.ragged import Ragged
from bouquet.randomness import SeededDraws, laplace, streams, user_keys
from client_app.personalization import fedca
from client_app.personalization.fedca import (
    MixedTable,
    gram_matrices,
    left_singular_vectors,
    mean_directions,
    right_singular_vectors,
)
from client_app.personalization.round import Changes, Given
from client_app.training import BACKENDS
from models import BACKBONES
from tests.client_app.method_tasks import outcome
from tests.client_app.test_training import NUM_ITEMS, PAIRWISE, SIZES, make_task

USERS = user_keys(["ann", "bob"])


def method(backbone="mf", num_items=3, size=2, **options):
    model = BACKBONES[backbone](num_items, ModelOptions(embedding_size=size))
    return MixedTable(model, RunConfig(), FedCAOptions(**options))


def table(*rows):
    return np.array(rows, dtype=np.float32)


def test_interpolation_by_hand():
    """rho = 0.75: 0.75 * 4 + 0.25 * 8 = 5 for a user that trained before; a new one takes the aggregate, 8."""
    device = method(fedca_rho=0.75)
    own = np.full((2, 3, 2), 4.0, np.float32)
    given = Given({}, {"item_embedding": own, "user_embedding": np.zeros((2, 2), np.float32)})
    personal = {"item_embedding": np.full((2, 3, 2), 8.0, np.float32)}
    started = device.start(given, personal, np.array([False, True]))
    assert (started.own["item_embedding"][0] == 5).all()
    assert (started.own["item_embedding"][1] == 8).all()
    assert started.reported == {"item_embedding"}
    assert (own == 4).all(), "what is on the disk is not changed"


def test_who_was_not_mixed_goes_on_with_its_own_table():
    """rho = 0.75 and an aggregate of 8 for the second user alone: 4, 0.75 * 4 + 0.25 * 8 = 5, 4; the third is new."""
    own = {
        name: np.full((3, *shape), 4.0, np.float32)
        for name, shape in (("item_embedding", (3, 2)), ("user_embedding", (2,)))
    }
    given = Given({}, own, addressed=np.array([1]))
    personal = {"item_embedding": np.full((1, 3, 2), 8.0, np.float32)}
    for rho, mixed in ((0.75, 5), (0.0, 8)):
        own["item_embedding"] = np.full((3, 3, 2), 4.0, np.float32)
        started = method(fedca_rho=rho, fedca_mix_fraction=0.5).start(given, personal, np.array([False, False, True]))
        assert started.own["item_embedding"][:, 0, 0].tolist() == [4, mixed, 4]
        assert started.reported == {"item_embedding"}
    new = method(fedca_mix_fraction=0.5).start(given, personal, np.array([False, True, False]))
    assert new.own["item_embedding"][:, 0, 0].tolist() == [4, 8, 4]
    with pytest.raises(WireError, match=r"should be float32 \[3, 3, 2\]"):
        method(fedca_proximal=0.1).start(given, personal, np.array([False, False, False]))


@pytest.mark.parametrize("rho", [0.0, 0.3, 1.0])
def test_interpolation_in_place_is_the_same_to_the_bit(rho):
    random = np.random.default_rng(0)
    tables, aggregates = random.normal(size=(2, 4, 9, 5)).astype(np.float32)
    first = np.array([False, True, False, False])
    expected = interpolate(tables, aggregates, rho)
    expected[first], expected[2] = aggregates[first], tables[2]
    interpolate_some(tables, np.array([0, 1, 3]), aggregates[[0, 1, 3]], rho, first)
    np.testing.assert_array_equal(tables, expected)


def test_a_device_recommends_with_the_mixture_or_with_what_it_trained():
    own = np.full((1, 3, 2), 4.0, np.float32)
    given = Given({}, {"item_embedding": own})
    personal = {"item_embedding": np.full((1, 3, 2), 8.0, np.float32)}
    first = np.array([False])
    mixed = method(fedca_rho=0.5, fedca_evaluate="mixed").deploy(given, personal, first)
    assert (mixed.own["item_embedding"] == 6).all()
    trained = method(fedca_rho=0.5, fedca_evaluate="trained").deploy(given, {}, first)
    assert (trained.own["item_embedding"] == 4).all()


@pytest.mark.parametrize("personal", [{}, {"item_embedding": np.zeros((2, 3, 3), np.float32)}])
def test_a_message_without_the_users_tables_is_refused(personal):
    given = Given({}, {"item_embedding": np.zeros((2, 3, 2), np.float32)})
    with pytest.raises(WireError, match=r"'item_embedding' should be float32 \[2, 3, 2\]"):
        method().start(given, personal, np.array([True, True]))


def test_right_vectors_are_those_of_the_singular_value_decomposition():
    """Up to sign, for users with more rows than k, fewer, one, and none."""
    random = np.random.default_rng(0)
    lengths = np.array([9, 2, 1, 0])
    items = Ragged.from_lengths(lengths, np.concatenate([random.choice(20, n, replace=False) for n in lengths]))
    tables = random.normal(size=(4, 20, 5)).astype(np.float32)
    found = right_singular_vectors(tables, items, k=3)
    for user, n in enumerate(lengths):
        expected = np.linalg.svd(tables[user, items.row(user)].astype(float))[2][: min(3, n)]
        cosines = np.abs((found[user, : len(expected)] * expected).sum(axis=1))
        np.testing.assert_allclose(cosines, 1, atol=1e-6)
        assert (found[user, n:] == 0).all()


def test_right_vectors_by_hand():
    """Rows (3, 0), (0, 1), (0, 1): Gram matrix diag(9, 2), so the first vector is e_1 and the second e_2."""
    tables = table((3, 0), (0, 1), (0, 1))[None]
    found = np.abs(right_singular_vectors(tables, Ragged.from_lengths([3], [0, 1, 2]), k=2))
    np.testing.assert_allclose(found[0], [[1, 0], [0, 1]], atol=1e-7)


def test_centred_vectors_forget_the_mean():
    """Rows (10, 1), (10, -1) differ along e_2 only."""
    tables = table((10, 1), (10, -1), (0, 0))[None]
    items = Ragged.from_lengths([2], [0, 1])
    np.testing.assert_allclose(np.abs(right_singular_vectors(tables, items, 1, centred=True))[0, 0], [0, 1], atol=1e-7)
    assert abs(right_singular_vectors(tables, items, 1)[0, 0, 0]) > 0.99


@pytest.mark.parametrize("centred", [False, True])
def test_gram_matrices_are_the_same_compiled_and_not(monkeypatch, centred):
    """Users of 0, 1, 40 and 7 rows; the rows lie far from zero, where a mean costs digits."""
    random = np.random.default_rng(0)
    tables = (5 + random.normal(size=(4, 50, 6))).astype(np.float32)
    lengths = [0, 1, 40, 7]
    items = Ragged.from_lengths(lengths, np.concatenate([random.choice(50, n, replace=False) for n in lengths]))
    compiled = gram_matrices(tables, items, centred=centred)
    monkeypatch.setattr(fedca, "row_kernels", lambda: None)
    np.testing.assert_allclose(compiled, gram_matrices(tables, items, centred=centred), rtol=1e-10, atol=1e-10)
    rows = tables[3, items.row(3)].astype(np.float64)
    rows = rows - rows.mean(axis=0) if centred else rows
    np.testing.assert_allclose(compiled[3], rows.T @ rows, rtol=1e-9, atol=1e-9)


def test_left_vectors_are_padded_to_the_longest_history():
    """Rows (3, 0), (0, 1): σ = 3, 1, so x^1 = ±(1, 0) and x^2 = ±(0, 1), with zeros up to three rows."""
    tables = np.stack([table((3, 0), (0, 1), (0, 0)), table((1, 0), (0, 2), (0, 0.5))])
    items = Ragged.from_lengths([2, 3], [0, 1, 0, 1, 2])
    left = np.abs(left_singular_vectors(tables, items, right_singular_vectors(tables, items, 2)))
    assert left.shape == (2, 2, 3)
    np.testing.assert_allclose(left[0], [[1, 0, 0], [0, 1, 0]], atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(left[1], axis=1), 1, atol=1e-6)


def test_mean_direction_by_hand():
    """Rows (2, 0) and (4, 8): sum (6, 8), direction (0.6, 0.8)."""
    found = mean_directions(table((2, 0), (4, 8), (9, 9))[None], Ragged.from_lengths([2], [0, 1]))
    np.testing.assert_allclose(found, [[[0.6, 0.8]]], atol=1e-7)


def test_the_proximal_term_by_hand():
    """λ ‖Q - Q^g‖² with λ = 0.5 and Q - Q^g = (1, 2; 0, 0; 0, 2): 0.5 * (1 + 4 + 4) = 4.5."""
    device = method(fedca_proximal=0.5)
    arrays = {
        "item_embedding": torch.tensor([[[1.0, 2.0], [0.0, 0.0], [0.0, 2.0]]]),
        "aggregate/item_embedding": torch.zeros(1, 3, 2),
    }
    assert device.penalty(arrays, arrays, None, None).tolist() == [4.5]


@pytest.mark.parametrize("backbone", PAIRWISE)
def test_the_proximal_term_is_the_same_in_every_backend(backbone):
    def task():
        made = make_task(lengths=SIZES, personal=True, batch_size=16, backbone=backbone, learning_rate=0.01)
        device = MixedTable(made.backbone, RunConfig(), FedCAOptions(fedca_proximal=0.3))
        anchors = {f"aggregate/{name}": made.private[name] + 0.1 for name in made.backbone.shared}
        return type(made)(**{**vars_of(made), "anchors": anchors, "personalizations": (device,)})

    expected = outcome(task(), "loop")
    for backend in BACKENDS.keys() - {"loop"}:
        found = outcome(task(), backend)
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, rtol=0, atol=1e-10, err_msg=name)
    plain = outcome(
        make_task(lengths=SIZES, personal=True, batch_size=16, backbone=backbone, learning_rate=0.01), "loop"
    )
    assert not np.allclose(plain["change of item_embedding"], expected["change of item_embedding"])


def vars_of(task):
    return {name: getattr(task, name) for name in task.__dataclass_fields__}


def test_noise_hides_what_was_touched():
    """One row changed; what goes up has noise of the wanted scale on every row, and no zeros."""
    device = method(num_items=400, size=8, fedca_ldp_delta=0.2)
    aggregate = np.zeros((1, 400, 8), np.float32)
    own = aggregate.copy()
    own[0, 7] = 1.0
    given = Given({}, {"item_embedding": own}, anchors={"aggregate/item_embedding": aggregate})
    changes = Changes(np.array([0]), Ragged.from_lengths([1], [7]), {"item_embedding": np.ones((1, 8), np.float32)})
    sent = device.disguise(changes, given, USERS[:1], 3, draws=SeededDraws(5))
    assert sent.rows.lengths.tolist() == [400]
    noise = sent.by_item["item_embedding"] - own[0]
    assert (noise != 0).all()
    # The mean of |x| of Laplace's distribution is its scale; 3,200 draws give it to about 2 %.
    assert np.abs(noise).mean() == pytest.approx(0.2, rel=0.1)
    again = device.disguise(changes, given, USERS[:1], 3, draws=SeededDraws(5))
    np.testing.assert_array_equal(again.by_item["item_embedding"], sent.by_item["item_embedding"])
    other = device.disguise(changes, given, USERS[:1], 4, draws=SeededDraws(5))
    assert (other.by_item["item_embedding"] != sent.by_item["item_embedding"]).all()
    assert device.disguise(changes, given, USERS[:1], 3, SeededDraws(5)).loss is changes.loss


def test_features_are_noised_too():
    made = make_task(lengths=[5, 9], personal=True)
    given = Given({}, {"item_embedding": made.private["item_embedding"].astype(np.float32)})
    arguments = (given, made.users, made.positives, made.negatives, 1, SeededDraws(0))
    plain = method(num_items=NUM_ITEMS, size=4).reports(*arguments)["features"]
    noisy = method(num_items=NUM_ITEMS, size=4, fedca_ldp_delta_features=0.1).reports(*arguments)["features"]
    assert plain.shape == noisy.shape == (2, 4, 4)
    assert 0.03 < np.abs(plain - noisy).mean() < 0.3
    assert method(num_items=NUM_ITEMS, size=4, fedca_beta=0.0).reports(*arguments) == {}


def test_laplace_numbers_have_their_moments():
    """Mean 0, mean |x| = b, variance 2 b²."""
    drawn = laplace(streams(0, user_keys([str(i) for i in range(50)]), 1, 9), 2000, scale=3.0)
    assert drawn.mean() == pytest.approx(0, abs=0.05)
    assert np.abs(drawn).mean() == pytest.approx(3.0, rel=0.02)
    assert drawn.var() == pytest.approx(18.0, rel=0.05)
    assert np.isfinite(drawn).all()
