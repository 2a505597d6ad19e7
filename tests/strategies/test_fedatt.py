"""FedAtt on the server: distances, attention and step by hand, and what must hold for any changes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bouquet.config import RunConfig
from bouquet.methods.fedatt import FedAttOptions
from bouquet.packed import PackedRows
from bouquet.reporting.run_directory import RunDirectory
from bouquet.wire import TrainReply
from strategies.fedatt import FedAtt, attention, attentive_change
from tests.runs.helpers import last_checkpoint, run_here, small_settings

PAPER = {"server_optimizer": "sgd", "server_learning_rate": 1.2}


def by_rows(*users):
    """The changes of an item table, a dictionary of rows for each user."""
    values = [values for rows in users for values in rows.values()]
    items = [item for rows in users for item in rows]
    indptr = np.cumsum([0, *map(len, users)])
    return PackedRows(indptr, np.array(items, np.int32), np.array(values, np.float32))


def whole(*users):
    return PackedRows(None, None, np.array(users, np.float32))


def reply(**arrays):
    count = len(next(p.values if p.indptr is None else p.indptr[1:] for p in arrays.values()))
    users = np.arange(count, dtype=np.uint64)
    return TrainReply(users, np.zeros(count, np.float32), np.zeros(count, np.int64), rows=arrays)


def strategy(tmp_path, **options):
    return FedAtt(RunConfig(), FedAttOptions(**{**PAPER, **options}), RunDirectory(tmp_path))


@pytest.mark.parametrize(
    ("p", "expected"), [(1, [7, 0, 8]), (2, [5, 0, 32**0.5]), (3, [91 ** (1 / 3), 0, 128 ** (1 / 3)])]
)
def test_distances_by_hand(p, expected):
    """Changes (3; -4) in two rows, none, and (4, 4) in one: |3| + |4|, sqrt(9 + 16), and so on over all values."""
    packed = by_rows({0: (3, 0), 4: (0, -4)}, {}, {1: (4, 4)})
    np.testing.assert_allclose(packed.norms(p), expected)
    dense = np.zeros((3, 5, 2), np.float32)
    dense[0, 0, 0], dense[0, 4, 1], dense[2, 1] = 3, -4, 4
    np.testing.assert_allclose(whole(*dense).norms(p), expected)


def test_attention_by_hand():
    """exp(ln 3) : exp(0) = 3 : 1."""
    np.testing.assert_allclose(attention(np.array([np.log(3), 0])), [0.75, 0.25])


def test_every_array_has_attention_of_its_own(tmp_path):
    """Two users on two nodes, p = 2, ε = 1.2, w = 1 everywhere.

    Table: changes (ln 3, 0) and nothing: s = (ln 3, 0), α = (3/4, 1/4), so row 0 moves by 1.2 · 3/4 ln 3.
    Bias: changes 0 and -ln 2: s = (0, ln 2), α = (1/3, 2/3), so it moves by -1.2 · 2/3 ln 2.
    """
    shared = {"table": np.ones((2, 1), np.float32), "bias": np.ones(1, np.float32)}
    one = reply(table=by_rows({0: (np.log(3),)}), bias=whole([0.0]))
    other = reply(table=PackedRows(np.zeros(2, np.int64), np.zeros(0, np.int32), np.zeros((0, 1), np.float32)),
                  bias=whole([-np.log(2)]))  # fmt: skip
    found = strategy(tmp_path).aggregate(1, shared, [one, other], [np.array([0]), np.array([1])])
    np.testing.assert_allclose(found["table"], [[1 + 0.9 * np.log(3)], [1]], rtol=1e-6)
    np.testing.assert_allclose(found["bias"], [1 - 0.8 * np.log(2)], rtol=1e-6)


def test_noise_is_of_the_wanted_size_and_the_same_for_a_seed(tmp_path):
    """ε β N(0, 1) = 1.2 · 0.5 N(0, 1); 20,000 draws give their deviation to about half a percent."""
    shared = {"table": np.zeros((10_000, 2), np.float32)}
    nothing = [reply(table=by_rows({0: (0, 0)}))]
    noisy = strategy(tmp_path, fedatt_noise=0.5)
    found = noisy.aggregate(3, shared, nothing, [np.array([0])])["table"]
    assert found.std() == pytest.approx(0.6, rel=0.02)
    np.testing.assert_array_equal(noisy.aggregate(3, shared, nothing, [np.array([0])])["table"], found)
    assert (noisy.aggregate(4, shared, nothing, [np.array([0])])["table"] != found).all()


values = st.floats(-1e4, 1e4, width=32)


@given(changes=st.lists(st.lists(values, min_size=3, max_size=3), min_size=1, max_size=6), p=st.floats(1, 10))
def test_the_change_is_a_mean_that_no_order_of_users_and_no_layout_changes(changes, p):
    """Attention sums to 1 and grows with distance; every value lies between the users' smallest and largest."""
    shared = {"w": np.zeros(3, np.float32)}
    stacked = np.array(changes, np.float32)
    distance = whole(*stacked).norms(p)
    weights = attention(distance)
    assert weights.sum() == pytest.approx(1)
    assert (np.diff(weights[np.argsort(distance)]) >= 0).all()
    together = attentive_change(shared, [reply(w=whole(*stacked))], p)["w"]
    bounds, margin = stacked.astype(float), 1e-9 * (1 + float(np.abs(stacked).max()))
    assert (together >= bounds.min(axis=0) - margin).all()
    assert (together <= bounds.max(axis=0) + margin).all()
    apart = attentive_change(shared, [reply(w=whole(change)) for change in stacked[::-1]], p)["w"]
    np.testing.assert_allclose(apart, together, rtol=1e-6, atol=margin)


def test_where_all_are_equally_far_it_is_the_plain_mean():
    stacked = np.array([[3, 4], [-5, 0], [0, 5]], np.float32)
    found = attentive_change({"w": np.zeros(2, np.float32)}, [reply(w=whole(*stacked))], 2)["w"]
    np.testing.assert_allclose(found, stacked.mean(axis=0))


def test_distances_beyond_every_exponential_are_no_trouble():
    """exp(1e30) is no number; the farthest user has all the attention."""
    stacked = np.array([[1e30, 0], [0, 1e15]], np.float32)
    found = attentive_change({"w": np.zeros(2, np.float32)}, [reply(w=whole(*stacked))], 10)["w"]
    np.testing.assert_allclose(found, stacked[0])


@pytest.mark.parametrize("backbone", ["mf", "ncf"])
def test_with_small_changes_it_is_close_to_the_plain_mean(tmp_path, backbone):
    """Distances far below 1 are all alike to a softmax: FCF, and not to the bit."""
    common = {"backbone": backbone, "server_optimizer": "sgd", "server_learning_rate": 1.0, "learning_rate": 1e-3}
    runs = [run_here(tmp_path / s, small_settings(tmp_path, strategy=s, **common), 2) for s in ("fedatt", "fcf")]
    tables = [last_checkpoint(run).shared["item_embedding"] for run in runs]
    np.testing.assert_allclose(*tables, atol=1e-5)
    assert not np.array_equal(*tables)
