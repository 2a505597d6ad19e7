"""PLGC's parts against values derived by hand, finite differences and limits."""

import numpy as np
import pytest
import torch

from bouquet.errors import ConfigError
from client_app.personalization.plgc import cross_correlation, mixing_coefficient, redundancy_loss
from client_app.personalization.plgc_alternatives import ALTERNATIVES
from client_app.personalization.round import GLOBAL, PERSONAL, Batch, Given
from client_app.training.objective import working_rows
from tests.client_app.method_tasks import make_task, outcome

ORTHOGONAL = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)


def test_mixing_by_hand():
    """Traces are sums of squares: 1 + 4 = 5 and 9 + 6 = 15, so μ = 5 / 20."""
    local, common = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[3.0, 2.0], [1.0, 1.0]])
    assert float(mixing_coefficient(local, common)) == pytest.approx(0.25)
    assert float(mixing_coefficient(local, local.flip(0))) == 0.5, "equal traces"
    assert float(mixing_coefficient(torch.zeros(2, 2), torch.zeros(2, 2))) == 0.5


def test_correlation_by_hand():
    """(1, 2, 3) and (1, 3, 2), centred: (-1, 0, 1) · (-1, 1, 0) / 2 = ½; of itself 1, turned round -1, constant 0."""
    a = torch.tensor([[1.0, 5.0], [2.0, 5.0], [3.0, 5.0]])
    b = torch.tensor([[1.0, -1.0], [3.0, -2.0], [2.0, -3.0]])
    torch.testing.assert_close(cross_correlation(a, b), torch.tensor([[0.5, -1.0], [0.0, 0.0]]))
    assert float(cross_correlation(a, a)[0, 0]) == pytest.approx(1)


def test_redundancy_by_hand():
    """(1 - ½)² + 0² + .1 (.2² + .1²) = .255."""
    correlation = torch.tensor([[0.5, 0.2], [0.1, 1.0]])
    assert float(redundancy_loss(correlation, 0.1)) == pytest.approx(0.255)


def test_equal_decorrelated_views_cost_nothing():
    assert float(redundancy_loss(cross_correlation(ORTHOGONAL, 3 * ORTHOGONAL + 1), 0.5)) == pytest.approx(0, abs=1e-12)


def test_redundant_dimensions_cost():
    """Two equal dimensions: all four correlations are 1, so only κ · 2 is left."""
    twice = ORTHOGONAL[:, :1].expand(-1, 2)
    assert float(redundancy_loss(cross_correlation(twice, twice), 0.005)) == pytest.approx(0.01)


@pytest.mark.parametrize("seed", range(3))
def test_gradients_by_finite_differences(seed):
    generator = torch.Generator().manual_seed(seed)
    views = [torch.randn(6, 3, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    assert torch.autograd.gradcheck(lambda a, b: redundancy_loss(cross_correlation(a, b), 0.3), views)


@pytest.mark.parametrize("backend", ["loop", "torch"])
def test_the_global_table_stays_as_it_came(backend):
    task = make_task(strategy="fcf", personalization="plgc", dtype=np.float32)
    before = task.frozen[GLOBAL].copy()
    found = outcome(task, backend)
    assert task.frozen[GLOBAL].tobytes() == before.tobytes()
    assert np.abs(found["change of item_embedding"]).max() > 1e-3


def test_the_local_table_is_never_overwritten():
    """A new user starts from the global table, any other from what its last training left."""
    (method,) = make_task(strategy="fcf", personalization="plgc").personalizations
    common = np.full((24, 4), 7.0, np.float32)
    local = np.stack([np.full((24, 4), value, np.float32) for value in (1.0, 2.0)])
    given = method.start(Given({"item_embedding": common}, {"item_embedding": local}), {}, np.array([True, False]))
    assert [table.flat[0] for table in given.own["item_embedding"]] == [7.0, 2.0]
    assert given.reported == {"item_embedding"}
    assert local.flat[0] == 1.0, "what was read from the state is left alone"


@pytest.mark.parametrize(("mixing", "expected"), [("ntk", 0.2), ("half", 0.5), ("local", 1.0)])
def test_the_share_of_the_local_table_is_a_constant_of_the_gradient(mixing, expected):
    """V^l = 1, V^g = 2 everywhere: μ = 1 / (1 + 4), the mixture is 2 - μ, and ∂V^p/∂V^l = μ."""
    task = make_task(strategy="fcf", personalization="plgc", plgc_mixing=mixing, weight_decay=0.1)
    (method,) = task.personalizations
    users = np.arange(len(task.users))
    working = working_rows(task, users, task.items(), torch.device("cpu"))
    local = torch.ones(len(users), task.num_items, 4, dtype=torch.float64, requires_grad=True)
    arrays = {"item_embedding": local, GLOBAL: torch.full_like(local, 2.0)}
    if "item_embedding" in working.outside:
        working.outside["item_embedding"].zero_()
        working.outside[GLOBAL].zero_()
    seen = method.view(arrays, working)["item_embedding"]
    torch.testing.assert_close(seen, torch.full_like(seen, 2 - expected))
    (gradient,) = torch.autograd.grad(seen.sum(), local)
    torch.testing.assert_close(gradient, torch.full_like(gradient, expected))


def test_before_a_base_method_with_two_tables_these_can_be_mixed():
    """D = 1 and C = 2 everywhere: μ = 1 / (1 + 4), V = 1/5 · 1 + 4/5 · 2 = 1.8, ∂V/∂D = 1/5, ∂V/∂C = 4/5.

    FedRAP's own terms stay those of C and D: - λ (C - D)² + μ |C| = - .5 · 1 + .25 · 2 = 0 at full strength.
    """
    task = make_task(
        strategy="fedrap", personalization="plgc", plgc_tables="base", plgc_redundancy="none", weight_decay=0.1,
        fedrap_lambda=0.5, fedrap_mu=0.25, fedrap_schedule="constant",
    )  # fmt: skip
    mixing, adding = task.personalizations
    users = np.arange(len(task.users))
    working = working_rows(task, users, task.items(), torch.device("cpu"))
    for name in working.outside:
        working.outside[name].zero_()
    own = torch.ones(len(users), task.num_items, 4, dtype=torch.float64, requires_grad=True)
    common = torch.full_like(own, 2.0, requires_grad=True)
    arrays = {"item_embedding": common, PERSONAL: own}
    seen = adding.view(mixing.view(arrays, working), working)
    torch.testing.assert_close(seen["item_embedding"], torch.full_like(own, 1.8))
    slopes = torch.autograd.grad(seen["item_embedding"].sum(), (own, common))
    for slope, share in zip(slopes, (0.2, 0.8), strict=True):
        torch.testing.assert_close(slope, torch.full_like(own, share))
    batch = Batch(torch.ones(len(users), task.num_items), torch.zeros(1), torch.full((len(users),), task.num_items))
    torch.testing.assert_close(adding.penalty(arrays, seen, batch, working), torch.zeros(len(users)).double())
    assert GLOBAL not in task.frozen


@pytest.mark.parametrize("backend", ["loop", "torch"])
@pytest.mark.parametrize("base", ["fcf", "pfedrec", "fedrap"])
def test_without_mixing_and_loss_it_is_the_base_method(base, backend):
    """V^l is replaced by V^g before each round, as without the plug-in; of fedrap with either pair of tables."""
    expected = outcome(make_task(strategy=base), backend)
    for tables in ("own", "base") if base == "fedrap" else ("own",):
        off = {"plgc_mixing": "none", "plgc_redundancy": "none", "plgc_tables": tables}
        found = outcome(make_task(strategy=base, personalization="plgc", **off), backend)
        assert found.keys() == expected.keys()
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, rtol=0, atol=1e-12, err_msg=name)


def test_redundancy_reduction_pulls_at_the_common_table_where_that_is_trained():
    """C of fedrap is trained on the device, so eRR moves it; V^g of the plug-in's own tables is frozen."""
    plain, reduced = (
        outcome(make_task(strategy="fedrap", personalization="plgc", plgc_tables="base", plgc_redundancy=kind), "torch")
        for kind in ("none", "err")
    )
    assert all(np.abs(plain[name] - reduced[name]).max() > 1e-4 for name in ("change of item_embedding", PERSONAL))


@pytest.mark.parametrize("kind", sorted(ALTERNATIVES))
def test_the_gradient_of_an_alternative_is_that_of_its_loss(kind):
    """Pairs come in several blocks; a row may stand in no batch or several times, and one is of zeros."""
    source = torch.Generator().manual_seed(3)
    local, common = (torch.randn(2, 600, 5, generator=source, dtype=torch.float64) for _ in range(2))
    local[0, 7] = 0.0
    weights = torch.randint(0, 4, (2, 600), generator=source).double()
    weights[0, 7] = 2.0
    local.requires_grad_()
    (expected,) = torch.autograd.grad(ALTERNATIVES[kind].loss(local, common, weights).sum(), local)
    found = ALTERNATIVES[kind].slope(local.detach(), common, weights)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-14)
    assert expected.abs().max() > 1e-4


@pytest.mark.parametrize("kind", sorted(ALTERNATIVES))
def test_each_alternative_has_a_weight_of_its_own(kind):
    """It is λ where it is 0, goes over λ where it is not, and the other weights are nothing to it."""
    common = {"strategy": "fcf", "personalization": "plgc", "plgc_redundancy": kind}
    others = {f"plgc_lambda_{other}": 0.9 for other in ALTERNATIVES if other != kind}
    settings = ({"plgc_lambda": 0.3}, {"plgc_lambda": 0.8, f"plgc_lambda_{kind}": 0.3, **others}, {"plgc_lambda": 0.8})
    expected, found, other = (outcome(make_task(**common, **one), "torch") for one in settings)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)
    assert any(np.abs(other[name] - values).max() > 1e-4 for name, values in expected.items())


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"strategy": "fcf"}, "which is fedrap alone, and this run has fcf"),
        ({"strategy": "fedrap", "plgc_learning_rate": 1.0}, "whose rate is fedrap-personal-learning-rate"),
    ],
)
def test_what_cannot_be_mixed_is_refused(settings, sentence):
    with pytest.raises(ConfigError, match=sentence):
        make_task(personalization="plgc", plgc_tables="base", **settings)
