"""FedFast and PerFedRec: who is drawn, what they weigh, what a cluster and a device add, by hand and at the limits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bouquet.arrays import ArraySpec
from bouquet.config import ModelOptions, RunConfig
from bouquet.errors import ConfigError, WireError
from bouquet.methods.perfedrec import PerFedRecOptions
from bouquet.packed import PackedRows
from bouquet.ragged import Ragged
from bouquet.reporting.run_directory import RunDirectory
from bouquet.wire import TrainReply
from client_app.personalization.perfedrec import ThreeLevels
from client_app.personalization.profiles import mean_rows
from client_app.personalization.round import GLOBAL, Given
from models import BACKBONES
from strategies.clustered import evenly
from strategies.federation.roster import Roster
from strategies.fedfast import delegate_weights
from strategies.perfedrec import PerFedRec
from tests.runs.helpers import last_checkpoint, run_here, small_settings

TABLE = "item_embedding"
NOBODY = np.zeros(2, dtype=bool)
PLAIN = {"server_optimizer": "sgd", "server_learning_rate": 1.0}


# -- who is drawn ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "total", "expected"),
    [([5, 1, 3], 6, [3, 1, 2]), ([4, 4], 3, [2, 1]), ([1, 9], 9, [1, 8]), ([0, 2], 2, [0, 2]), ([3], 0, [0])],
)
def test_evenly_by_hand(sizes, total, expected):
    """Of 5, 1 and 3 each gives two, the second its one; one is left, and the first gives it."""
    assert evenly(sizes, total).tolist() == expected


@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6), share=st.floats(0, 1))
def test_clusters_give_as_many_unless_they_have_no_more(sizes, share):
    total = int(share * sum(sizes))
    drawn = evenly(sizes, total)
    assert drawn.sum() == total
    assert (drawn <= sizes).all()
    with_more = drawn[drawn < sizes]
    assert len(with_more) == 0 or drawn.max() <= with_more.min() + 1


def test_more_than_there_are_cannot_be_drawn():
    with pytest.raises(ValueError, match="5 users cannot be drawn"):
        evenly([2, 2], 5)


def test_profiles_by_hand():
    """Rows (0, 1), (2, 3) and (4, 5): of the first and the last (2, 3); of nothing zeros."""
    table = np.arange(6, dtype=np.float32).reshape(3, 2)
    assert mean_rows(table, Ragged.from_lengths([2, 0, 1], [0, 2, 1])).tolist() == [[2, 3], [0, 0], [2, 3]]
    assert mean_rows(table, Ragged.from_lengths([2, 0, 1], [0, 2, 1]), 1).tolist() == [[4, 5], [0, 0], [2, 3]]


# -- FedFast ---------------------------------------------------------------------------------------------------------


def test_delegates_speak_for_their_cluster():
    """Clusters of 3 and 1 users, a delegate each: 3/4 and 1/4 of the mean, which are 3/2 and 1/2 of two users."""
    labels = np.array([0, 0, 0, 1])
    assert delegate_weights(labels, np.arange(4), np.array([0, 3])).tolist() == [1.5, 0.5]
    assert delegate_weights(labels, np.arange(4), np.arange(4)).tolist() == [1, 1, 1, 1]
    assert delegate_weights(np.zeros(4, np.int64), np.arange(4), np.array([1, 2])).tolist() == [1, 1]


def test_where_all_train_it_is_the_plain_mean_bit_for_bit(tmp_path):
    fast = run_here(tmp_path / "fast", small_settings(tmp_path, strategy="fedfast"), 2)
    mean = run_here(tmp_path / "mean", small_settings(tmp_path, strategy="fcf"), 2)
    np.testing.assert_array_equal(last_checkpoint(fast).shared[TABLE], last_checkpoint(mean).shared[TABLE])
    np.testing.assert_array_equal(fast.read_users()[1], mean.read_users()[1])


def test_one_cluster_is_plain_aggregation_bit_for_bit(tmp_path):
    runs = []
    for kind in ("clusters", "users"):
        # In an evaluation all tell their profiles: those who have not would be a second cluster.
        chosen = {"fedfast_clusters": 1, "fraction_train": 0.4, "fedfast_aggregation": kind, "evaluate_every": 1}
        runs.append(run_here(tmp_path / kind, small_settings(tmp_path, strategy="fedfast", **chosen), 2))
    assert [line["fedfast"]["clusters"] for line in runs[0].rounds()] == [[40]] * 6
    np.testing.assert_array_equal(*(last_checkpoint(run).shared[TABLE] for run in runs))


def test_rounds_are_drawn_from_all_clusters(tmp_path):
    chosen = {"fedfast_clusters": 4, "fraction_train": 0.4, "evaluate_every": 1}
    lines = run_here(tmp_path / "run", small_settings(tmp_path, strategy="fedfast", **chosen), 2).rounds()
    for line in lines:
        sizes, drawn = line["fedfast"]["clusters"], line["fedfast"]["chosen"]
        assert sum(sizes) == 40
        assert drawn == evenly(sizes, 16).tolist()
    assert [len(line["fedfast"]["clusters"]) for line in lines] == [1, 4, 4, 4, 4, 4]


# -- PerFedRec -------------------------------------------------------------------------------------------------------


def strategy(tmp_path, labels, **options):
    method = PerFedRec(RunConfig(), PerFedRecOptions(**{**PLAIN, **options}), RunDirectory(tmp_path))
    specs, count = {TABLE: ArraySpec((1, 2), by_item=True)}, len(labels)
    method.roster = Roster(
        np.arange(count, dtype=np.uint64), np.full(count, 2), np.ones(count, np.uint64), 1, 2 * count, 0, 1, "", specs
    )
    method.prepare()
    method.labels[:], method._choice = labels, {}
    return method


def test_a_round_by_hand(tmp_path):
    """Δ is (3, 0), (1, 2) and (2, 7), the first two in cluster 0: G moves by (2, 3), and the clusters are (0, -2) and
    (0, 4) away from it.
    """
    method = strategy(tmp_path, [0, 0, 1, 2], perfedrec_clusters=3)
    rows = {TABLE: PackedRows(None, None, np.array([[[3, 0]], [[1, 2]], [[2, 7]]], np.float32))}
    profiles = {"representation": np.ones((3, 2), np.float32)}
    told = TrainReply(
        np.arange(3, dtype=np.uint64), np.zeros(3, np.float32), np.zeros(3, np.int64), rows=rows, reports=profiles
    )
    method.apart[TABLE][2] = 9  # of an earlier round, and nobody of this cluster was in the new one
    found = method.aggregate(1, {TABLE: np.ones((1, 2), np.float32)}, [told], [np.arange(3)])
    assert found[TABLE].tolist() == [[3, 4]]
    sent = method.personal_to_evaluate(np.array([1, 2, 3]))[TABLE]
    assert sent[:][:, 0].tolist() == [[0, -2], [0, 4], [0, 0]]
    alike = method.personal_to_evaluate(np.array([1, 0]))[TABLE]
    assert (len(alike.values), alike[:][:, 0].tolist()) == (1, [[0, -2], [0, -2]])
    assert method.known.tolist() == [True, True, True, False]
    assert method.personal(np.arange(3)) == {}


def device(plug_in="none", **options):
    model = BACKBONES["mf"](3, ModelOptions(embedding_size=2))
    return ThreeLevels(model, RunConfig(personalization=plug_in), PerFedRecOptions(**options))


def test_three_levels_by_hand():
    """G = 4, Q_u = 14, D_c = 5 with shares 0.1 and 0.4: 4 + 0.1 * 10 + 0.4 * 5 = 7; who has no Q_u has 6."""
    levels = device(perfedrec_local_share=0.1, perfedrec_cluster_share=0.4)
    given_ = Given({TABLE: np.full((3, 2), 4, np.float32)}, {TABLE: np.full((2, 3, 2), 14, np.float32)})
    personal = {TABLE: np.full((2, 3, 2), 5, np.float32)}
    deployed = levels.deploy(given_, personal, np.array([False, True]))
    np.testing.assert_allclose(deployed.own[TABLE][:, 0, 0], [7, 6], rtol=1e-6)
    started = levels.start(given_, {}, NOBODY)
    assert (started.own[TABLE] == 4).all()
    assert started.reported == {TABLE}
    with pytest.raises(WireError, match="'item_embedding' should be float32"):
        levels.deploy(given_, {}, NOBODY)


def test_before_a_plug_in_the_global_table_is_each_users():
    """Without the local level the cluster's share is 0.4 / 0.8 of the rest: 4 + 0.5 * 6."""
    levels = device("plgc", perfedrec_local_share=0.2, perfedrec_cluster_share=0.4)
    table = np.full((3, 2), 4, np.float32)
    given_ = Given({}, {TABLE: np.zeros((2, 3, 2), np.float32)}, frozen={GLOBAL: table})
    started = levels.start(given_, {TABLE: np.full((2, 3, 2), 6, np.float32)}, NOBODY)
    assert GLOBAL not in started.frozen
    assert (started.anchors[GLOBAL] == 7).all()


def shares(cluster, local):
    return {"perfedrec_cluster_share": cluster, "perfedrec_local_share": local}


@pytest.mark.parametrize(
    ("mixture", "other"),
    [
        (shares(0.0, 0.0), {"strategy": "fcf"}),
        ({**shares(1.0, 0.0), "perfedrec_clusters": 1}, {"strategy": "fcf"}),
        ({**shares(0.4, 0.0), "perfedrec_cluster_rate": 0.0}, {"strategy": "fcf"}),
        (shares(0.0, 1.0), {"strategy": "pfedrec"}),
        ({**shares(0.0, 0.3), "personalization": "plgc"}, {"strategy": "fcf", "personalization": "plgc"}),
        ({**shares(0.0, 0.0), "personalization": "ace"}, {"strategy": "fcf", "personalization": "ace"}),
    ],
    ids=["the global table alone", "one cluster", "clusters that add nothing", "one's own table alone", "plgc", "ace"],
)
def test_its_limits(tmp_path, mixture, other):
    """FCF where all have the global table, PFedRec where each has its own."""
    one = run_here(tmp_path / "one", small_settings(tmp_path, strategy="perfedrec", **mixture), 2)
    two = run_here(tmp_path / "two", small_settings(tmp_path, **other), 2)
    np.testing.assert_allclose(last_checkpoint(one).shared[TABLE], last_checkpoint(two).shared[TABLE], atol=2e-5)
    np.testing.assert_allclose(one.read_users()[1], two.read_users()[1], atol=1e-4)


def test_shares_above_the_whole_are_refused():
    with pytest.raises(ConfigError, match="their sum must be at most 1"):
        PerFedRecOptions(perfedrec_cluster_share=0.6, perfedrec_local_share=0.5)


# -- both ------------------------------------------------------------------------------------------------------------


def test_who_joins_is_not_known_and_who_is_forgotten_leaves_nothing(tmp_path):
    method = strategy(tmp_path, [0, 1, 2])
    method.profiles[:], method.known[:] = [[1, 1], [2, 2], [3, 3]], True
    method.users_joined(1)
    assert method.known.tolist() == [True, True, True, False]
    assert method.personal_to_evaluate(np.arange(4))[TABLE][:].shape == (4, 1, 2)
    method.users_forgotten(np.array([1]))
    assert method.profiles[:, 0].tolist() == [1, 3, 0]
    assert method.labels.tolist() == [0, 2, 3]
