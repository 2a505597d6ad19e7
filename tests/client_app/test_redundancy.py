"""The gradient of redundancy reduction: compiled, in torch, and by autograd of the loss as the paper writes it."""

import numpy as np
import pytest
import torch

from client_app.personalization import plgc_redundancy as redundancy
from client_app.personalization.columns import correlated
from client_app.personalization.plgc_redundancy import NETWORKS, reduced, redundancy_and_slopes, represented

STRENGTH, KAPPA = 0.3, 0.05


def example(users, rows, size, dtype=torch.float64, seed=0):
    """Tables, networks, and how often each row stands in the batch; the first user has no samples, the second one."""
    random = torch.Generator().manual_seed(seed)
    local, common = (torch.randn(users, size, rows, dtype=dtype, generator=random).transpose(1, 2) for _ in range(2))
    networks = {name: torch.randn(users, size, size, dtype=dtype, generator=random) for name in NETWORKS}
    counts = torch.randint(0, 4, (users, rows), generator=random).to(dtype)
    counts[0] = 0
    counts[1] = torch.nn.functional.one_hot(torch.tensor(rows // 2), rows)
    return local, common, networks, counts


def by_autograd(local, common, networks, counts):
    local, networks = local.clone().requires_grad_(), {n: m.clone().requires_grad_() for n, m in networks.items()}
    own, shared = (represented(table, networks, counts) for table in (local, common))
    loss = STRENGTH * reduced(correlated(own, shared, counts), KAPPA)[1:].sum()
    gradients = torch.autograd.grad(loss, [local, *networks.values()])
    return gradients[0], dict(zip(networks, gradients[1:], strict=True))


@pytest.mark.parametrize(("users", "rows", "size"), [(3, 7, 1), (4, 30, 3), (3, 256, 4), (3, 300, 6), (5, 900, 16)])
@pytest.mark.parametrize("compiled", [True, False])
def test_slopes_are_those_of_the_loss(users, rows, size, compiled, monkeypatch):
    """Rows of one tile and of several, widths that 4 divides and others: equal to 1e-10."""
    if not compiled:
        monkeypatch.setattr(redundancy, "redundancy_kernels", lambda: None)
    given = example(users, rows, size)
    expected, of_networks = by_autograd(*given)
    found, found_networks = redundancy_and_slopes(*given, STRENGTH, KAPPA)
    torch.testing.assert_close(found[2:], expected[2:], rtol=0, atol=1e-10)
    assert size == 1 or expected[2:].abs().max() > 1e-4
    for name in NETWORKS:
        torch.testing.assert_close(found_networks[name][2:], of_networks[name][2:], rtol=0, atol=1e-10)


def test_one_sample_tells_nothing_of_dimensions():
    """Its columns are constant: no correlation, so nothing moves; a user without samples does not move either."""
    local, common, networks, counts = example(2, 20, 5)
    found, of_networks = redundancy_and_slopes(local, common, networks, counts, STRENGTH, KAPPA)
    np.testing.assert_array_equal(found.numpy(), 0)
    for values in of_networks.values():
        np.testing.assert_array_equal(values.numpy(), 0)


def test_single_precision_is_close():
    given = example(4, 500, 16)
    single = [part.float() if torch.is_tensor(part) else {n: m.float() for n, m in part.items()} for part in given]
    expected, found = (redundancy_and_slopes(*each, STRENGTH, KAPPA) for each in (given, single))
    torch.testing.assert_close(found[0].double(), expected[0], rtol=0, atol=1e-5)
    for name in NETWORKS:
        torch.testing.assert_close(found[1][name].double(), expected[1][name], rtol=0, atol=1e-5)


def test_threads_change_nothing(monkeypatch):
    given = example(8, 40, 5)
    results = []
    for count in (1, 2, 4):
        monkeypatch.setenv("OMP_NUM_THREADS", str(count))
        results.append(redundancy_and_slopes(*given, STRENGTH, KAPPA))
    for found, networks in results[1:]:
        assert torch.equal(found, results[0][0])
        assert all(torch.equal(networks[name], results[0][1][name]) for name in NETWORKS)


def test_a_user_who_has_diverged_is_nothing_to_the_next():
    """With rows past its last one that the user before has filled, and with fewer rows."""
    local, common, networks, counts = example(4, 40, 8)
    counts[3, 5:] = 0
    expected, expected_networks = redundancy_and_slopes(local, common, networks, counts, STRENGTH, KAPPA)
    local[2] = torch.nan
    found, found_networks = redundancy_and_slopes(local, common, networks, counts, STRENGTH, KAPPA)
    assert found[2].isnan().any()
    assert torch.equal(found[3], expected[3])
    assert all(torch.equal(found_networks[name][3], expected_networks[name][3]) for name in NETWORKS)
