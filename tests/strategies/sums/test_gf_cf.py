"""GF-CF on the server: G̃, its eigenvectors, and what is published, against the paper's matrices made in one place."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from bouquet.cells import FINE
from bouquet.config import RunConfig
from bouquet.methods.gf_cf import GfCfOptions
from bouquet.ragged import Ragged
from bouquet.reporting.run_directory import RunDirectory
from bouquet.testing import run_here, small_settings
from bouquet.wire import RosterReply, TrainReply
from client_app.sums.gf_cf import GfCf as Device
from strategies.federation.roster import combine
from strategies.numerics.eigenvectors import leading
from strategies.sums.gf_cf import GfCf


def ragged(*histories):
    return Ragged.from_lengths([len(h) for h in histories], [item for h in histories for item in h])


def server(histories: Ragged, num_items: int, **options) -> GfCf:
    """A server that knows its users."""
    chosen = GfCfOptions(**options)
    made = GfCf(RunConfig(strategy="gf-cf"), chosen, RunDirectory(""))
    keys = np.arange(1, len(histories) + 1, dtype=np.uint64)
    size = int(histories.lengths.sum())
    specs = chosen.published(num_items)
    made.roster = combine({1: RosterReply(keys, histories.lengths, size, 0, num_items, "c", 1, specs)})
    made.versions = np.zeros(len(keys), np.int64)
    made.prepare()
    return made


def reply(histories: Ragged, users, num_items: int, **options) -> TrainReply:
    """What a node with these users says."""
    users = np.asarray(users)
    cells = Device(num_items, GfCfOptions(**options)).contribution(histories.take(users))
    nothing = np.zeros(len(users))
    keys = (users + 1).astype(np.uint64)
    return TrainReply(
        keys, nothing.astype(np.float32), nothing.astype(np.int64), cells=cells, sizes=histories.take(users).lengths
    )


def aggregated(histories: Ragged, num_items: int, nodes, **options):
    """The server, and what it publishes, where users are on these nodes."""
    made = server(histories, num_items, **options)
    replies = [reply(histories, users, num_items, **options) for users in nodes]
    for users, said in zip(nodes, replies, strict=True):
        assert made.refusal(said, np.asarray(users)) == ""
    return made, made.aggregate(1, {}, replies, [np.asarray(users) for users in nodes])


def test_two_users_by_hand():
    """Users {0, 1} and {1}: n = (2, 1), D_i = (1, 2).

    Σ x xᵀ / n = [[1/2, 1/2], [1/2, 1/2 + 1]], so with D_i^-½ = (1, 1/√2) on both sides
    G̃ = [[1/2, 1/(2√2)], [1/(2√2), 3/4]]. Its eigenvalues solve λ² - 5/4 λ + 3/8 - 1/8 = 0: 1 and 1/4, and
    (G̃ - 1) v = 0 gives v = (1, √2) / √3.
    """
    _, found = aggregated(ragged([0, 1], [1]), 2, [[0, 1]], gf_cf_rank=1)
    half = 1 / (2 * np.sqrt(2))
    np.testing.assert_allclose(found["weights"], [[1 / 2, half], [half, 3 / 4]], atol=1e-7)
    np.testing.assert_allclose(found["vectors"].ravel(), np.array([1, np.sqrt(2)]) / np.sqrt(3), atol=1e-7)
    np.testing.assert_allclose(found["root"], [1, np.sqrt(2)], atol=1e-7)


@st.composite
def matrices(draw):
    """Interactions [n, m]; some items may be nobody's."""
    users, items = draw(st.integers(1, 12)), draw(st.integers(2, 15))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    matrix = (random.random((users, items)) < draw(st.sampled_from([0.1, 0.3, 0.7]))).astype(float)
    matrix[np.arange(users), random.integers(0, items, users)] = 1.0
    return matrix


def pooled(matrix, scored, rank, mixture):
    """The paper's scores of other histories, with dense matrices in one place; eigenvectors of λ = 0 count nothing."""
    counts = matrix.sum(axis=0)
    down = np.where(counts > 0, np.maximum(counts, 1) ** -0.5, 0.0)
    normal = matrix / np.sqrt(matrix.sum(axis=1, keepdims=True)) * down
    _, singular, right = np.linalg.svd(normal, full_matrices=False)
    kept = right[:rank][singular[:rank] > 1e-6]
    gap = singular[rank - 1] - singular[rank] if rank < len(singular) else 1.0
    ideal = (scored * down) @ kept.T @ kept * np.sqrt(counts)
    return scored @ (normal.T @ normal) + mixture * ideal, gap


def histories_of(matrix) -> Ragged:
    rows, items = np.nonzero(matrix)
    return Ragged.from_pairs(rows, items, len(matrix))


@given(matrices(), st.integers(1, 6), st.sampled_from([0.0, 0.3, 2.0]))
def test_scores_are_those_of_the_paper_with_all_data_in_one_place(matrix, rank, mixture):
    users, items = matrix.shape
    rank = min(rank, items)
    histories = histories_of(matrix)
    chosen = {"gf_cf_rank": rank, "gf_cf_mixture": mixture, "published_neighbors": 0}
    _, published = aggregated(histories, items, [np.arange(users)], **chosen)
    # A history that nobody trained on: the last user's and one item more.
    other = np.maximum(matrix[-1:], np.eye(items)[:1])
    expected, gap = pooled(matrix, np.concatenate([matrix, other]), rank, mixture)
    if mixture and gap < 1e-3:  # two vectors of nearly one value: either may be the last
        return
    scored = histories_of(np.concatenate([matrix, other]))
    found = Device(items, GfCfOptions(**chosen)).scores(published, scored)
    np.testing.assert_allclose(found, expected, atol=2e-6 * max(1.0, np.abs(expected).max()))


@given(matrices(), st.integers(0, 2**32))
def test_nodes_change_no_bit_of_a_sum(matrix, seed):
    """Nor of G̃. Eigenvectors of equal matrices are equal but for what LAPACK makes of where they lie in memory."""
    users, items = matrix.shape
    homes = np.random.default_rng(seed).integers(0, 4, users)
    nodes = [np.flatnonzero(homes == home) for home in np.unique(homes)]
    histories = histories_of(matrix)
    (one, whole), (other, parts) = (
        aggregated(histories, items, where, gf_cf_rank=2) for where in ([np.arange(users)], nodes)
    )
    for name, values in one.extra_arrays().items():
        np.testing.assert_array_equal(other.extra_arrays()[name], values)
    for name in ("weights", "root"):
        np.testing.assert_array_equal(parts[name], whole[name])


def test_of_many_items_the_neighbours_with_the_largest_weights_are_published():
    matrix = (np.random.default_rng(0).random((40, 30)) < 0.3).astype(float)
    matrix[:, 0] = 1.0
    histories = histories_of(matrix)
    _, whole = aggregated(histories, 30, [range(40)], published_neighbors=0, gf_cf_rank=3)
    _, part = aggregated(histories, 30, [range(40)], published_neighbors=5, gf_cf_rank=3)
    for item in range(30):
        kept = part["neighbors"][item]
        assert sorted(whole["weights"][item, kept]) == sorted(np.sort(whole["weights"][item])[-5:])
        np.testing.assert_array_equal(part["weights"][item], whole["weights"][item, kept])
    np.testing.assert_array_equal(part["vectors"], whole["vectors"])


def test_without_the_ideal_filter_nothing_of_it_is_made():
    _, found = aggregated(ragged([0, 1], [1, 2]), 3, [[0, 1]], gf_cf_mixture=0.0)
    assert set(found) == {"weights"}


def test_a_reply_that_is_larger_than_its_users_can_give_is_refused():
    histories = ragged([0, 1, 2], [1, 2])
    made = server(histories, 3)
    honest = reply(histories, [0, 1], 3)
    assert made.refusal(honest, np.arange(2)) == ""
    for name in ("together", "counts"):
        lie = reply(histories, [0, 1], 3)
        lie.cells[name].values[:] = 3.0
        assert name in made.refusal(lie, np.arange(2))


@pytest.mark.parametrize("more", [0, 1, 5])
def test_a_history_that_grows_is_an_increment_that_is_believed(more):
    """From one item, which counted 1, to 1 + more, each of which counts 1 / (1 + more)."""
    before, now = ragged([0]), ragged(list(range(1 + more)))
    made = server(before, 8)
    first, second = reply(before, [0], 8), reply(now, [0], 8)
    made.aggregate(1, {}, [first], [np.arange(1)])
    made.versions[:] = 1
    specs = made.summed(8)
    cells = {name: found.minus(first.cells[name], specs[name]) for name, found in second.cells.items()}
    step = TrainReply(second.users, second.loss, second.upload_bytes, cells=cells, sizes=second.sizes)
    assert made.refusal(step, np.arange(1)) == ""
    found = made.aggregate(2, {}, [step], [np.arange(1)])
    _, expected = aggregated(now, 8, [[0]])
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)


def filtered(items, seed=0):
    """A sparse G̃ of 3 m users with some structure."""
    random = np.random.default_rng(seed)
    taste = random.random((3 * items, 4)) @ random.random((4, items))
    matrix = (taste * random.random(taste.shape) > np.quantile(taste, 0.6)).astype(float)
    matrix[:, 0] = 1.0
    counts = np.maximum(matrix.sum(axis=0), 1)
    normal = matrix / np.sqrt(matrix.sum(axis=1, keepdims=True)) / np.sqrt(counts)
    return sparse.csr_matrix(normal.T @ normal)


def test_few_vectors_of_many_are_those_of_a_dense_decomposition():
    """Above six times as many rows as vectors they are found by iteration."""
    matrix, count = filtered(120), 7
    found = leading(matrix, count)
    values, vectors = np.linalg.eigh(matrix.toarray())
    assert values[-count] - values[-count - 1] > 1e-5
    expected = vectors[:, ::-1][:, :count]
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=1e-6)
    np.testing.assert_allclose(matrix @ found, found * values[::-1][:count], atol=1e-8)
    assert (found[np.abs(found).argmax(axis=0), np.arange(count)] > 0).all()
    assert leading(matrix, count).tobytes() == found.tobytes()


def test_a_vector_of_no_eigenvalue_is_nothing():
    """[[1, 1], [1, 1]] / 2 has the eigenvalues 1 and 0."""
    found = leading(sparse.csr_matrix(np.full((2, 2), 0.5)), 2)
    np.testing.assert_allclose(found, [[np.sqrt(0.5), 0], [np.sqrt(0.5), 0]], atol=1e-12)
    assert not leading(sparse.csr_matrix((3, 3)), 2).any()


def test_a_run_is_the_same_on_any_nodes_and_better_than_chance(tmp_path):
    settings_of = small_settings(tmp_path, strategy="gf-cf", num_server_rounds=1, gf_cf_rank=8, published_neighbors=20)
    runs = [run_here(tmp_path / f"{nodes}", settings_of, nodes) for nodes in (1, 3)]
    one, three = (run.read_summary() for run in runs)
    assert one["test"] == three["test"]
    assert one["rounds"] == 1
    assert one["validation"]["full"]["HR@10"] > 10 / 60


def test_values_fit_the_grid():
    cells = Device(5, GfCfOptions()).contribution(ragged([0, 2, 4]))["together"]
    assert cells.values.dtype == np.float32
    assert (cells.values / FINE == np.round(cells.values / FINE)).all()
