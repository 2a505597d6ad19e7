"""HeteFedRec on the device: every size at once, decorrelation by hand, and private arrays that outgrow a group."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from bouquet.arrays import initial_private, initial_shared
from bouquet.config import defaults, parsed
from bouquet.errors import ConfigError, WireError
from bouquet.experiments.settings import option_classes
from bouquet.ragged import Ragged
from bouquet.randomness import SeededDraws, user_keys
from bouquet.wire import TrainRequest
from client_app.node.groups import Prefixes, models_of, split
from client_app.personalization.hetefedrec import decorrelation, decorrelation_slope
from client_app.state.private import PrivateState
from client_app.training import LocalTask, compiled, stacked
from client_app.training.compiler import ncf_kernels
from tests.client_app.method_tasks import NUM_ITEMS, SIZES, outcome

WIDTHS = (2, 3, 5)


def settings(**changes):
    given = {"strategy": "hetefedrec", "hetefedrec-sizes": "2,3,5", "ncf-hidden": "6,3", "lightgcn-hidden": "6,3"}
    given |= {"batch-size": 16, "local-epochs": 2, "learning-rate": 0.1, "user-learning-rate": 0.3, "init-scale": 0.3}
    return defaults(option_classes()) | given | {key.replace("_", "-"): value for key, value in changes.items()}


def models(**changes):
    flat = settings(**changes)
    return models_of(parsed(flat), NUM_ITEMS)


def task_of(group, seed=0, **changes):
    """What users of one group train, from arrays that are away from their start."""
    flat = settings(**changes)
    config = parsed(flat).run
    model = models_of(parsed(flat), NUM_ITEMS)[group]
    random, lengths = np.random.default_rng(seed), np.array(SIZES)
    users = user_keys([str(i) for i in range(len(lengths))])
    shared = initial_shared(model.shared, seed)
    for name, spec in model.shared.items():
        if spec.init == "zeros":
            shared[name] = random.normal(0, 0.1, spec.shape).astype(np.float32)
    drawn = [random.choice(NUM_ITEMS // 2, size, replace=False) for size in lengths]
    return LocalTask(
        backbone=model.backbone,
        options=config,
        users=users,
        round=3,
        draws=SeededDraws(seed),
        positives=Ragged.from_lengths(lengths, np.concatenate(drawn)),
        negatives=Ragged.from_lengths(2 * lengths, random.integers(NUM_ITEMS // 2, NUM_ITEMS, 2 * lengths.sum())),
        shared=shared,
        private={
            name: initial_private(name, spec, seed, users).astype(np.float64)
            for name, spec in model.backbone.private.items()
        },
        personalizations=tuple(method for method in model.methods if method.in_loss),
        dtype=np.float64,
    )


VARIANTS = [
    {"backbone": "mf"},
    {"backbone": "ncf"},
    {"backbone": "ncf", "hetefedrec_alpha": 0.0},
    {"backbone": "ncf", "hetefedrec_dual_task": False, "hetefedrec_off_diagonal": True},
    {"backbone": "ncf", "hetefedrec_method": "clustered"},
    {"backbone": "lightgcn"},
    {"backbone": "lightgcn", "hetefedrec_alpha": 0.0},
    {"backbone": "lightgcn", "lightgcn_predictor": "dot", "hetefedrec_off_diagonal": True},
    {"backbone": "lightgcn", "hetefedrec_method": "direct"},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: "-".join(str(value) for value in variant.values()))
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("batch_size", [10, 2048])
@pytest.mark.parametrize("group", [0, 1, 2])
@pytest.mark.parametrize("fast", ["torch", "numba"])
def test_fast_backends_equal_the_loop(fast, group, batch_size, optimizer, variant, monkeypatch):
    """Users of one size are stacked, one of them without samples: equal to 1e-10 in float64."""
    monkeypatch.setattr(stacked, "CHUNK_VALUES", 900)
    options = {**variant, "optimizer": optimizer, "batch_size": batch_size}
    tolerance = 1e-10 if optimizer == "sgd" else 1e-6
    expected, found = (outcome(task_of(group, **options), backend) for backend in ("loop", fast))
    assert any(np.abs(values).max() > 1e-3 for name, values in expected.items() if name.startswith("change"))
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("variant", [variant for variant in VARIANTS if variant["backbone"] == "ncf"], ids=str)
@pytest.mark.parametrize("group", [0, 1, 2])
def test_perceptrons_are_compiled(group, variant, monkeypatch):
    """Several sizes, decorrelation, or both: nothing is left to torch, whatever the width of a size."""
    if ncf_kernels() is None:
        pytest.skip("numba comes with the extra simulation")

    def refuse(task):
        raise AssertionError("torch was asked")

    monkeypatch.setattr(compiled, "train_plain", refuse)
    outcome(task_of(group, **variant), "numba")


# -- the dual task -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backbone", ["mf", "ncf", "lightgcn"])
def test_every_size_is_a_model_of_its_own_over_the_first_columns(backbone):
    """Eq. 11: the logits of head b are those of a model of size N_b given u[:N_b], V[:, :N_b] and Θ_b."""
    largest = models(backbone=backbone)[-1].backbone
    assert largest.heads == 3
    shared = {name: torch.from_numpy(v)[None] for name, v in initial_shared(largest.shared, 1).items()}
    private = {"user_embedding": torch.randn(1, 5), "history": (torch.arange(NUM_ITEMS) < 4).float()[None]}
    heads = largest.logits(private, shared).chunk(3, dim=1)
    singles = models(backbone=backbone, hetefedrec_dual_task=False)
    for number, (width, single) in enumerate(zip(WIDTHS, singles, strict=True)):
        mine = {
            name: shared[f"{number}.{name}" if number < 2 else name] for name in single.shared if "item" not in name
        }
        mine["item_embedding"] = shared["item_embedding"][..., :width]
        user = {**private, "user_embedding": private["user_embedding"][:, :width]}
        torch.testing.assert_close(single.backbone.logits(user, mine), heads[number])


@pytest.mark.parametrize("backbone", ["mf", "ncf", "lightgcn"])
def test_the_gradient_of_all_heads_by_finite_differences(backbone):
    largest = models(backbone=backbone)[-1].backbone
    torch.manual_seed(3)
    shared = {name: torch.randn(1, *spec.shape, dtype=torch.float64) for name, spec in largest.shared.items()}
    private = {"user_embedding": torch.randn(1, 5, dtype=torch.float64)}
    if largest.reads_history:
        private["history"] = (torch.arange(NUM_ITEMS) < 4).double()[None]
    logits, pull_back = largest.forward(private, shared)
    slope = torch.randn_like(logits)
    gradients = pull_back(slope)
    for name, values in {**shared, "user_embedding": private["user_embedding"]}.items():
        towards, step = torch.randn_like(values), 1e-6

        def loss(scale, name=name, values=values, towards=towards):
            moved = {name: values + scale * towards}
            either = [{**arrays, **{n: v for n, v in moved.items() if n in arrays}} for arrays in (private, shared)]
            return (largest.logits(*either) * slope).sum()

        expected = (loss(step) - loss(-step)) / (2 * step)
        torch.testing.assert_close((gradients[name] * towards).sum(), expected, rtol=1e-5, atol=1e-6)


def test_a_device_recommends_with_its_largest_size():
    largest = models(backbone="ncf")[-1].backbone
    shared = {name: torch.from_numpy(values) for name, values in initial_shared(largest.shared, 1).items()}
    private = {"user_embedding": torch.randn(4, 5)}
    whole = {name: values.expand(4, *values.shape) for name, values in shared.items()}
    torch.testing.assert_close(largest.scores(private, shared), largest.logits(private, whole)[:, -NUM_ITEMS:])


# -- decorrelation -----------------------------------------------------------------------------------------------------


def test_decorrelation_by_hand():
    """Columns that are multiples correlate 1: C = [[1, 1], [1, 1]], ‖C‖ = 2, over N = 2: 1.

    Without the diagonal √2 / 2. Columns at right angles: C = I, √2 / 2, and without the diagonal 0.
    """
    x, y = torch.tensor([1.0, -1, 1, -1]), torch.tensor([1.0, 1, -1, -1])
    alike, apart = torch.stack([x, 3 * x + 2], dim=1)[None], torch.stack([x, y], dim=1)[None]
    root = 2**0.5 / 2
    assert decorrelation(alike).item() == pytest.approx(1.0)
    assert decorrelation(alike, off_diagonal=True).item() == pytest.approx(root)
    assert decorrelation(apart).item() == pytest.approx(root)
    assert decorrelation(apart, off_diagonal=True).item() == pytest.approx(0.0, abs=1e-6)


@given(some.integers(0, 2**31), some.integers(2, 6), some.booleans())
def test_the_slope_of_decorrelation_by_finite_differences(seed, width, off_diagonal):
    random = torch.Generator().manual_seed(seed)
    tables = torch.randn(2, 9, width, dtype=torch.float64, generator=random)
    towards = torch.randn(2, 9, width, dtype=torch.float64, generator=random)
    step = 1e-6
    ahead, behind = (decorrelation(tables + scale * towards, off_diagonal) for scale in (step, -step))
    expected = (ahead - behind) / (2 * step)
    found = (decorrelation_slope(tables, off_diagonal) * towards).sum(dim=(1, 2))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-7)


def test_a_constant_column_has_no_slope_and_no_catalogue_is_too_long():
    """With 300,000 items anything of m by m would need 360 GB."""
    torch.manual_seed(0)
    tables = torch.randn(1, 300_000, 3)
    tables[..., 1] = 2.0
    slope = decorrelation_slope(tables)
    assert torch.isfinite(slope).all()
    assert (slope[..., 1] == 0).all()


def test_the_smallest_size_is_not_decorrelated():
    assert [[m.in_loss for m in model.methods] for model in models()] == [[False], [True], [True]]
    assert [[m.in_loss for m in model.methods] for model in models(hetefedrec_alpha=0.0)] == [[False]] * 3


# -- private arrays and requests by group ------------------------------------------------------------------------------


def test_who_moves_up_goes_on_with_what_it_has_learned(tmp_path):
    """A user trains two columns in round 1; with five it finds these two and fresh ones behind, and keeps all five."""
    sizes = models(backbone="mf")
    specs = sizes[-1].backbone.private
    users = user_keys(["ann", "bob"])

    def fresh(name, positions):
        return initial_private(name, specs[name], 0, users[positions])

    state = PrivateState(tmp_path / "state", "series", users, specs, fresh)
    small, large = Prefixes(state, sizes[0].backbone.private), Prefixes(state, specs)
    here, none, one, two = np.array([0]), np.array([0]), np.array([1]), np.array([2])
    started = small.read(here, none)["user_embedding"]
    np.testing.assert_array_equal(started, fresh("user_embedding", here)[:, :2])
    learned = np.array([[7.0, 8.0]], np.float32)
    small.write(here, 1, none, none, {"user_embedding": learned})
    state.commit()
    grown = large.read(here, one)["user_embedding"]
    np.testing.assert_array_equal(grown[:, :2], learned)
    np.testing.assert_array_equal(grown[:, 2:], fresh("user_embedding", here)[:, 2:])
    large.write(here, 2, one, none, {"user_embedding": grown + 1})
    state.commit()
    np.testing.assert_array_equal(large.read(here, two)["user_embedding"], grown + 1)
    np.testing.assert_array_equal(large.read(np.array([1]), none)["user_embedding"], fresh("user_embedding", [1]))


def request(groups, came):
    specs = [model.shared for model in models(backbone="mf")]
    shared = {f"{g}/{name}": np.zeros(spec.shape, np.float32) for g in came for name, spec in specs[g].items()}
    users = user_keys([str(n) for n in range(len(groups))])
    personal = {"group": np.array(groups, dtype=np.int64)}
    none = np.zeros(len(groups), np.int64)
    whole = TrainRequest("series", 1, users, none, none, shared, personal, weights=np.ones(len(groups)))
    return whole, specs


def test_a_request_is_split_by_group():
    whole, specs = request([2, 0, 2], [0, 2])
    (first, places, small), (second, others, large) = split(whole, specs)
    assert (first, places.tolist(), second, others.tolist()) == (0, [1], 2, [0, 2])
    assert {name: values.shape for name, values in small.shared.items()} == {"item_embedding": (NUM_ITEMS, 2)}
    assert {name: values.shape for name, values in large.shared.items()} == {"item_embedding": (NUM_ITEMS, 5)}
    assert large.users.tolist() == whole.users[[0, 2]].tolist()
    assert large.personal == {}


def test_a_group_without_its_arrays_is_refused():
    whole, specs = request([0, 2], [0])
    with pytest.raises(WireError, match="was given group 2, and the arrays of that group did not come"):
        split(whole, specs)
    whole, specs = request([0, 3], [0])
    with pytest.raises(WireError, match="group 3"):
        split(whole, specs)
    with pytest.raises(WireError, match="personal array 'group'"):
        split(replace(whole, personal={}), specs)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hetefedrec_sizes": "8,8,32"}, "must rise"),
        ({"hetefedrec_sizes": "8,16"}, "makes 3 groups"),
        ({"backbone": "sasrec"}, "does not work with"),
        ({"exchange": "embedding"}, "exchange must be 'all'"),
        ({"personalization": "plgc"}, "cannot be combined"),
    ],
)
def test_what_does_not_fit_is_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        models(**changes)
