"""The propagation over a star graph: embeddings by hand, and the shortcuts of training and scoring against it."""

import pytest
import torch

from bouquet.arrays import initial_shared
from bouquet.config import ModelOptions
from models import HISTORY, LightGCN
from models.lightgcn import LightGCNOptions

NUM_ITEMS, SIZE = 9, 3


def model(predictor, num_items=NUM_ITEMS, size=SIZE):
    options = LightGCNOptions(lightgcn_predictor=predictor, lightgcn_hidden="4,2")
    return LightGCN(num_items, ModelOptions(embedding_size=size), options)


def histories(*rows):
    marks = torch.zeros(len(rows), NUM_ITEMS)
    for user, items in enumerate(rows):
        marks[user, list(items)] = 1
    return marks


def arrays(backbone, count, dtype=torch.float32):
    torch.manual_seed(0)
    shared = {name: torch.from_numpy(values).to(dtype) for name, values in initial_shared(backbone.shared, 0).items()}
    shared = {name: values + torch.randn(values.shape, dtype=dtype) for name, values in shared.items()}
    return {"user_embedding": torch.randn(count, SIZE, dtype=dtype)}, shared


def test_one_dimension_by_hand():
    """p = 2, four items q = 1, 3, 5, 7 of which all four but the last two are the history: n = 2, c = 1 / sqrt 2.

    e_u = (2 + (1 + 3) c) / 2 = 1 + 2c. Items of the history (q + 2c) / 2, the others q / 2. Dot products:
    (1 + 2c)(1 + 2c) / 2, (1 + 2c)(3 + 2c) / 2, (1 + 2c) 5 / 2, (1 + 2c) 7 / 2, with 2c = sqrt 2.
    """
    root = 2**0.5
    shared = {"item_embedding": torch.tensor([[1.0], [3.0], [5.0], [7.0]])}
    private = {"user_embedding": torch.tensor([[2.0]]), HISTORY: torch.tensor([[1.0, 1, 0, 0]])}
    expected = torch.tensor([[(1 + root) * q / 2 for q in (1 + root, 3 + root, 5, 7)]])
    torch.testing.assert_close(model("dot", 4, 1).scores(private, shared), expected)


def test_a_user_without_history_is_half_of_matrix_factorisation_twice():
    """Nothing to propagate: e_u = p / 2 and e_i = q / 2."""
    backbone = model("dot")
    private, shared = arrays(backbone, 2)
    found = backbone.scores({**private, HISTORY: histories([], [])}, shared)
    torch.testing.assert_close(found, private["user_embedding"] @ shared["item_embedding"].T / 4)


@pytest.mark.parametrize("predictor", ["dot", "perceptron"])
@pytest.mark.parametrize("own", [False, True])
def test_scores_are_the_logits_of_every_item(predictor, own):
    """Tables in common or of each user; histories of any length, one of them empty."""
    backbone = model(predictor)
    private, shared = arrays(backbone, 4)
    private[HISTORY] = histories([0, 4], [], [8], range(NUM_ITEMS))
    whole = {name: values.expand(4, *values.shape) for name, values in shared.items()}
    torch.testing.assert_close(backbone.scores(private, whole if own else shared), backbone.logits(private, whole))


@pytest.mark.parametrize("predictor", ["dot", "perceptron"])
def test_the_gradient_by_hand_is_that_of_autograd(predictor):
    backbone = model(predictor)
    private, shared = arrays(backbone, 3, torch.float64)
    whole = {name: values.expand(3, *values.shape).clone().requires_grad_() for name, values in shared.items()}
    user = private["user_embedding"].requires_grad_()
    private[HISTORY] = histories([0, 4], [], [8]).double()
    logits, pull_back = backbone.forward(private, whole)
    slope = torch.randn_like(logits)
    expected = torch.autograd.grad((backbone.logits(private, whole) * slope).sum(), [user, *whole.values()])
    found = pull_back(slope)
    for name, gradient in zip(["user_embedding", *whole], expected, strict=True):
        torch.testing.assert_close(found[name], gradient)
