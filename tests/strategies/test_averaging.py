"""Averaging on the server: by hand, against the textbook, and the same through either kind of update."""

from dataclasses import replace

import numpy as np
import pytest

from bouquet.config import RunConfig
from bouquet.methods import METHODS
from bouquet.methods.manifest import class_at
from bouquet.methods.parts import ServerOptimizerOptions
from bouquet.packed import PackedArray
from bouquet.reporting.run_directory import RunDirectory
from bouquet.wire import TrainReply
from strategies.averaging import FedAvg, mean_change
from strategies.cf_fedsr_strategy import weighted_change
from strategies.federation.base import BaseStrategy
from tests.runs.helpers import last_checkpoint, run_here, small_settings


def reply(values, rows=None, factor=1.0, weight=1.0):
    packed = PackedArray(None if rows is None else np.array(rows, np.int32), np.array(values))
    users = np.zeros(1, np.uint64)
    return TrainReply(
        users, np.zeros(1, np.float32), np.zeros(1, np.int64), {"q": packed}, factor=factor, weight=weight
    )


def test_mean_change_by_hand():
    """Two nodes: one user of weight 3 that changed row 0 by 2; several users of weight 5 whose sum is (1, 4).

    Σ w Δ = (3·2 + 1, 4) = (7, 4), Σ w = 8.
    """
    shared = {"q": np.zeros((2, 1), np.float32)}
    replies = [reply([[2.0]], rows=[0], factor=3.0, weight=3.0), reply([[1.0], [4.0]], weight=5.0)]
    np.testing.assert_allclose(mean_change(shared, replies)["q"], [[7 / 8], [4 / 8]])


def test_nobody_with_weight_changes_nothing():
    shared = {"q": np.ones((2, 1), np.float32)}
    assert (mean_change(shared, [reply([[0.0], [0.0]], weight=0.0)])["q"] == 0).all()


def strategy(tmp_path, **options):
    return FedAvg(RunConfig(), ServerOptimizerOptions(**options), RunDirectory(tmp_path))


def test_plain_averaging_adds_the_mean(tmp_path):
    shared = {"q": np.array([[1.0], [2.0]], np.float32)}
    method = strategy(tmp_path, server_optimizer="sgd", server_learning_rate=1.0)
    found = method.aggregate(1, shared, [reply([[4.0], [0.0]], weight=4.0)], [])
    np.testing.assert_allclose(found["q"], [[2.0], [2.0]])


def test_adam_on_the_server_by_hand(tmp_path):
    """The first step of Adam is the rate times the sign; the second, with change d then 0:

    m = .9·.1 d / (1 - .81), v = .99·.01 d² / (1 - .9801), step = m / sqrt(v) = (.09/.19) / sqrt(.0099/.0199) = .671591.
    """
    method = strategy(tmp_path, server_optimizer="adam", server_learning_rate=0.1)
    shared = {"q": np.zeros((2, 1), np.float32)}
    first = method.aggregate(1, shared, [reply([[3.0], [-0.001]])], [])
    np.testing.assert_allclose(first["q"], [[0.1], [-0.1]], rtol=1e-4)
    second = method.aggregate(2, first, [reply([[0.0], [0.0]])], [])
    step = (0.09 / 0.19) / np.sqrt(0.0099 / 0.0199)
    np.testing.assert_allclose(second["q"] - first["q"], [[0.1 * step], [-0.1 * step]], rtol=1e-3)


def test_adam_goes_on_from_a_checkpoint(tmp_path):
    shared = {"q": np.zeros((2, 1), np.float32)}
    one, other = strategy(tmp_path), strategy(tmp_path)
    shared = one.aggregate(1, shared, [reply([[3.0], [1.0]])], [])
    other.restore_extra(one.extra_arrays())
    step = [reply([[1.0], [-2.0]])]
    np.testing.assert_array_equal(one.aggregate(2, shared, step, [])["q"], other.aggregate(2, shared, step, [])["q"])


class ByRows(FedAvg):
    """FedAvg that asks for every user's own change and weighs it afterwards."""

    update = "rows"

    def aggregate(self, server_round, shared, replies, users):
        weights = self.roster.sizes[np.concatenate(users)].astype(float)
        total = weighted_change(shared, replies, weights)["item_embedding"]
        return self.optimizer.step(server_round, shared, {"item_embedding": total / weights.sum()})


@pytest.mark.parametrize("nodes", [1, 3, 40])
@pytest.mark.parametrize("fraction", [1.0, 0.4])
def test_rows_per_user_carry_the_same_as_sums(tmp_path, nodes, fraction, monkeypatch):
    monkeypatch.setitem(METHODS, "by-rows", replace(METHODS["fedavg"], name="by-rows", strategy=f"{__name__}:ByRows"))
    settings = small_settings(tmp_path, fraction_train=fraction)
    by_rows = run_here(tmp_path / "rows", settings | {"strategy": "by-rows"}, nodes)
    by_sum = run_here(tmp_path / "sum", settings | {"strategy": "fedavg"}, nodes)
    expected = last_checkpoint(by_sum).shared["item_embedding"]
    np.testing.assert_allclose(last_checkpoint(by_rows).shared["item_embedding"], expected, atol=2e-5)


def test_sampled_users_are_a_fraction_without_repeats_and_differ_by_round(tmp_path):
    rounds = run_here(tmp_path / "run", small_settings(tmp_path, fraction_train=0.3), 3).rounds()
    assert [line["users"] for line in rounds] == [12] * 6


def test_every_strategy_is_a_flower_strategy():
    from flwr.serverapp.strategy import Strategy

    for method in METHODS.values():
        assert issubclass(class_at(method.strategy), BaseStrategy)
        assert issubclass(class_at(method.strategy), Strategy)


@pytest.mark.parametrize("method", [method for method in METHODS.values() if method.sums_only], ids=lambda m: m.name)
def test_methods_of_sums_alone_ask_for_no_users_own_update(method):
    assert class_at(method.strategy).update in ("sum", "cells")
