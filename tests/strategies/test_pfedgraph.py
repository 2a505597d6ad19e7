"""pFedGraph: the graph of a round by hand, what no other weights reach, its limits, and what is kept."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bouquet.arrays import ArraySpec
from bouquet.config import ModelOptions, RunConfig
from bouquet.errors import ConfigError, WireError
from bouquet.methods.pfedgraph import PFedGraphOptions
from bouquet.packed import PackedRows
from bouquet.reporting.run_directory import RunDirectory
from bouquet.wire import TrainReply
from client_app.personalization.pfedgraph import MixedModel
from client_app.personalization.round import Given
from models import BACKBONES
from strategies.federation.roster import Roster
from strategies.pfedgraph import PFedGraph, collaboration_graph
from tests.runs.helpers import last_checkpoint, run_here, small_settings

TABLE = "item_embedding"


def strategy(tmp_path, sizes=(2, 2), items=2, **options):
    method = PFedGraph(RunConfig(), PFedGraphOptions(**options), RunDirectory(tmp_path))
    specs = {TABLE: ArraySpec((items, 2), "zeros", by_item=True)}
    keys = np.arange(len(sizes), dtype=np.uint64)
    method.roster = Roster(
        keys, np.array(sizes), np.ones(len(sizes), np.uint64), 1, sum(sizes), 0, items, "", specs
    )  # fmt: skip
    method.prepare()
    return method


def reply(*changes):
    """The changes of whole tables, one for each user."""
    users = np.arange(len(changes), dtype=np.uint64)
    rows = {TABLE: PackedRows(None, None, np.array(changes, np.float32))}
    return TrainReply(users, np.zeros(len(users), np.float32), np.zeros(len(users), np.int64), rows=rows)


@pytest.mark.parametrize(
    ("alpha", "expected"), [(0.0, [[0.5, 0.5]] * 2), (0.5, [[0.75, 0.25], [0.25, 0.75]]), (4.0, np.eye(2))]
)
def test_the_graph_by_hand(alpha, expected):
    """p = 1/2, s = (1, -1): p + α s / 2 is (3/4, 1/4) for α = 1/2, on the simplex; (5/2, -3/2) for 4, beyond it."""
    np.testing.assert_allclose(collaboration_graph(np.array([[1.0, -1], [-1, 1]]), np.full(2, 0.5), alpha), expected)


rows = st.lists(st.floats(-1, 1), min_size=4, max_size=4)


@given(similarity=rows, sizes=st.lists(st.integers(1, 9), min_size=4, max_size=4), alpha=st.floats(0, 5), other=rows)
def test_no_other_weights_are_better(similarity, sizes, alpha, other):
    """Σ_v (w_v - p_v)² - α w_v s_v over the simplex."""
    shares = np.array(sizes) / sum(sizes)
    weights = collaboration_graph(np.tile(similarity, (4, 1)), shares, alpha)[0]
    rival = np.abs(other) + 1e-3
    rival /= rival.sum()

    def objective(w):
        return ((w - shares) ** 2).sum() - alpha * (w @ np.array(similarity))

    assert weights.min() >= 0
    assert weights.sum() == pytest.approx(1)
    assert objective(weights) <= objective(rival) + 1e-9


def test_a_round_by_hand(tmp_path):
    """Q_0 = 0; the users of sizes 3 and 1 move to (2, 0; 0, 0) and (0, 0; 4, 0), so their cosine is 0, and that of each
    with itself 1. With α = 1/2: p + s / 4 = (1, 1/4) and (3/4, 1/2), whose projections are (7/8, 1/8) and (5/8, 3/8).
    """
    method = strategy(tmp_path, sizes=(3, 1), pfedgraph_alpha=0.5)
    one, two = [[2, 0], [0, 0]], [[0, 0], [4, 0]]
    assert method.aggregate(1, {}, [reply(two), reply(one)], [np.array([1]), np.array([0])]) == {}
    mixed = method.personal(np.arange(2))[TABLE]
    np.testing.assert_allclose(mixed[0], [[1.75, 0], [0.5, 0]])
    np.testing.assert_allclose(mixed[1], [[1.25, 0], [1.5, 0]])


def test_similarity_is_of_what_was_moved_or_of_distances(tmp_path):
    """From 0: cos((1, 1), (2, 0)) = 1/√2. ‖(1, 1) - (2, 0)‖² = 2: 1/3."""
    models = {TABLE: np.array([[[1, 1], [0, 0]], [[2, 0], [0, 0]]], np.float32)}
    for kind, expected in (("cosine", 1 / np.sqrt(2)), ("distance", 1 / 3)):
        found = strategy(tmp_path, pfedgraph_similarity=kind)._similarity(models)
        np.testing.assert_allclose(found, [[1, expected], [expected, 1]], rtol=1e-6)


@pytest.mark.parametrize("backbone", ["mf", "ncf"])
def test_without_similarity_everybody_has_fedavg_s_mean(tmp_path, backbone):
    common = {"backbone": backbone, "num_server_rounds": 4}
    mixed = {"pfedgraph_alpha": 0.0, "pfedgraph_evaluate": "mixed"}
    plain = {"server_optimizer": "sgd", "server_learning_rate": 1.0}
    one = run_here(tmp_path / "graph", small_settings(tmp_path, strategy="pfedgraph", **mixed, **common), 2)
    other = run_here(tmp_path / "mean", small_settings(tmp_path, strategy="fedavg", **plain, **common), 2)
    for name, values in last_checkpoint(other).shared.items():
        models = last_checkpoint(one).extra[f"model/{name}"]
        np.testing.assert_allclose(models, np.repeat(values[None], len(models), axis=0), atol=2e-6)
    np.testing.assert_allclose(one.read_users()[1], other.read_users()[1], atol=1e-5)


def test_with_nothing_but_similarity_everybody_is_alone(tmp_path):
    """However alike two users are, each is more like itself: the run without federation."""
    alone = run_here(tmp_path / "local", small_settings(tmp_path, strategy="local"), 2)
    graph = run_here(tmp_path / "graph", small_settings(tmp_path, strategy="pfedgraph", pfedgraph_alpha=1e9), 2)
    np.testing.assert_allclose(graph.read_users()[1], alone.read_users()[1], atol=1e-5)


def test_who_joins_has_the_initial_model_and_who_is_forgotten_leaves_nothing(tmp_path):
    method = strategy(tmp_path)
    method.models[TABLE] += np.arange(1, 3, dtype=np.float32)[:, None, None]
    method.users_joined(1)
    assert method.models[TABLE][:, 0, 0].tolist() == [1, 2, 0]
    method.users_forgotten(np.array([0]))
    assert method.models[TABLE][:, 0, 0].tolist() == [2, 0]
    assert (method.personal_bytes(), method.kept_bytes()) == (16, 32)


def test_a_device_starts_from_what_was_mixed_for_it_and_recommends_with_what_it_made_of_it():
    model = BACKBONES["mf"](3, ModelOptions(embedding_size=2))
    given_ = Given({}, {TABLE: np.full((2, 3, 2), 7, np.float32)})
    personal = {TABLE: np.full((2, 3, 2), 4, np.float32)}
    device = MixedModel(model, RunConfig(), PFedGraphOptions())
    started = device.start(given_, personal, np.zeros(2, bool))
    assert (started.own[TABLE] == 4).all()
    assert started.reported == {TABLE}
    assert device.deploy(given_, {}, np.zeros(2, bool)) is given_
    mixed = MixedModel(model, RunConfig(), PFedGraphOptions(pfedgraph_evaluate="mixed"))
    assert (mixed.deploy(given_, personal, np.zeros(2, bool)).own[TABLE] == 4).all()
    with pytest.raises(WireError, match="'item_embedding' should be float32"):
        device.start(given_, {}, np.zeros(2, bool))


def test_protections_that_it_cannot_have_are_refused():
    with pytest.raises(ConfigError, match="leave them out"):
        PFedGraphOptions().check_run(RunConfig(update_clip=1.0))
