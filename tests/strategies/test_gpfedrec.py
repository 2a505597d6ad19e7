"""GPFedRec on the server: similarity, graph and convolution by hand, what must hold for any tables, and over rounds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bouquet.arrays import ArraySpec
from bouquet.config import RunConfig
from bouquet.errors import ConfigError
from bouquet.methods.gpfedrec import GPFedRecOptions
from bouquet.packed import PackedRows
from bouquet.reporting.run_directory import RunDirectory
from bouquet.wire import TrainReply
from strategies.fedca import mix
from strategies.federation.roster import Roster
from strategies.gpfedrec import GPFedRec, cosine_similarity, inner_products, neighbour_graph
from tests.runs.helpers import last_checkpoint, run_here, small_settings

PAPER = {"server_optimizer": "sgd", "server_learning_rate": 1.0}
LAYOUT = {"num_server_rounds": 4, "checkpoint_every": 4, "evaluate_every": 2}


def strategy(tmp_path, users=3, items=2, size=2, **options):
    method = GPFedRec(RunConfig(), GPFedRecOptions(**{**PAPER, **options}), RunDirectory(tmp_path))
    specs = {"item_embedding": ArraySpec((items, size), by_item=True)}
    keys = np.arange(users, dtype=np.uint64)
    method.roster = Roster(keys, np.full(users, 2), np.ones(users, np.uint64), 1, 2 * users, 0, items, "", specs)
    method.prepare()
    return method


def reply(*changes):
    """The changes of whole tables, one for each user."""
    users = np.arange(len(changes), dtype=np.uint64)
    rows = {"item_embedding": PackedRows(None, None, np.array(changes, np.float32))}
    return TrainReply(users, np.zeros(len(users), np.float32), np.zeros(len(users), np.int64), rows=rows)


def test_similarity_by_hand():
    """C = (1, 0), Δ = (0, 0), (0, 1), (-1, 2), (-1, 0): Q = (1, 0), (1, 1), (0, 2), (0, 0).

    cos(Q_1, Q_2) = 1/√2, cos(Q_2, Q_3) = 2 / (√2 · 2) = 1/√2, cos(Q_1, Q_3) = 0; zeros are like nobody's, 0 throughout.
    """
    changes = np.array([[[0, 0]], [[0, 1]], [[-1, 2]], [[-1, 0]]], np.float32)
    found = cosine_similarity(inner_products(np.array([[1, 0]], np.float32), changes))
    r = 1 / np.sqrt(2)
    np.testing.assert_allclose(found, [[1, r, 0, 0], [r, 1, r, 0], [0, r, 1, 0], [0, 0, 0, 0]], atol=1e-15)


SIMILARITY = np.array([[1, 0.9, 0.1], [0.9, 1, 0.2], [0.1, 0.2, 1]])


@pytest.mark.parametrize(
    ("graph", "threshold", "expected"),
    [
        ("similarity", 1.0, [[1 / 2, 1 / 2, 0], [1 / 2, 1 / 2, 0], [0, 0, 1]]),
        ("similarity", 0.4, [[1 / 2, 1 / 2, 0], [1 / 3, 1 / 3, 1 / 3], [0, 1 / 2, 1 / 2]]),
        ("similarity", 3.0, np.eye(3)),
        ("distance", 1.0, [[0, 0, 1], [0, 0, 1], [1 / 2, 1 / 2, 0]]),
        ("distance", 1.4, [[0, 0, 1], [0, 1, 0], [1, 0, 0]]),
    ],
)
def test_neighbours_by_hand(graph, threshold, expected):
    """The mean of the pairs .9, .1 and .2 is .4, and of their distances .1, .9 and .8 it is .6.

    Above .4 is only the first pair, above .16 the first and third, above 1.2 nobody, not even a user and itself. Of the
    distances .9 and .8 are above .6, so the code's graph joins those who are not alike, and nobody with itself; above
    .84 is only .9, and the second user has nobody but itself.
    """
    np.testing.assert_allclose(neighbour_graph(SIMILARITY, threshold, graph), expected)


@pytest.mark.parametrize("graph", ["similarity", "distance"])
@pytest.mark.parametrize("level", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_nobody_is_above_a_mean_that_all_are_at(count, level, graph):
    """One user, two, and any number who are equally alike, whatever rounding does to them: each has itself."""
    similarity = np.full((count, count), level) + 1e-15 * np.random.default_rng(0).normal(size=(count, count))
    np.fill_diagonal(similarity, 1.0)
    found = neighbour_graph(similarity, 1.0, graph)
    if level < 1:
        np.testing.assert_array_equal(found, np.eye(count))
    np.testing.assert_allclose(found.sum(axis=1), 1)


@pytest.mark.parametrize(("layers", "first"), [(1, [4, 8 / 3, 2]), (2, [10 / 3, 26 / 9, 7 / 3])])
def test_layers_by_hand(tmp_path, layers, first):
    """Q = (4, 0), (4, 4), (0, 4) from C = 0: s_12 = s_23 = 1/√2, s_13 = 0, whose mean is .471.

    So A = (1/2 1/2 0; 1/3 1/3 1/3; 0 1/2 1/2), as everybody is its own neighbour. The first column of Q, (4, 4, 0),
    becomes (4, 8/3, 2), and in a second layer (10/3, 26/9, 7/3); the second column is the same from the other end.
    """
    method = strategy(tmp_path, items=1, gpfedrec_layers=layers)
    shared = {"item_embedding": np.zeros((1, 2), np.float32)}
    changes = [[[4, 0]], [[4, 4]], [[0, 4]]]
    found = method.aggregate(1, shared, [reply(*changes)], [np.arange(3)])["item_embedding"]
    made = np.stack([first, first[::-1]], axis=1)[:, None]
    np.testing.assert_allclose(found, made.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(found + method.personal(np.arange(3))["item_embedding"], made, rtol=1e-6)


def test_a_round_by_hand(tmp_path):
    """C = (1, 0; 0, 1); Δ of the users is (0, 1; 0, 0), (0, 3; 0, 0), (-3, 0; 0, -1), as they come from two nodes.

    Q_1 = (1, 1; 0, 1), Q_2 = (1, 3; 0, 1), Q_3 = (-2, 0; 0, 0). Cosines: s_12 = 5 / √33 = .870, s_13 = -2 / (2√3) =
    -.577, s_23 = -2 / (2√11) = -.302, whose mean is -.003. So 1 and 2 are neighbours: R_1 = R_2 has the mean change
    (0, 2; 0, 0), and R_3 = Q_3. Their mean change is (-1, 4/3; 0, -1/3): C becomes (0, 4/3; 0, 2/3). What sets them
    apart is (1, 2/3; 0, 1/3), twice, and (-2, -4/3; 0, -2/3).
    """
    method = strategy(tmp_path)
    one, two, three = ([[0, 1], [0, 0]], [[0, 3], [0, 0]], [[-3, 0], [0, -1]])
    shared = {"item_embedding": np.eye(2, dtype=np.float32)}
    found = method.aggregate(1, shared, [reply(one, three), reply(two)], [np.array([0, 2]), np.array([1])])
    np.testing.assert_allclose(found["item_embedding"], [[0, 4 / 3], [0, 2 / 3]], atol=1e-7)
    apart = method.personal(np.array([2, 0, 1]))["item_embedding"]
    np.testing.assert_allclose(apart[1:], [[[1, 2 / 3], [0, 1 / 3]]] * 2, atol=1e-6)
    np.testing.assert_allclose(apart[0], [[-2, -4 / 3], [0, -2 / 3]], atol=1e-6)


def test_touched_rows_alone_are_the_same_as_whole_tables(tmp_path):
    random = np.random.default_rng(0)
    changes = random.normal(size=(3, 5, 2)).astype(np.float32)
    changes[0, [1, 2]] = changes[1] = 0
    rows = [np.flatnonzero(np.abs(change).any(axis=1)) for change in changes]
    packed = PackedRows(
        np.cumsum([0, *map(len, rows)]),
        np.concatenate(rows).astype(np.int32),
        np.concatenate([change[own] for change, own in zip(changes, rows, strict=True)]),
    )
    sparse = reply(*changes)
    sparse.rows["item_embedding"] = packed
    shared = {"item_embedding": random.normal(size=(5, 2)).astype(np.float32)}
    found, expected = (
        strategy(tmp_path, items=5).aggregate(1, shared, [part], [np.arange(3)])["item_embedding"]
        for part in (sparse, reply(*changes))
    )
    np.testing.assert_array_equal(found, expected)


tables = st.lists(st.lists(st.floats(-100, 100, width=32), min_size=4, max_size=4), min_size=1, max_size=7)


@given(
    tables=tables, gamma=st.floats(0, 3), graph=st.sampled_from(["similarity", "distance"]), layers=st.integers(1, 3)
)
def test_every_users_table_is_a_mean_of_some_users_tables(tables, gamma, graph, layers):
    """Rows of A sum to 1 with equal parts, and no table leaves the range of those that it is made of."""
    changes = np.array(tables, np.float32).reshape(-1, 2, 2)
    adjacency = neighbour_graph(cosine_similarity(inner_products(np.zeros((2, 2), np.float32), changes)), gamma, graph)
    np.testing.assert_allclose(adjacency.sum(axis=1), 1)
    for row in adjacency:
        assert len(np.unique(row[row > 0])) == 1
    made = mix(np.linalg.matrix_power(adjacency, layers), changes)
    margin = 1e-5 * np.abs(changes).max()
    assert (made >= changes.min(axis=0) - margin).all()
    assert (made <= changes.max(axis=0) + margin).all()


@pytest.mark.parametrize("backbone", ["mf", "ncf"])
def test_without_neighbours_the_common_table_is_the_plain_mean(tmp_path, backbone):
    """A γ that nobody reaches: PFedRec with a plain mean, to rounding."""
    common = {**LAYOUT, **PAPER, "backbone": backbone}
    alone = {"gpfedrec_threshold": 1e9, "gpfedrec_lambda": 0.0}
    found = run_here(tmp_path / "graph", small_settings(tmp_path, strategy="gpfedrec", **alone, **common), 2)
    expected = run_here(tmp_path / "mean", small_settings(tmp_path, strategy="pfedrec", **common), 2)
    (one,), (other,) = (last_checkpoint(run).shared.values() for run in (found, expected))
    np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"gpfedrec_graph": "distance"},
        {"gpfedrec_evaluate": "user-specific", "fraction_train": 0.4},
        {"gpfedrec_evaluate": "user-specific", "gpfedrec_lambda": 0.0},
        {"gpfedrec_layers": 3, "gpfedrec_threshold": 1.2},
        {"gpfedrec_lambda": 0.5, "server_optimizer": "sgd", "server_learning_rate": 1.0},
        {"update_clip": 0.5, "update_noise": 0.1},
        {"decoy_rows": 3},
    ],
    ids=lambda options: " ".join(options),
)
def test_every_option_gives_the_same_run_on_one_node_and_on_five(tmp_path, options):
    runs = []
    for nodes in (1, 5):
        settings = small_settings(tmp_path, strategy="gpfedrec", **LAYOUT, **options)
        runs.append(run_here(tmp_path / str(nodes), settings, nodes))
    one, other = (last_checkpoint(run) for run in runs)
    for name in ("item_embedding",):
        np.testing.assert_allclose(one.shared[name], other.shared[name], atol=2e-5)
        np.testing.assert_allclose(one.extra[f"apart/{name}"], other.extra[f"apart/{name}"], atol=2e-5)
    np.testing.assert_allclose(runs[0].read_users()[1], runs[1].read_users()[1], atol=1e-5)


def test_who_joins_has_the_common_table_and_who_is_forgotten_leaves_nothing(tmp_path):
    method = strategy(tmp_path)
    method.apart["item_embedding"] += np.arange(1, 4, dtype=np.float32)[:, None, None]
    method.users_joined(2)
    assert method.apart["item_embedding"][:, 0, 0].tolist() == [1, 2, 3, 0, 0]
    method.users_forgotten(np.array([1]))
    assert method.apart["item_embedding"][:, 0, 0].tolist() == [1, 3, 0, 0]


def test_what_it_needs_by_hand(tmp_path):
    """3 users with tables of 2 x 2 float32, 16 bytes: kept 48 and sent 16 each; none is sent that nobody reads."""
    method = strategy(tmp_path)
    assert (method.personal_bytes(), method.kept_bytes()) == (16, 48)
    assert strategy(tmp_path, gpfedrec_lambda=0.0).personal_bytes() == 0
    assert strategy(tmp_path, gpfedrec_lambda=0.0).personal(np.arange(3)) == {}


@pytest.mark.parametrize(
    ("run", "options", "words"),
    [
        ({"exchange": "all"}, {}, "leave exchange out"),
        ({"learning_rate": 10.0}, {"gpfedrec_lambda": 0.1}, "their product must be below 1"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(run, options, words):
    with pytest.raises(ConfigError, match=words):
        GPFedRecOptions(**options).check_run(RunConfig(**run))


def test_five_rounds_and_five_more_are_ten(tmp_path):
    """Also of users who sat out the round of the checkpoint; the kept tables are the same to the bit."""
    settings = small_settings(
        tmp_path, strategy="gpfedrec", fraction_train=0.4, evaluate_every=5, checkpoint_every=5, num_server_rounds=10
    )
    whole = run_here(tmp_path / "whole", settings, 3)
    run_here(tmp_path / "parts", settings | {"num-server-rounds": 5}, 3)
    parts = run_here(tmp_path / "parts", settings | {"resume": str(tmp_path / "parts")}, 3)
    one, other = last_checkpoint(whole), last_checkpoint(parts)
    for mine, theirs in ((one.shared, other.shared), (one.extra, other.extra)):
        assert mine.keys() == theirs.keys()
        for name, values in theirs.items():
            np.testing.assert_array_equal(mine[name], values, err_msg=name)
    np.testing.assert_array_equal(whole.read_users()[1], parts.read_users()[1])
