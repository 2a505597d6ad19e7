"""The perceptron: logits by hand, and scores of the whole catalogue whichever arrays the users have in common."""

import pytest
import torch

from bouquet.arrays import initial_shared
from bouquet.config import ModelOptions
from models import NeuralCollaborativeFiltering, ncf

NUM_ITEMS, USERS = 13, 5


def test_one_unit_by_hand():
    """d = 1, one hidden unit, p = 2, W_1 = (3, -1), b_1 = -1, h = 5, b = -2: z = 5 relu(3 · 2 - q - 1) - 2.

    That is 5 relu(5 - q) - 2, so q = 0, 4, 5, 7 score 23, 3, -2, -2.
    """
    model = NeuralCollaborativeFiltering(4, ModelOptions(embedding_size=1), ncf.NCFOptions(ncf_hidden="1"))
    shared = {
        "item_embedding": torch.tensor([[0.0], [4.0], [5.0], [7.0]]),
        "weight_1": torch.tensor([[3.0], [-1.0]]),
        "bias_1": torch.tensor([-1.0]),
        "output": torch.tensor([5.0]),
        "output_bias": torch.tensor([-2.0]),
    }
    private = {"user_embedding": torch.tensor([[2.0]])}
    assert model.scores(private, shared).tolist() == [[23.0, 3.0, -2.0, -2.0]]
    assert model.logits(private, {name: values[None] for name, values in shared.items()}).tolist() == [[23, 3, -2, -2]]


@pytest.mark.parametrize("users_at_once", [1, 2, 100])
@pytest.mark.parametrize("hidden", ["6", "6,4", "8,4,3"])
@pytest.mark.parametrize(
    "own", ["nothing", "everything", "item_embedding", "weight_1", "bias_1", "output", "output_bias"]
)
@pytest.mark.parametrize("count", [1, USERS])
def test_scores_are_the_logits_of_every_item(own, hidden, users_at_once, count, monkeypatch):
    """Arrays of each user's own, in common, or some of each; and users in blocks."""
    model = NeuralCollaborativeFiltering(NUM_ITEMS, ModelOptions(embedding_size=3), ncf.NCFOptions(ncf_hidden=hidden))
    monkeypatch.setattr(ncf, "_SCORE_VALUES", users_at_once * NUM_ITEMS * max(model.widths))
    torch.manual_seed(0)
    private = {"user_embedding": torch.randn(count, 3)}
    shared = {name: torch.from_numpy(values) for name, values in initial_shared(model.shared, 0).items()}
    whole = {name: values.expand(count, *values.shape) for name, values in shared.items()}
    for name in shared if own == "everything" else [own] if own in shared else []:
        shared[name] = whole[name] = whole[name] + torch.randn(whole[name].shape)
    torch.testing.assert_close(model.scores(private, shared), model.logits(private, whole))


def test_a_user_alone_has_the_scores_that_it_has_among_others():
    """To the last bit, with arrays of its own and with common ones: a node of one user, or the last one of a block."""
    model = NeuralCollaborativeFiltering(50, ModelOptions(embedding_size=8), ncf.NCFOptions())
    torch.manual_seed(0)
    private = {"user_embedding": torch.randn(USERS, 8)}
    common = {name: torch.from_numpy(values) for name, values in initial_shared(model.shared, 0).items()}
    own = {name: values + torch.randn(USERS, *values.shape) for name, values in common.items()}
    for shared, is_own in ((common, False), (own, True)):
        together = model.scores(private, shared)
        for user in range(USERS):
            this = slice(user, user + 1)
            model_of = {name: values[this] for name, values in shared.items()} if is_own else shared
            alone = model.scores({"user_embedding": private["user_embedding"][this]}, model_of)
            assert torch.equal(alone[0], together[user])
