from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from bouquet.errors import BouquetError
from bouquet.ragged import Ragged
from models.centralized import EASE, EASEParameters
from models.centralized import ease as module


@pytest.fixture
def train():
    """30 users, 12 items, 4 to 8 positives each."""
    generator = np.random.default_rng(0)
    dense = np.zeros((30, 12))
    for row in dense:
        row[generator.permutation(12)[: generator.integers(4, 9)]] = 1
    return sparse.csr_matrix(dense)


def weights(model: EASE, num_items: int) -> np.ndarray:
    """B [m, m]: its rows are the scores after one item."""
    return model.scores_after(Ragged.from_lengths(np.ones(num_items), np.arange(num_items)))


def direct(dense: np.ndarray, regularization: float) -> np.ndarray:
    """Eq. 8 as it stands, [m, m] in float64."""
    inverse = np.linalg.inv(dense.T @ dense + regularization * np.eye(dense.shape[1]))
    found = -inverse / np.diag(inverse)
    np.fill_diagonal(found, 0.0)
    return found


def test_by_hand():
    """Two items, both held by one user, each by one more: XᵀX = [[2, 1], [1, 2]].

    With λ = 1 the matrix is [[3, 1], [1, 3]] and P = [[3, -1], [-1, 3]] / 8, so B_01 = -P_01 / P_11 = 1/3. A user
    with item 0 only scores item 1 at 1/3 and item 0 at 0.
    """
    train = sparse.csr_matrix([[1, 1], [1, 0], [0, 1]])
    scores = EASE(EASEParameters(regularization=1.0)).fit(train).scores(np.array([1]))
    np.testing.assert_allclose(scores, [[0, 1 / 3]], atol=1e-7)


def test_fewer_users_than_items_by_hand():
    """One user with items 0 and 1 of three, λ = 1: K = 1 / (2 + 1), so x_iᵀ K x_j = 1/3 for i, j in {0, 1}, else 0.

    q = (1/3, 1/3, 0). After item 0 alone: item 0 scores (1/3 - 1/3) / (2/3) = 0, item 1 (1/3) / (2/3) = 1/2, item 2
    nothing. Eq. 8 agrees: P of [[2, 1], [1, 2]] is [[2, -1], [-1, 2]] / 3, and B_01 = 1/2.
    """
    model = EASE(EASEParameters(regularization=1.0)).fit(sparse.csr_matrix([[1, 1, 0]]))
    np.testing.assert_allclose(weights(model, 3), [[0, 0.5, 0], [0.5, 0, 0], [0, 0, 0]], atol=1e-7)


def test_it_solves_the_constrained_least_squares(train):
    """Column j of B is a ridge regression of item j on all others (the constraint B_jj = 0 removes column j)."""
    dense = train.toarray()
    expected = np.zeros((12, 12))
    for item in range(12):
        others = np.delete(np.arange(12), item)
        x, y = dense[:, others], dense[:, item]
        expected[others, item] = np.linalg.solve(x.T @ x + 5.0 * np.eye(11), x.T @ y)
    found = weights(EASE(EASEParameters(regularization=5.0)).fit(train), 12)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert (np.diag(found) == 0).all()


@settings(max_examples=60)
@given(
    users=st.integers(1, 40),
    items=st.integers(2, 40),
    share=st.floats(0.02, 0.9),
    regularization=st.sampled_from([1.0, 10.0, 300.0, 3000.0]),
    single=st.booleans(),
    block=st.sampled_from([1, 7, 1000]),
    seed=st.integers(0, 10**6),
)
def test_any_form_gives_the_scores_of_the_paper(users, items, share, regularization, single, block, seed):
    """Fewer users than items or more, in one block or many, in 8 bytes or 4, after any history.

    In 4 bytes the error grows with the condition number of the matrix, (σ² + λ) / λ with σ² <= users * items.
    """
    generator = np.random.default_rng(seed)
    dense = (generator.random((users, items)) < share).astype(float)
    dense[0, 0] = 1
    side = min(users, items)
    parameters = EASEParameters(regularization, max_bytes=side**2 * (4 if single else 8))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK_BYTES", 8 * block * side)
        model = EASE(parameters).fit(sparse.csr_matrix(dense))
    histories = generator.random((5, items)) < 0.3
    rows = Ragged.from_lengths(histories.sum(axis=1), np.nonzero(histories)[1])
    expected = histories @ direct(dense, regularization)
    largest = np.abs(expected).max(initial=0)
    # Scores are given back in float32, whose own rounding is 6e-8; in 4 bytes every product of a sum adds one.
    tolerance = 5e-7 * (1 + dense.sum() / regularization) if single else 1e-6
    np.testing.assert_allclose(model.scores_after(rows), expected, rtol=tolerance, atol=tolerance * max(largest, 1e-3))


def test_it_says_when_the_matrices_do_not_fit():
    """Two matrices of 4-byte numbers: 2 · 30,000² · 4 = 7.2 GB, twice that in 8 bytes."""
    train = sparse.csr_matrix(([1.0], ([0], [0])), shape=(30_000, 40_000))
    with pytest.raises(BouquetError, match=r"30,000 users and 40,000 items needs 7\.2 GB.*allows 7\.1 GB.*'itemknn'"):
        EASE(EASEParameters(max_bytes=7_100_000_000)).fit(train, validation_score=lambda _: 0.0)


def test_a_catalogue_of_45000_items_is_within_the_limit():
    """Two matrices of 4 bytes are 16.2 GB, of 24; fewer users than items need no more than their own number."""
    limit = EASEParameters().max_bytes
    assert module._precision((10**6, 45_000), 2, limit) is np.float32
    assert module._precision((4_000, 10**6), 2, limit) is np.float64
    with pytest.raises(BouquetError, match="itemknn"):
        module._precision((10**6, 48_000), 2, limit)


def test_many_items_and_few_users_need_little():
    """A million items and two users: nothing of the size of the catalogue squared is made."""
    train = sparse.csr_matrix(([1.0, 1.0, 1.0], ([0, 0, 1], [0, 999_999, 5])), shape=(2, 1_000_000))
    scores = EASE(EASEParameters(regularization=1.0)).fit(train).scores_after(Ragged.from_lengths([1], [0]))
    assert scores[0, 999_999] == pytest.approx(0.5)
    assert np.count_nonzero(scores) == 1


def test_it_needs_regularization(train):
    with pytest.raises(BouquetError, match="regularization above 0"):
        EASE(EASEParameters(regularization=0.0)).fit(train)


class TestChoosing:
    def values(self, by_regularization):
        """A validation score that knows λ by the scores that it gives, and what was asked."""
        asked = []

        def of(train):
            known = {
                regularization: EASE(EASEParameters(regularization)).fit(train).scores(np.arange(30))
                for regularization in by_regularization
            }

            def score(scores):
                found = scores(np.arange(30))
                (regularization,) = [λ for λ, expected in known.items() if np.allclose(found, expected, rtol=1e-5)]
                asked.append(regularization)
                return by_regularization[regularization]

            return score

        return of, asked

    @pytest.mark.parametrize(
        ("values", "wanted", "asked"),
        [
            ((1, 2, 3, 4, 3, 2), 300, [300, 1000, 100]),
            ((1, 2, 3, 4, 5, 4), 1000, [300, 1000, 3000]),
            ((1, 2, 3, 4, 5, 6), 3000, [300, 1000, 3000]),
            ((1, 7, 6, 5, 4, 3), 30, [300, 1000, 100, 30, 10]),
            ((5, 5, 5, 5, 5, 5), 10, [300, 1000, 100, 30, 10]),
            ((1, 2, 5, 5, 4, 3), 100, [300, 1000, 100, 30]),
        ],
    )
    def test_uphill_from_300_and_the_first_among_equals(self, train, values, wanted, asked):
        of, seen = self.values(dict(zip(EASEParameters().grid, values, strict=True)))
        model = EASE().fit(train, validation_score=of(train))
        assert model.chosen == {"regularization": wanted}
        assert sorted(seen) == sorted(asked)
        plain = EASE(EASEParameters(regularization=wanted)).fit(train)
        np.testing.assert_array_equal(model.scores(np.arange(30)), plain.scores(np.arange(30)))

    def test_a_score_that_is_not_a_number_is_refused(self, train):
        with pytest.raises(BouquetError, match="not a number"):
            EASE().fit(train, validation_score=lambda _: float("nan"))
