"""iALS with all data in one place: by hand, beside the federated sums, and beside the package implicit."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from bouquet.errors import BouquetError
from models.centralized import IALS, MFBPR, FactorizationParameters, IALSParameters
from models.centralized.ials import solved


@pytest.fixture
def train():
    """60 users of two tastes, 40 items: 4 of 5 of their own half and hardly any of the other."""
    generator = np.random.default_rng(3)
    half = (np.arange(60)[:, None] < 30) == (np.arange(40)[None, :] < 20)
    return sparse.csr_matrix((generator.random((60, 40)) < np.where(half, 0.8, 0.02)).astype(np.float64))


def test_one_side_by_hand():
    """d = 1, items 1, 2, 3, the user has the last two, α0 = 1/2, λ = 1/4, ν = 1.

    λ_u = 1/4 (2 + 3/2) = 7/8; p = (2 + 3) / (4 + 9 + (1 + 4 + 9) / 2 + 7/8) = 5 / 20.875.
    """
    parameters = IALSParameters(rank=1, unobserved=0.5, regularization=0.25, frequency=1.0)
    matrix = sparse.csr_matrix([[0.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
    found = solved(matrix, np.array([[1.0], [2.0], [3.0]]), parameters)
    np.testing.assert_allclose(found, [[5 / 20.875], [0.0]])


def test_every_sweep_lowers_the_loss(train):
    """Each half of a sweep is exact, so the loss falls until it hardly changes."""
    dense = train.toarray()

    def loss(sweeps: int) -> float:
        parameters = IALSParameters(rank=4, sweeps=sweeps, frequency=0.0, regularization=0.5)
        model = IALS(parameters).fit(train)
        _, items = model._solution
        users = solved(train, items, parameters)
        scores = users @ items.T
        observed = ((1 - scores[dense > 0]) ** 2).sum()
        held_down = 0.5 * ((users**2).sum() + (items**2).sum())
        return observed + parameters.unobserved * (scores**2).sum() + held_down

    losses = [loss(sweeps) for sweeps in (1, 2, 4, 8)]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > 1.01 * losses[-1]


def test_validation_chooses_both_settings(train):
    """A score that rises with λ and falls with α0 up to .1: the end of the one grid, and a place inside the other."""
    model = IALS(IALSParameters(rank=2, sweeps=2))

    def score(_) -> float:
        tried = model._solution[0]
        return tried.regularization - abs(np.log(tried.unobserved / 0.1))

    model.fit(train, validation_score=score)
    assert model.chosen == {"regularization": 0.03, "unobserved": 0.1}
    chosen = IALSParameters(rank=2, sweeps=2, regularization=0.03, unobserved=0.1)
    np.testing.assert_array_equal(model.scores(np.arange(60)), IALS(chosen).fit(train).scores(np.arange(60)))


def test_weights_of_nothing_are_refused(train):
    with pytest.raises(BouquetError, match="above 0"):
        IALS(IALSParameters(unobserved=0.0)).fit(train)


def test_implicit_solves_the_same(train):
    """Its loss is Σ c (1 - s)² with c = 1 + 1/α0 on what is seen and 1 elsewhere, target 0 there, and λ' on factors.

    Ours is Σ_S (1 - s)² + α0 Σ s². With s' = (1 + α0) s it is α0 / (1 + α0)² times theirs where
    λ' = λ (1 + α0) / α0 and factors are sqrt(1 + α0) times as long. Five sweeps from the same start then give the same.
    """
    als = pytest.importorskip("implicit.als", reason="the package implicit, a second opinion, is not installed")
    ours = IALSParameters(rank=5, unobserved=0.5, regularization=0.4, frequency=0.0, sweeps=5)
    # 1 + 1 / α0 = 3 is the same number in the 4 bytes that theirs keeps of it.
    start = np.random.default_rng(0).standard_normal((40, 5)) * 0.1
    items = start
    for _ in range(5):
        users = solved(train, items, ours)
        items = solved(train.T.tocsr(), users, ours)
    longer = np.sqrt(1 + ours.unobserved)
    theirs = als.AlternatingLeastSquares(
        factors=5,
        regularization=ours.regularization * (1 + ours.unobserved) / ours.unobserved,
        alpha=1.0,
        iterations=5,
        dtype=np.float64,
        use_cg=False,
        use_native=True,
        num_threads=1,
        random_state=0,
    )
    theirs.user_factors, theirs.item_factors = np.zeros((60, 5)), longer * start
    theirs.fit(train * (1 + 1 / ours.unobserved), show_progress=False)
    np.testing.assert_allclose(theirs.item_factors, longer * items, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(theirs.user_factors, longer * users, rtol=1e-6, atol=1e-9)


def test_implicit_ranks_as_well_by_bpr(train):
    """Two programs that learn BPR by other steps: of the hidden positives' pairs both order about as many right."""
    bpr = pytest.importorskip("implicit.bpr", reason="the package implicit, a second opinion, is not installed")
    dense = train.toarray() > 0
    hidden = np.random.default_rng(1).random(dense.shape) < 0.2
    seen = sparse.csr_matrix((dense & ~hidden).astype(np.float32))

    def right_pairs(scores: np.ndarray) -> float:
        shares = []
        for row in range(60):
            one, other = scores[row, dense[row] & hidden[row]], scores[row, ~dense[row]]
            shares.append((one[:, None] > other[None, :]).mean() if len(one) else np.nan)
        return float(np.nanmean(shares))

    theirs = bpr.BayesianPersonalizedRanking(
        factors=4, learning_rate=0.05, regularization=0.01, iterations=100, num_threads=1, random_state=0
    )
    theirs.fit(seen, show_progress=False)
    ours = MFBPR(FactorizationParameters(4, learning_rate=0.02, weight_decay=0.05, epochs=40, batch_size=128)).fit(seen)
    of_theirs = right_pairs(theirs.user_factors @ theirs.item_factors.T)
    of_ours = right_pairs(ours.scores(np.arange(60)))
    # Popularity knows no halves, and of one half what is hidden was seen less often: .42.
    assert of_theirs > 0.85
    assert of_ours == pytest.approx(of_theirs, abs=0.02)
