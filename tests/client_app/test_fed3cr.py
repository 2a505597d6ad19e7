"""Fed3CR's parts against values derived by hand, finite differences and limits."""

import math

import numpy as np
import pytest
import torch

from client_app.personalization.fed3cr import centres, consistency_loss
from client_app.personalization.fed3cr_alternatives import (
    COMPLEMENTARITY,
    CONSISTENCY,
    distance,
    information,
    similarity,
)
from client_app.personalization.fed3cr_orthogonality import complementarity_loss, cosine_complementarity_loss
from client_app.personalization.round import PERSONAL, Working
from client_app.training.compiled import is_sum
from client_app.training.objective import working_rows
from tests.client_app.method_tasks import make_task, outcome

E1, E2 = torch.tensor([1.0, 0.0], dtype=torch.float64), torch.tensor([0.0, 1.0], dtype=torch.float64)
ROWS = torch.stack([E1, E2])


def test_a_prototype_is_the_mean_of_the_users_rows():
    """Of two users: one with rows 0 and 2, and one with none, whose prototype is zero."""
    table = torch.tensor([[1.0, 2.0], [50.0, 50.0], [3.0, 6.0]])
    positive = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    working = Working(torch.arange(3).expand(2, 3), torch.ones(2, 3, dtype=torch.bool), positive, {}, 1)
    assert centres(torch.stack([table, table]), working).tolist() == [[2.0, 4.0], [0.0, 0.0]]


def test_consistency_of_equal_views_is_the_entropy_of_the_ranking():
    """Rows e_1, e_2 and prototype e_1: cosines 1 and 0, P = (e, 1) / (1 + e), H(P) = log(1 + e) - e / (1 + e)."""
    expected = math.log(1 + math.e) - math.e / (1 + math.e)
    assert float(consistency_loss(ROWS, ROWS, E1, E1)) == pytest.approx(expected)
    assert float(consistency_loss(7 * ROWS, ROWS, 3 * E1, E1)) == pytest.approx(expected), "lengths do not matter"


def test_consistency_of_opposite_rankings():
    """Prototypes e_1 and e_2: Q = (1, e) / (1 + e), and -Σ P log Q = log(1 + e) - 1 / (1 + e), the same both ways."""
    assert float(consistency_loss(ROWS, ROWS, E1, E2)) == pytest.approx(math.log(1 + math.e) - 1 / (1 + math.e))


def test_complementarity_by_hand():
    """C^E = I and V = ((1, 2), (3, 4)): C^Eᵀ V = V, Σ = 30, /d = 15 as printed; with E / m, a quarter of it."""
    personal = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    assert float(complementarity_loss(ROWS, personal, literal_scale=True)) == pytest.approx(15)
    assert float(complementarity_loss(ROWS, personal)) == pytest.approx(3.75)


def test_the_printed_complementarity_is_m_squared_times_ours():
    """E is a sum over m = 3 items, the loss its square: 9 times that of the mean, so that .1 as printed is .9 here."""
    generator = torch.Generator().manual_seed(0)
    views = torch.randn(2, 3, 2, generator=generator, dtype=torch.float64)
    assert float(complementarity_loss(*views, literal_scale=True)) == pytest.approx(
        9 * float(complementarity_loss(*views))
    )


def test_cosine_complementarity_by_hand():
    """C^E = (1, 0, 0) and (0, 2, 0) as columns, V = (3, 4, 0) and (0, 0, 5).

    R = ((3/5, 0), (4/5, 0)), so Σ R² = 1 and L_o = 1/2; of a view and itself with orthogonal columns R = I, L_o = 1.
    """
    enhanced = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]], dtype=torch.float64)
    own = torch.tensor([[3.0, 0.0], [4.0, 0.0], [0.0, 5.0]], dtype=torch.float64)
    assert float(cosine_complementarity_loss(enhanced, own)) == pytest.approx(0.5)
    assert float(cosine_complementarity_loss(0.01 * enhanced, own * torch.tensor([7.0, 3.0]))) == pytest.approx(0.5)
    assert float(cosine_complementarity_loss(enhanced, enhanced)) == pytest.approx(1)
    assert float(cosine_complementarity_loss(enhanced, torch.zeros_like(own))) == 0


def test_plain_steps_diverge_with_the_printed_sum_and_not_with_cosines():
    """d = 1, both views all ones over m items: E = m, and one step of V along β 2 m C^E is V (1 - 2 β m).

    With β = .1 and m = 100 that is -19 V, and every step multiplies again; with cosines a step along C^E - V is none.
    """
    ones = torch.ones(100, 1, dtype=torch.float64)

    def stepped(loss):
        own = ones.clone().requires_grad_()
        (slope,) = torch.autograd.grad(0.1 * loss(ones, own), own)
        return (own - slope)[0].item()

    assert stepped(lambda c, v: complementarity_loss(c, v, literal_scale=True)) == pytest.approx(-19)
    assert stepped(complementarity_loss) == pytest.approx(1 - 0.2 / 100)
    assert stepped(cosine_complementarity_loss) == pytest.approx(1)


def test_orthogonal_views_cost_nothing():
    """Columns of one view are orthogonal to those of the other: items of the one are zero in the other."""
    enhanced = torch.tensor([[1.0, 2.0], [0.0, 0.0]])
    assert float(complementarity_loss(enhanced, enhanced.flip(0))) == 0


@pytest.mark.parametrize("seed", range(3))
def test_gradients_by_finite_differences(seed):
    generator = torch.Generator().manual_seed(seed)
    sizes = [(5, 3), (5, 3), (3,), (3,)]
    views = [torch.randn(size, generator=generator, dtype=torch.float64, requires_grad=True) for size in sizes]
    assert torch.autograd.gradcheck(consistency_loss, views)
    assert torch.autograd.gradcheck(complementarity_loss, views[:2])
    assert torch.autograd.gradcheck(cosine_complementarity_loss, views[:2])


PLAIN = {"strategy": "fed3cr", "fed3cr_enhancement": "none", "fed3cr_beta_a": 0.0, "fed3cr_beta_o": 0.0}


@pytest.mark.parametrize("rates", [{}, {"own": 0.07}], ids=["one rate", "two rates"])
@pytest.mark.parametrize("backend", ["loop", "torch", "numba"])
def test_without_enhancement_and_constraints_it_is_plain_addition(backend, rates):
    """Equal to FedRAP without its two terms, which is C + D_u."""
    own = {name: {f"{name}_personal_learning_rate": rates["own"]} if rates else {} for name in ("fed3cr", "fedrap")}
    found = outcome(make_task(**PLAIN, **own["fed3cr"]), backend)
    expected = outcome(make_task(strategy="fedrap", **own["fedrap"]), "loop")
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=0, atol=1e-12, err_msg=name)


@pytest.mark.parametrize(
    "further",
    [
        {"fed3cr_enhancement": "ace"},
        {"fed3cr_enhancement": "consensus"},
        {"fed3cr_beta_a": 0.1},
        {"fed3cr_beta_o": 0.1},
    ],
    ids=str,
)
def test_one_table_is_trained_only_where_nothing_else_is_minimised(further):
    assert is_sum(make_task(**PLAIN))
    assert not is_sum(make_task(**PLAIN | further))


def test_an_untrained_network_leaves_the_consensus_as_it_is():
    task = make_task(strategy="fed3cr")
    (method,) = task.personalizations
    users = np.arange(len(task.users))
    working = working_rows(task, users, task.items(), torch.device("cpu"))
    table = torch.randn(len(users), task.num_items, 4, dtype=torch.float64)
    arrays = {name: torch.zeros(len(users), *spec.shape, dtype=torch.float64) for name, spec in method.shared.items()}
    arrays |= {"item_embedding": table, PERSONAL: torch.ones_like(table)}
    torch.testing.assert_close(method.view(arrays, working)["item_embedding"], table + 1)


# Two samples of one user, the second drawn twice: weights 1/3 and 2/3.
TWICE = torch.tensor([[1.0, 2.0]], dtype=torch.float64)


def test_similarity_and_distance_of_two_samples_by_hand():
    """C^E = ((2, 0), (0, 3)) and V = ((1, 0), (5, 0)): cosines 1 and 0, squared distances 1 and 25 + 9 of two values.

    L_s = 1/3 (1 - 1) + 2/3 (1 - 0) = 2/3; L_2 = - (1/3 * 1/2 + 2/3 * 34/2) = - 69/6.
    """
    enhanced = torch.tensor([[[2.0, 0.0], [0.0, 3.0]]], dtype=torch.float64)
    own = torch.tensor([[[1.0, 0.0], [5.0, 0.0]]], dtype=torch.float64)
    assert similarity(enhanced, own, TWICE).item() == pytest.approx(2 / 3)
    assert distance(enhanced, own, TWICE).item() == pytest.approx(-69 / 6)


def test_contrast_of_two_samples_by_hand():
    """C^E = V = (e_1, e_2): each row has cosine 1 with its own and 0 with the other.

    L_c = 1/3 (log(1/3 e + 2/3) - 1) + 2/3 (log(1/3 + 2/3 e) - 1).
    """
    views = ROWS[None]
    expected = (math.log(math.e / 3 + 2 / 3) - 1) / 3 + 2 * (math.log(1 / 3 + 2 * math.e / 3) - 1) / 3
    assert CONSISTENCY["contrast"].loss(views, views, TWICE).item() == pytest.approx(expected)


def test_information_of_four_samples_by_hand():
    """d = 1 and four samples: (1, 1, -1, -1) against (1, -1, 1, -1) has R = 0, against (3, 1, -1, -3) R = 2 / √5.

    Σ xy / 4 = (3 + 1 + 1 + 3) / 4 = 2, deviations 1 and √5: L_m = - ½ log(1 - 4/5) = ½ log 5. Of itself R is .999.
    """
    x, y, z = (
        torch.tensor(v, dtype=torch.float64).reshape(1, 4, 1)
        for v in ([1.0, 1, -1, -1], [1.0, -1, 1, -1], [3.0, 1, -1, -3])
    )
    weights = torch.ones(1, 4, dtype=torch.float64)
    assert information(x, y, weights).item() == pytest.approx(0)
    assert information(x, z, weights).item() == pytest.approx(math.log(5) / 2)
    assert information(x, 7 * x + 2, weights).item() == pytest.approx(-0.5 * math.log(1 - 0.999**2))


ALTERNATIVES = CONSISTENCY | COMPLEMENTARITY


@pytest.mark.parametrize("kind", sorted(ALTERNATIVES))
def test_gradients_of_the_alternatives_by_finite_differences(kind):
    loss = ALTERNATIVES[kind].loss
    generator = torch.Generator().manual_seed(1)
    views = [torch.randn(2, 5, 3, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    weights = torch.tensor([[1.0, 2, 0, 1, 3], [0, 0, 0, 0, 0]], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda a, b: loss(a, b, weights), views)
    assert torch.isfinite(loss(*views, weights)).all(), "a user without samples has no NaN"


@pytest.mark.parametrize("kind", sorted(ALTERNATIVES))
def test_the_slopes_of_an_alternative_are_those_of_its_loss(kind):
    """Pairs come in several blocks, a row may stand in no batch, and one row of each view is of zeros; a dimension is
    the same in both views of the second user (R = 1), another is constant, and the third user has no samples."""
    source = torch.Generator().manual_seed(3)
    views = [torch.randn(3, 500, 5, generator=source, dtype=torch.float64) for _ in range(2)]
    views[0][0, 7] = views[1][0, 8] = 0.0
    views[0][1, :, 2] = views[1][1, :, 2]
    views[0][1, :, 3] = 4.0
    weights = torch.randint(0, 4, (3, 500), generator=source).double()
    weights[0, 7:9], weights[2] = 2.0, 0.0
    followed = [view.clone().requires_grad_() for view in views]
    expected = torch.autograd.grad(ALTERNATIVES[kind].loss(*followed, weights).sum(), followed)
    for found, right in zip(ALTERNATIVES[kind].slopes(*views, weights), expected, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-9, atol=1e-12)
        assert right[:2].abs().amax(dim=(1, 2)).min() > 1e-4
