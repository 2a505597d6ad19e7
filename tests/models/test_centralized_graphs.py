"""LightGCN and NeuMF with all data in one place: by hand, and at the limits where they are simpler models."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import sparse

from bouquet.errors import BouquetError
from bouquet.randomness import Purpose, generator
from models.centralized import MFBPR, FactorizationParameters, LightGCN, LightGCNParameters, NeuMF, NeuMFParameters
from models.centralized.negatives import NegativeSampler

QUICK = {"embedding_size": 4, "learning_rate": 0.05, "weight_decay": 0.02, "epochs": 4, "batch_size": 16}
EVERYBODY = np.arange(20)


@pytest.fixture
def train():
    return sparse.csr_matrix((np.random.default_rng(0).random((20, 15)) < 0.4).astype(np.float32))


def weights_of(model, *values):
    for weight, value in zip(model._weights, values, strict=True):
        with torch.no_grad():
            weight.copy_(torch.tensor(value))


def test_propagation_by_hand():
    """User a has items x and y, user b has y: |N_a| = 2, |N_b| = 1, |N_x| = 1, |N_y| = 2.

    With d = 1, a = 1, b = 2, x = 3, y = 4 and one layer:
    a¹ = 3 / sqrt(2 * 1) + 4 / sqrt(2 * 2) = 3 / √2 + 2,  b¹ = 4 / √2,  x¹ = 1 / √2,  y¹ = 1 / 2 + 2 / √2.
    e = (e⁰ + e¹) / 2 for each, and score(b, x) = (2 + 4 / √2) (3 + 1 / √2) / 4.
    """
    model = LightGCN(LightGCNParameters(1, learning_rate=0.1, weight_decay=0.0, epochs=0, layers=1))
    model.fit(sparse.csr_matrix([[1, 1, 0], [0, 1, 0]]))
    weights_of(model, [[1.0], [2.0]], [[3.0], [4.0], [5.0]])
    root = np.sqrt(2.0)
    users = np.array([1 + 3 / root + 2, 2 + 4 / root]) / 2
    # Nobody has the third item: it keeps half of what it starts from.
    items = np.array([3 + 1 / root, 4 + 1 / 2 + 2 / root, 5]) / 2
    np.testing.assert_allclose(model.scores(np.array([0, 1])), np.outer(users, items), rtol=1e-6)


def test_three_layers_are_powers_of_the_graph(train):
    """E = (I + Ã + Ã² + Ã³) E⁰ / 4, with Ã written out as a dense matrix."""
    model = LightGCN(LightGCNParameters(**{**QUICK, "epochs": 1}, layers=3)).fit(train)
    dense = train.toarray()
    edges = dense / np.sqrt(np.outer(dense.sum(1), dense.sum(0)))
    graph = np.block([[np.zeros((20, 20)), edges], [edges.T, np.zeros((15, 15))]])
    start = np.concatenate([weight.detach().numpy() for weight in model._weights])
    final = sum(np.linalg.matrix_power(graph, power) @ start for power in range(4)) / 4
    np.testing.assert_allclose(model.scores(EVERYBODY), final[:20] @ final[20:].T, rtol=1e-4, atol=1e-6)


def test_gradients_go_through_the_graph(train):
    """Ã is symmetric, which the gradient makes use of; autograd with a dense Ã must give the same."""
    model = LightGCN(LightGCNParameters(**QUICK, layers=2)).fit(train)
    users, items = torch.arange(6), torch.arange(12).reshape(6, 2)
    for weight in model._weights:
        weight.grad = None
    model._logits(users, items)[0].square().sum().backward()
    found = [weight.grad.clone() for weight in model._weights]
    graph = torch.from_numpy(model._graph.toarray())
    leaves = [weight.detach().clone().requires_grad_() for weight in model._weights]
    layers = [torch.cat(leaves)]
    for _ in range(2):
        layers.append(graph @ layers[-1])
    user_rows, item_rows = (sum(layers) / 3).split([20, 15])
    (item_rows[items] * user_rows[users][:, None]).sum(2).square().sum().backward()
    for leaf, grad in zip(leaves, found, strict=True):
        torch.testing.assert_close(grad, leaf.grad, rtol=1e-4, atol=1e-5)


def test_without_layers_it_is_matrix_factorization(train):
    """The same draws by the same name, and biases that are put back to 0 after each step of MF-BPR."""

    class Plain(LightGCN):
        name = "mf-bpr"

    class WithoutBias(MFBPR):
        def _logits(self, users, items):
            with torch.no_grad():
                self._weights[2].zero_()
            return super()._logits(users, items)

    spread = Plain(LightGCNParameters(**QUICK, layers=0)).fit(train)
    factorized = WithoutBias(FactorizationParameters(**QUICK)).fit(train)
    for one, other in zip(spread._weights, factorized._weights[:2], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_an_epoch_changes_what_is_scored(train):
    """Embeddings that were spread before are not used again after more training."""
    asked = []
    model = LightGCN(LightGCNParameters(**QUICK | {"evaluate_every": 1}))
    model.fit(train, validation_score=lambda scores: asked.append(scores(EVERYBODY)) or float(len(asked)))
    assert not any(np.allclose(one, other) for one, other in pairwise(asked))


def test_neumf_by_hand():
    """p' = (1, 2), q' = (3, -1), p = 1, q = 2, W = [[1, -1], [1, 1]], a = (0, -2), h = (1, 2, 4, 8), b = 1/2.

    p' ⊙ q' = (3, -2); the perceptron's layer is relu(1 + 2 + 0, -1 + 2 - 2) = (3, 0); hᵀ (3, -2, 3, 0) + b = 11.5.
    """
    parameters = NeuMFParameters(2, learning_rate=0.1, weight_decay=0.0, epochs=0, hidden=(2, 2))
    model = NeuMF(parameters).fit(sparse.csr_matrix([[1, 0]]))
    weights_of(
        model,
        [[1.0, 2.0]],
        [[3.0, -1.0], [0.0, 0.0]],
        [1.0, 2.0, 4.0, 8.0],
        [0.5],
        [[1.0]],
        [[2.0], [0.0]],
        [[1.0, -1.0], [1.0, 1.0]],
        [0.0, -2.0],
    )
    # The second item has zeros: relu(1, -1 - 2) = (1, 0), so 4 + 1/2.
    np.testing.assert_allclose(model.scores(np.array([0])), [[11.5, 4.5]])


def test_neumf_without_its_perceptron_is_gmf(train):
    """GMF written out: hᵀ (p ⊙ q) + b, BCE, Adam, the same initial values and draws."""
    parameters = NeuMFParameters(**QUICK, hidden=())
    model = NeuMF(parameters).fit(train)
    start = NeuMF(NeuMFParameters(**{**QUICK, "epochs": 0}, hidden=())).fit(train)._weights
    p, q, h, b = (weight.detach().clone().requires_grad_() for weight in start)
    optimizer = torch.optim.Adam([p, q, h, b], lr=parameters.learning_rate)
    sampler, coo = NegativeSampler(train), train.tocoo()
    for epoch in range(1, parameters.epochs + 1):
        order = generator(0, epoch, Purpose.BATCH_ORDER, "neumf").permutation(train.nnz)
        users = coo.row[order].astype(np.int64)
        negatives = sampler.draw(users, 4, generator(0, epoch, Purpose.TRAIN_NEGATIVES, "neumf"))
        items = np.concatenate([coo.col[order, None], negatives], axis=1).astype(np.int64)
        for first in range(0, train.nnz, parameters.batch_size):
            u, i = (torch.from_numpy(a[first : first + parameters.batch_size]) for a in (users, items))
            logits = torch.einsum("d,bd,bkd->bk", h, p[u], q[i]) + b
            target = torch.zeros_like(logits)
            target[:, 0] = 1
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, target)
            loss = loss + 0.01 * (p[u].square().sum(1).mean() + q[i].square().sum(2).mean())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    expected = ((p * h) @ q.T + b).detach().numpy()
    np.testing.assert_allclose(model.scores(EVERYBODY), expected, rtol=2e-3, atol=2e-4)


def test_a_perceptron_that_nobody_listens_to_is_gmf_too(train):
    """With zeros in h for the perceptron, scores are those of the product alone."""
    model = NeuMF(NeuMFParameters(**QUICK, hidden=(8, 4))).fit(train)
    with torch.no_grad():
        model._weights[2][4:] = 0
    p, q, h, b = (weight.detach().numpy() for weight in model._weights[:4])
    np.testing.assert_allclose(model.scores(EVERYBODY), (p * h[:4]) @ q.T + b, rtol=1e-5, atol=1e-6)


def test_one_width_is_a_perceptron_without_layers(train):
    """hidden = (6,): p and q of 3 values each go into h as they are."""
    model = NeuMF(NeuMFParameters(**QUICK, hidden=(6,))).fit(train)
    of_users, of_items, h, b, p, q = (weight.detach().numpy() for weight in model._weights)
    expected = (of_users * h[:4]) @ of_items.T + (p @ h[4:7])[:, None] + q @ h[7:] + b
    np.testing.assert_allclose(model.scores(EVERYBODY), expected, rtol=1e-5, atol=1e-6)


def test_a_width_that_cannot_be_halved_is_refused():
    with pytest.raises(BouquetError, match="must be even, not 7"):
        NeuMF(NeuMFParameters(**QUICK, hidden=(7, 4)))
