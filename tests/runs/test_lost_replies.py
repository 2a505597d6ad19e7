"""Replies that are lost, late or refused: server and device go on from one version, as if the round had not been."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from bouquet.engines.local import LocalGrid
from bouquet.methods import METHODS
from bouquet.testing import Faulty
from bouquet.wire import EVALUATE, TRAIN
from tests.deployment.fleet import Fleet
from tests.runs.helpers import WITH_PLUG_INS, last_checkpoint, method, run_here, small_settings

ALL = [*sorted(METHODS), *WITH_PLUG_INS]
# (round, partition) whose update the server never gets; two in a row, and one just before a checkpoint.
LOST = {(2, 0), (3, 1), (4, 1), (6, 2), (7, 0)}


class NeverTrains(Faulty):
    """In the lost rounds the node fails before it trains anybody."""

    def __init__(self, *arguments):
        super().__init__(*arguments, fault=None, bad=())
        real = self._client_app

        def app(message, context):
            if is_lost(message, context):
                raise RuntimeError("asleep")
            return real(message, context)

        self._client_app = app


class TrainsInVain(LocalGrid):
    """In the lost rounds the node trains, keeps what it learned, and its reply does not arrive."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        real = self._client_app

        def app(message, context):
            reply = real(message, context)
            if is_lost(message, context):
                assert not reply.has_error()
                raise RuntimeError("no connection")
            return reply

        self._client_app = app


def is_lost(message, context):
    where = int(message.metadata.group_id or 0), context.node_config["partition-id"]
    return message.metadata.message_type == TRAIN and where in LOST


def assert_same(found, expected):
    for key in ("test", "validation", "best_round", "fairness"):
        assert found.read_summary()[key] == expected.read_summary()[key], key
    np.testing.assert_array_equal(found.read_users()[1], expected.read_users()[1])
    one, other = last_checkpoint(found), last_checkpoint(expected)
    np.testing.assert_array_equal(one.versions, other.versions)
    for mine, theirs in ((one.shared, other.shared), (one.extra, other.extra)):
        assert mine.keys() == theirs.keys()
        for name, values in theirs.items():
            np.testing.assert_array_equal(mine[name], values, err_msg=name)


@pytest.mark.parametrize("strategy", ALL)
def test_what_the_server_never_got_has_never_happened(tmp_path, strategy):
    """To the last bit, whatever the method keeps of a user on both sides."""
    settings = small_settings(tmp_path, **method(strategy), num_server_rounds=9, checkpoint_every=3)
    expected = run_here(tmp_path / "never", settings, 3, NeverTrains)
    found = run_here(tmp_path / "vain", settings, 3, TrainsInVain)
    assert [line["users"] for line in found.rounds()] == [line["users"] for line in expected.rounds()]
    assert_same(found, expected)


@pytest.mark.parametrize("strategy", ["fedca", "pfedrec", "fcf+plgc"])
def test_a_late_reply_is_dropped_by_the_server_and_by_its_node(tmp_path, strategy):
    """Node 1's update of round 3 comes in round 4: its users go on from round 2, and in the end from what they have."""
    settings = small_settings(tmp_path, **method(strategy), num_server_rounds=6, round_timeout=0.5)
    asked = {}

    class Watching(Fleet):
        def _answer(self, message):
            if message.metadata.message_type == TRAIN and message.metadata.dst_node_id == 1001:
                asked[int(message.metadata.group_id)] = set(message.content["users"]["version"].numpy().tolist())
            return super()._answer(message)

    plan = {3: lambda fleet: fleet.late.add(1), 4: lambda fleet: fleet.late.clear()}
    directory = run_here(tmp_path / "late", settings | {"min-reply-fraction": 0.3}, 3, Watching, plan=plan)
    assert sum(line["nodes"]["late"] for line in directory.rounds()) == 1
    back = min(round_ for round_ in asked if round_ > 3)
    assert asked[3] == asked[back] == {2}
    assert asked.get(back + 1, {back}) == {back}


def test_resumed_after_a_lost_reply_a_run_equals_one_that_was_not_stopped(tmp_path):
    """The checkpoint of round 3 has round 2 of a node's users, and the node had gone on to round 4 when all stopped."""
    settings = small_settings(tmp_path, strategy="fedca", num_server_rounds=9, checkpoint_every=3)
    whole = run_here(tmp_path / "whole", settings, 3, TrainsInVain)
    parts = settings | {"num-server-rounds": 4}
    directory = run_here(tmp_path / "parts", parts, 3, TrainsInVain)
    newest = sorted(directory.checkpoints.iterdir())[-1]
    newest.unlink()  # killed before it could be written
    assert last_checkpoint(directory).round == 3
    resumed = run_here(tmp_path / "parts", settings | {"resume": str(directory.path)}, 3, TrainsInVain)
    assert_same(resumed, whole)


def test_fedca_by_hand_after_a_lost_reply(tmp_path):
    """rho = .9: the server's tables of all users are those that the devices trained last, in every round."""
    settings = small_settings(tmp_path, strategy="fedca", fedca_rho=0.9, num_server_rounds=9, checkpoint_every=1)
    directory = run_here(tmp_path / "run", settings, 3, TrainsInVain)
    checkpoint = last_checkpoint(directory)
    for partition in range(3):
        folder = next((directory.path / "nodes").glob(f"*/node-{partition}-of-3"))
        stored, index = np.load(folder / "item_embedding.npy"), load_file(folder / "index.safetensors")
        order = np.searchsorted(checkpoint.users, index["users"])
        slots = (index["rounds"] == checkpoint.versions[order]).argmax(axis=0)
        devices = stored[slots, np.arange(len(slots))]
        np.testing.assert_allclose(checkpoint.extra["table/item_embedding"][order], devices, rtol=0, atol=1e-6)


def test_evaluation_uses_the_version_that_the_server_has(tmp_path):
    """The reply of the last round is lost: what is recommended with is what the round before left."""

    asked = []

    class Watching(TrainsInVain):
        def _answer(self, message):
            if message.metadata.message_type == EVALUATE:
                asked.append(message.content["users"]["version"].numpy().tolist())
            return super()._answer(message)

    settings = small_settings(tmp_path, strategy="pfedrec", num_server_rounds=6, evaluate_every=6)
    run_here(tmp_path / "run", settings, 3, Watching)
    assert [set(versions) for versions in asked] == [{6}, {6}, {5}]
