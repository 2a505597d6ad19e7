"""The cross-entropy over a whole catalogue beside torch's own."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from models.centralized.softmax_loss import over_all_items


@pytest.mark.parametrize(
    ("places", "catalogue"),
    [(10, 13), (100_000, 13), (3, 600_000)],
    ids=["all places at once", "three parts", "a place at a time"],
)
@pytest.mark.parametrize("scale", [1.0, 1000.0], ids=["small logits", "logits that overflow an exponential"])
def test_loss_and_gradient_are_those_of_the_matrix_of_all_logits(places, catalogue, scale):
    """Of 524,288 logits at once: 40,329 places with 13 items, so of 100,000 two full parts and one that is not."""
    source = torch.Generator().manual_seed(3)
    states = torch.randn(places, 4, generator=source, dtype=torch.float64).mul_(scale).requires_grad_()
    items = torch.randn(catalogue, 4, generator=source, dtype=torch.float64).requires_grad_()
    targets = torch.randint(catalogue, (places,), generator=source)
    # A factor behind the loss: what comes after it has its part in the gradient.
    loss, wanted = over_all_items(states, items, targets), cross_entropy(states @ items.T, targets)
    gradients = torch.autograd.grad(3 * loss, (states, items))
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(gradients, torch.autograd.grad(3 * wanted, (states, items)))
