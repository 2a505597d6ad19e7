"""The contract that other packages test their methods with: ours keep it, and it finds what is wrong with a method."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import client_app.node.handlers
from bouquet.methods import METHODS
from bouquet.methods.manifest import class_at
from bouquet.testing import MethodContract
from strategies.averaging import FedAvg


class TestAveraging(MethodContract):
    method = "fedavg"


class TestAPlugIn(MethodContract):
    method = "ace"


class Asked(MethodContract):
    """Not collected: asked by the tests below."""

    method = "wrong"


class Forgetful(FedAvg):
    """Keeps something that no checkpoint has."""

    def extra_arrays(self):
        return {}


class ByNode(FedAvg):
    """Treats nodes alike, however many users they have."""

    def aggregate(self, server_round, shared, replies, users):
        even = [replace(reply, factor=1 / len(replies), weight=1 / len(replies)) for reply in replies]
        return super().aggregate(server_round, shared, even, users)


class Fragile(FedAvg):
    """Breaks where somebody is missing."""

    def aggregate(self, server_round, shared, replies, users):
        gone = len(np.concatenate(users)) < len(self.roster.users)
        found = super().aggregate(server_round, shared, replies, users)
        return {name: values * np.float32("nan") for name, values in found.items()} if gone else found


@pytest.fixture
def wrong(monkeypatch):
    """`wrong(Class)` makes it the strategy 'wrong'."""

    def enter(strategy):
        place = f"{__name__}:{strategy.__name__}"
        assert class_at(place) is strategy
        monkeypatch.setitem(METHODS, "wrong", replace(METHODS["fedavg"], name="wrong", strategy=place))
        return Asked()

    return enter


def test_what_a_checkpoint_lacks_is_found(wrong, tmp_path):
    with pytest.raises(AssertionError):
        wrong(Forgetful).test_a_run_that_is_resumed_equals_one_that_was_not_stopped(tmp_path, 1.0)


def test_a_method_that_looks_at_nodes_is_found(wrong, tmp_path):
    asked = wrong(ByNode)
    with pytest.raises(AssertionError):
        asked.test_the_same_run_on_one_node_on_three_and_with_one_user_each(tmp_path, 1.0)


def test_a_method_that_breaks_where_a_node_fails_is_found(wrong, tmp_path):
    with pytest.raises(Exception, match="broke the model"):
        wrong(Fragile).test_a_node_that_fails_costs_nobody_else(tmp_path)


def test_a_private_array_that_leaves_is_found(tmp_path, monkeypatch):
    """The server asks for nothing else, so the leak hides in the update: one row is a user's embedding."""
    real = client_app.node.handlers.train

    def train(host, request):
        reply = real(host, request)
        (file,) = (tmp_path / "run" / "nodes").glob("*/node-0-of-1/user_embedding.npy")
        kept = np.load(file).reshape(-1, 4)
        packed = reply.sums["item_embedding"]
        values = packed.values.copy()
        values[0] = kept[np.abs(kept).max(axis=1) > 1e-3][-1]
        return replace(reply, sums={"item_embedding": replace(packed, values=values)})

    monkeypatch.setattr(client_app.node.handlers, "train", train)
    with pytest.raises(AssertionError, match="item_embedding/values of a reply holds rows of user_embedding"):
        TestAveraging().test_only_declared_arrays_leave_a_node(tmp_path, 1)


def test_a_sum_that_is_none_is_found(tmp_path, monkeypatch):
    real = client_app.node.handlers.train

    def train(host, request):
        reply = real(host, request)
        sums = {name: replace(packed, values=packed.values * 1.01) for name, packed in reply.sums.items()}
        return replace(reply, sums=sums) if len(request.users) > 1 else reply

    monkeypatch.setattr(client_app.node.handlers, "train", train)
    with pytest.raises(AssertionError):
        TestAveraging().test_the_update_of_a_node_is_the_sum_over_its_users(tmp_path)


def test_a_method_that_nobody_knows(tmp_path):
    with pytest.raises(Exception, match="There is no strategy 'wrong'"):
        Asked().test_the_manifest_says_what_is_so(tmp_path)
