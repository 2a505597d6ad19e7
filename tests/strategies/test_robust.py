"""Robust aggregation: by hand, what holds for any users, and the same run however users are spread."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bouquet.arrays import ArraySpec
from bouquet.config import RobustOptions
from bouquet.errors import ConfigError, RunFailed
from bouquet.experiments.settings import resolve
from bouquet.methods import METHODS
from bouquet.packed import PackedRows
from bouquet.testing import Faulty
from bouquet.wire import TrainReply
from strategies.federation.robust import Rows, chosen_by_krum, robust_change, robust_reply, squared_distances
from tests.runs.helpers import last_checkpoint, run_here, small_settings
from tests.runs.test_left_out import put

KINDS = ("norm-bound", "median", "trimmed-mean", "krum", "multi-krum")
ABLE = sorted(name for name, method in METHODS.items() if method.sums_only and method.kind == "gradients")


def of_users(*users, count=4, width=1):
    """Rows from one dictionary of item -> change by user."""
    triples = [(row, owner, value) for owner, user in enumerate(users) for row, value in sorted(user.items())]
    rows, owner, values = zip(*triples, strict=True)
    return Rows(count, np.array(rows), np.array(owner), np.array(values, np.float32).reshape(len(rows), width))


def changed(rows, weights, kind, fraction):
    return robust_change({"q": rows}, np.array(weights, float), kind, fraction)["q"]


FIVE = of_users({0: 1.0, 1: 4.0}, {0: 2.0}, {0: 3.0}, {0: -9.0}, {0: 50.0, 2: 7.0})


def test_the_trimmed_mean_by_hand():
    """Five users, f = .2, k = 1. Row 0: -9 and 50 are taken off, (1 + 2 + 3) / 3 = 2, share 5 / 5.

    Rows 1 and 2 were touched by one user: with the zeros of two others that is 0, 0, 4, of which 0 is left.
    """
    np.testing.assert_allclose(changed(FIVE, [1] * 5, "trimmed-mean", 0.2)[:, 0], [2, 0, 0, 0])


def test_weights_are_in_the_mean_of_what_is_left_and_in_the_share():
    """k = 1 takes off -9 and 50, whatever they weigh: (1 · 1 + 2 · 2 + 3 · 1) / 4 = 2, and all touched the row."""
    found = changed(FIVE, [1, 2, 1, 100, 100], "trimmed-mean", 0.2)
    np.testing.assert_allclose(found[0], [2])


def test_the_median_by_hand():
    """Row 0: of -9, 1, 2, 3, 50 it is 2. With f = 0 row 1 has one voter, 4, who is a fifth of all: 4 / 5."""
    np.testing.assert_allclose(changed(FIVE, [1] * 5, "median", 0.0)[:, 0], [2, 4 / 5, 7 / 5, 0])
    np.testing.assert_allclose(changed(FIVE, [1] * 5, "median", 0.2)[:, 0], [2, 0, 0, 0])


def test_the_median_of_an_even_number_is_the_mean_of_two():
    """Row 0 of four users: -9, 1, 2, 50 -> 1.5; with weights 3 and 1 of the middle ones (3 · 1 + 1 · 2) / 4."""
    users = of_users({0: 1.0}, {0: 2.0}, {0: -9.0}, {0: 50.0})
    np.testing.assert_allclose(changed(users, [1] * 4, "median", 0.0)[0], [1.5])
    np.testing.assert_allclose(changed(users, [3, 1, 1, 1], "median", 0.0)[0], [1.25])


def test_krum_by_hand():
    """Points 0, 1, 2 and 100 with k = 0, n - k - 2 = 2 nearest: 1 + 4, 1 + 1, 1 + 4, 98² + 99².

    Krum takes the one at 1; multi-Krum the mean of all four. With five points 0, 1, 2, 3, 100 and k = 1, two nearest:
    1 + 4, 1 + 1, 1 + 1, 1 + 4: the first of the two best; multi-Krum leaves out 100, and (0 + 1 + 2 + 3) / 4 = 1.5.
    """
    four = of_users({0: 0.0}, {0: 1.0}, {0: 2.0}, {0: 100.0})
    np.testing.assert_allclose(changed(four, [1] * 4, "krum", 0.0)[0], [1])
    np.testing.assert_allclose(changed(four, [1] * 4, "multi-krum", 0.0)[0], [103 / 4])
    five = of_users({0: 0.0}, {0: 1.0}, {0: 2.0}, {0: 3.0}, {0: 100.0})
    np.testing.assert_allclose(changed(five, [1] * 5, "krum", 0.2)[0], [1])
    np.testing.assert_allclose(changed(five, [1] * 5, "multi-krum", 0.2)[0], [1.5])


def test_distances_are_over_all_rows_and_arrays():
    """User 0 has (3, 0) and a bias of 1, user 1 has (0, 4) and 1, user 2 nothing but 1: 25, 9 and 16."""
    table, bias = of_users({0: 3.0}, {1: 4.0}, {2: 0.0}), of_users({0: 1.0}, {0: 1.0}, {0: 1.0}, count=1)
    found = squared_distances({"q": table, "b": bias}, 3)
    np.testing.assert_allclose(found, [[0, 25, 9], [25, 0, 16], [9, 16, 0]], atol=1e-5)


def test_krum_says_what_it_needs():
    with pytest.raises(RunFailed, match=r"2 k \+ 3 users of which k may lie, and this round has 4 for k = 1"):
        chosen_by_krum(np.zeros((4, 4)), 1, several=False)


# -- for any users ---------------------------------------------------------------------------------------------------


@st.composite
def rounds(draw):
    """3 to 12 users with some of 5 rows of width 2, and their weights."""
    users = draw(st.integers(3, 12))
    number = st.floats(-100, 100, width=32)
    made = [
        draw(st.dictionaries(st.integers(0, 4), st.tuples(number, number), min_size=1, max_size=5))
        for _ in range(users)
    ]
    weights = draw(st.lists(st.integers(1, 400), min_size=users, max_size=users))
    return made, np.array(weights, float)


def rows_of(made):
    return of_users(*made, count=5, width=2)


def plain_mean(made, weights):
    total = np.zeros((5, 2))
    for user, weight in zip(made, weights, strict=True):
        for row, value in user.items():
            total[row] += weight * np.array(value, np.float32)
    return total / weights.sum()


@settings(max_examples=60, deadline=None)
@given(rounds())
def test_without_liars_trimmed_mean_norm_bound_and_multi_krum_are_the_mean(drawn):
    made, weights = drawn
    for kind in ("trimmed-mean", "norm-bound", "multi-krum"):
        np.testing.assert_allclose(changed(rows_of(made), weights, kind, 0.0), plain_mean(made, weights), atol=1e-4)


@settings(max_examples=60, deadline=None)
@given(rounds(), st.floats(0, 0.45), st.randoms(use_true_random=False))
def test_the_order_of_users_has_no_say(drawn, fraction, random):
    made, weights = drawn
    order = list(range(len(made)))
    random.shuffle(order)
    for kind in ("trimmed-mean", "median", "norm-bound"):
        one = changed(rows_of(made), weights, kind, fraction)
        other = changed(rows_of([made[place] for place in order]), weights[order], kind, fraction)
        np.testing.assert_allclose(one, other, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(rounds(), st.floats(0.1, 0.45), st.sampled_from([-1e30, -50.0, 0.0, 1e30]))
def test_k_liars_move_no_coordinate_beyond_honest_users(drawn, fraction, lie):
    """Whichever rows they say it of, and whatever they weigh."""
    made, weights = drawn
    liars = int(fraction * len(made) + 1e-9)
    honest = np.zeros((len(made) - liars, 5, 2), np.float32)
    for place, user in enumerate(made[liars:]):
        for row, value in user.items():
            honest[place, row] = value
    lying = [dict.fromkeys(range(5), (lie, lie))] * liars + made[liars:]
    weights[:liars] = 1e6
    for kind in ("trimmed-mean", "median"):
        found = changed(rows_of(lying), weights, kind, fraction)
        assert (found <= honest.max(axis=0).clip(min=0) + 1e-4).all()
        assert (found >= honest.min(axis=0).clip(max=0) - 1e-4).all()


def test_blocks_are_no_matter(monkeypatch):
    source = np.random.default_rng(0)
    made = [
        {int(row): tuple(source.normal(size=2)) for row in source.choice(5, source.integers(1, 6), replace=False)}
        for _ in range(30)
    ]
    weights = source.uniform(1, 9, 30)
    whole = {kind: changed(rows_of(made), weights, kind, 0.1) for kind in KINDS}
    monkeypatch.setattr("strategies.federation.robust._BLOCK", 64)
    for kind in KINDS:
        np.testing.assert_allclose(changed(rows_of(made), weights, kind, 0.1), whole[kind], atol=1e-9)


def test_replies_of_several_nodes_are_one(monkeypatch):
    """Two nodes with two users and one: the sum of the reply is the weight of all times the trimmed mean."""
    specs = {"q": ArraySpec((3, 1), by_item=True), "b": ArraySpec((2,))}

    def reply(users, indptr, rows, values, bias):
        packed = PackedRows(np.array(indptr), np.array(rows, np.int32), np.array(values, np.float32)[:, None])
        whole = PackedRows(None, None, np.array(bias, np.float32))
        count = len(users)
        loss, sizes = np.zeros(count, np.float32), np.ones(count, np.int64)
        return TrainReply(np.array(users, np.uint64), loss, sizes, rows={"q": packed, "b": whole})

    one = reply([1, 2], [0, 1, 2], [0, 0], [1.0, 5.0], [[1, 2], [3, 4]])
    other = reply([3], [0, 2], [0, 2], [9.0, 6.0], [[5, 0]])
    options = RobustOptions(robust_aggregation="median", robust_fraction=0.0)
    found = robust_reply([one, other], [np.ones(2), np.ones(1)], specs, options)
    assert found.users.tolist() == [1, 2, 3]
    assert found.weight == 3
    np.testing.assert_allclose(found.sums["q"].values / 3, [[5], [0], [2]])
    np.testing.assert_allclose(found.sums["b"].values / 3, [3, 2])


# -- runs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_is_the_same_however_it_is_spread(tmp_path, kind):
    settings = small_settings(tmp_path, num_server_rounds=3, robust_aggregation=kind)
    tables = [last_checkpoint(run_here(tmp_path / str(nodes), settings, nodes)).shared for nodes in (1, 7, 40)]
    for other in tables[1:]:
        np.testing.assert_allclose(tables[0]["item_embedding"], other["item_embedding"], atol=2e-5)


@pytest.mark.parametrize("strategy", ABLE)
def test_every_method_of_sums_can_be_had_without_liars(tmp_path, strategy):
    """With f = 0 the trimmed mean is the run without it."""
    settings = small_settings(tmp_path, strategy=strategy, num_server_rounds=2, backend="loop")
    plain = last_checkpoint(run_here(tmp_path / "plain", settings, 3)).shared
    robust = settings | {"robust-aggregation": "trimmed-mean", "robust-fraction": 0.0}
    found = last_checkpoint(run_here(tmp_path / "robust", robust, 3)).shared
    for name, values in plain.items():
        np.testing.assert_allclose(found[name], values, atol=2e-5)


def test_one_user_of_a_node_with_twenty_whose_numbers_are_none_costs_itself(tmp_path):
    settings = small_settings(tmp_path, num_server_rounds=2, robust_aggregation="median")
    fault = put("update", "item_embedding/values", 0, np.nan)
    directory = run_here(tmp_path / "run", settings, 2, Faulty, fault=fault, bad={1})
    for line in directory.rounds():
        assert (line["users"], [failure["users"] for failure in line["failures"]]) == (39, [1])
    assert np.isfinite(last_checkpoint(directory).shared["item_embedding"]).all()


@pytest.mark.parametrize(
    ("strategy", "why"),
    [("fedca", "weighs users by a rule of its own"), ("sequential-rules", "adds up what users count")],
)
def test_what_has_no_mean_is_refused_in_one_sentence(strategy, why):
    with pytest.raises(ConfigError, match=f"{strategy} {why}.*robust-aggregation 'median'.*take fcf, .*fedavg"):
        resolve(None, [f"strategy={strategy} robust-aggregation=median"])
