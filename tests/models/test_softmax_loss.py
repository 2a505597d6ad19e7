"""The cross-entropy over a whole catalogue beside torch's own."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from models.centralized import softmax_loss
from models.centralized.softmax_loss import over_all_items


@pytest.mark.parametrize("at_once", [1, 40, 10**6], ids=["a place at a time", "three places", "all places"])
@pytest.mark.parametrize("scale", [1.0, 1000.0], ids=["small logits", "logits that overflow an exponential"])
def test_loss_and_gradient_are_those_of_the_matrix_of_all_logits(at_once, scale, monkeypatch):
    """13 items, so 40 logits are three places, with 10 places three parts and one that is not full."""
    monkeypatch.setattr(softmax_loss, "_LOGITS", at_once)
    source = torch.Generator().manual_seed(3)
    states = torch.randn(10, 4, generator=source, dtype=torch.float64).mul_(scale).requires_grad_()
    items = torch.randn(13, 4, generator=source, dtype=torch.float64).requires_grad_()
    targets = torch.randint(13, (10,), generator=source)
    # A factor behind the loss: what comes after it has its part in the gradient.
    loss, wanted = over_all_items(states, items, targets), cross_entropy(states @ items.T, targets)
    gradients = torch.autograd.grad(3 * loss, (states, items))
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(gradients, torch.autograd.grad(3 * wanted, (states, items)))
