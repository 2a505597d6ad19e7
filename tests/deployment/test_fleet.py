"""The server with nodes that vanish, come back, are late or lie: the run goes on, and everything is counted."""

import numpy as np
import pytest
from flwr.app import Array, Error, Message

from bouquet.errors import RunFailed
from bouquet.testing import Faulty, assert_equal_runs
from bouquet.wire import ROSTER, TRAIN
from tests.deployment.fleet import Fleet
from tests.runs.helpers import last_checkpoint, run_here, small_settings
from tests.runs.test_failures import put


def run(tmp_path, plan, nodes=3, **changes):
    """Six rounds of 40 users on three nodes (14, 13, 13) with what the plan does to them."""
    fleets = []

    def grid(*arguments):
        fleets.append(Fleet(*arguments, plan=plan))
        return fleets[0]

    settings = small_settings(tmp_path, **{"round_timeout": 0.3, "evaluate_every": 6, **changes})
    directory = run_here(tmp_path / "run", settings, nodes, grid)
    return directory.rounds(), directory, fleets[0]


def test_a_silent_node_is_not_asked_again_until_it_has_shown_itself(tmp_path):
    def fall_silent(fleet):
        fleet.silent = {1}

    def wake(fleet):
        fleet.silent = set()

    rounds, directory, fleet = run(tmp_path, {2: fall_silent, 5: wake})
    assert [line["users"] for line in rounds] == [40, 27, 27, 27, 27, 40]
    assert [line["asked"] for line in rounds] == [40, 40, 27, 27, 27, 40]
    assert [len(line["failures"]) for line in rounds] == [0, 1, 0, 0, 0, 0]
    assert rounds[1]["failures"][0]["reason"] == "no reply came in time"
    assert [line["nodes"]["absent"] for line in rounds] == [0, 0, 1, 1, 1, 0]
    assert rounds[5]["nodes"]["came"] == [1001]
    trained = [entry for entry in fleet.asked if entry[1:] == (TRAIN, 1)]
    assert [round_ for round_, _, _ in trained] == [1, 2, 6]
    assert directory.read_summary()["status"] == "completed"


def test_a_node_that_never_trains_costs_ever_fewer_deadlines(tmp_path):
    """Node 1 answers every query. In vain in round 1, again in 1 + 2, then in 3 + 4 and 7 + 8, the fourth time; woken
    in round 9 it trains in 15, and a silence after that is the first again: 16 and then 18.
    """

    def speak(fleet):
        fleet.mute = set()

    def hush(fleet):
        fleet.mute = {1}

    rounds, _, fleet = run(tmp_path, {1: hush, 9: speak, 16: hush}, num_server_rounds=19, evaluate_every=19)
    asked = [round_ for round_, kind, node in fleet.asked if (kind, node) == (TRAIN, 1)]
    assert asked == [1, 3, 7, 15, 16, 18]
    resting = [line["round"] for line in rounds if line["nodes"]["resting"] == [1001]]
    assert set(resting) >= {5, 6, 9, 10, 11, 12, 13, 14}
    assert not set(resting) & set(asked)
    assert [line["nodes"]["present"] for line in rounds if line["round"] in resting] == [2] * len(resting)


def test_nobody_rests_where_too_few_are_left(tmp_path):
    """Node 1 is mute in rounds 2 and 4 and would rest up to 7; node 2 leaves in 5, and 14 of 40 users are too few."""

    def leave(fleet):
        fleet.mute, fleet.offline = set(), {2}

    rounds, _, _ = run(tmp_path, {2: lambda fleet: fleet.mute.add(1), 5: leave}, num_server_rounds=7)
    assert [line["asked"] for line in rounds] == [40, 40, 27, 40, 27, 27, 27]
    assert [line["users"] for line in rounds] == [40, 27, 27, 27, 14, 27, 27]


def test_a_node_that_the_superlink_does_not_see_is_not_asked_at_all(tmp_path):
    def leave(fleet):
        fleet.offline = {0, 2}

    def rejoin(fleet):
        fleet.offline = set()

    settings = {"min_reply_fraction": 0.2}
    rounds, _, _ = run(tmp_path, {2: leave, 4: rejoin}, **settings)
    # Back from round 4 on; asked whom it hosts in round 5; trains in round 6.
    assert [line["users"] for line in rounds] == [40, 13, 13, 13, 13, 40]
    assert [line["asked"] for line in rounds] == [40, 40, 13, 13, 13, 40]
    assert rounds[2]["nodes"]["absent"] == 2


def test_the_run_waits_for_nodes_where_too_few_are_left_and_then_fails(tmp_path):
    """26 of 40 users, then 13: half of the 26 that were asked, and a third of all."""
    plan = {2: lambda fleet: fleet.offline.add(0), 3: lambda fleet: fleet.offline.add(2)}
    with pytest.raises(RunFailed, match="Only 13 of 40 users have a node that is there, after 0.5 s"):
        run(tmp_path, plan, min_reply_fraction=0.5, node_timeout=0.5)


def test_k_of_n_goes_on_without_the_slowest_and_counts_what_comes_late(tmp_path):
    def slow(fleet):
        fleet.late = {2}

    def quick(fleet):
        fleet.late = set()

    rounds, _, _ = run(tmp_path, {2: slow, 4: quick}, round_timeout=60.0, enough_reply_fraction=0.6)
    assert rounds[1]["users"] == 27
    assert rounds[1]["seconds"]["train"] < 30, "nobody waited for the deadline"
    assert sum(line["nodes"]["late"] for line in rounds) >= 1
    assert rounds[-1]["users"] == 40


def test_the_others_learn_what_they_would_learn_alone(tmp_path):
    """Node 2 silent from the first round on: the shared arrays are those of a run in which it answers nothing."""

    def silent(fleet):
        fleet.silent = {2}

    _, silent_run, _ = run(tmp_path, {1: silent}, num_server_rounds=3)
    settings = small_settings(tmp_path, num_server_rounds=3, evaluate_every=6)
    failing = run_here(tmp_path / "failing", settings, 3, Faulty, fault=lambda message, answer: 1 / 0, bad={2})
    np.testing.assert_array_equal(
        last_checkpoint(silent_run).shared["item_embedding"], last_checkpoint(failing).shared["item_embedding"]
    )


def test_an_oversized_reply_is_not_even_decoded(tmp_path):
    huge = put("update", "item_embedding/values", lambda values: np.zeros((200_000, values.shape[1])))
    directory = run_here(tmp_path / "run", small_settings(tmp_path), 3, Faulty, fault=huge, bad={1})
    for line in directory.rounds():
        assert line["users"] == 27
        assert "bytes where at most" in line["failures"][0]["reason"]


def test_a_node_that_claims_the_users_of_another_is_refused_and_the_run_goes_on(tmp_path):
    """Node 1 falls silent, and when it is asked whom it hosts it says: the users of node 0."""

    class Thief(Fleet):
        def _answer(self, message):
            reply = super()._answer(message)
            stolen = message.metadata.message_type == ROSTER and message.metadata.dst_node_id == 1001 and self._round
            if stolen and not reply.has_error():
                other = self._users_of(message, 1000)
                reply.content["users"]["user"] = Array(other)
            return reply

        def _users_of(self, message, node):
            return self._client_app(message, self._contexts[node]).content["users"]["user"].numpy()[:13]

    plan = {2: lambda fleet: fleet.silent.add(1), 3: lambda fleet: fleet.silent.clear()}
    settings = small_settings(tmp_path, round_timeout=0.3, evaluate_every=6)
    directory = run_here(tmp_path / "run", settings, 3, Thief, plan=plan)
    rounds = directory.rounds()
    refused = [entry for line in rounds for entry in line["nodes"]["refused"]]
    assert [entry["node"] for entry in refused] == [1001], "told once, however often it tries"
    assert "who belongs to node 1000" in refused[0]["reason"]
    assert [line["users"] for line in rounds] == [40, 27, 27, 27, 27, 27]


class Reporting(Fleet):
    """The SuperLink answers in place of nodes that are gone, as Flower's does; those come back after some looks."""

    def __init__(self, *arguments, looks=3, **others):
        super().__init__(*arguments, **others)
        self.looks, self.left = looks, looks

    def pull_messages(self, message_ids):
        for message in [message for message in self._queue if message.metadata.dst_node_id - 1000 in self.offline]:
            self._queue.remove(message)
            reply = Message(Error(code=1, reason="Node Unavailable"), reply_to=message)
            reply.metadata.__dict__["_src_node_id"] = 1
            self._replies[message.metadata.message_id] = reply
        return super().pull_messages(message_ids)

    def get_node_ids(self):
        if self.offline:
            self.left -= 1
            if self.left <= 0:
                self.offline, self.left = set(), self.looks
        return super().get_node_ids()


def run_reporting(tmp_path, plan, name="run", **changes):
    settings = small_settings(tmp_path, **{"evaluate_every": 6, "min_reply_fraction": 0.6, **changes})
    return run_here(tmp_path / name, settings, 3, lambda *arguments: Reporting(*arguments, plan=plan))


@pytest.mark.parametrize("strategy", ["fedavg", "fedca", "sequential-rules"])
def test_a_round_from_which_most_nodes_went_away_is_asked_once_more_and_costs_nothing(tmp_path, strategy):
    """Two of three nodes go when round 2 is sent. The third trains it, and again when all are back, from where it was.

    So all numbers are what they would have been.
    """
    method = {"strategy": strategy, "num_server_rounds": 4, "evaluate_every": 2}
    method |= {"fedca_k": 2} if strategy == "fedca" else {}
    without = run_reporting(tmp_path, {}, "without", **method)
    found = run_reporting(tmp_path, {2: lambda fleet: fleet.offline.update({1, 2})}, "with", **method)
    assert_equal_runs(found, without)
    assert [line["nodes"]["repeated"] for line in found.rounds()] == [0, 1, 0, 0]
    assert [line["users"] for line in found.rounds()] == [40] * 4
    assert found.rounds()[1]["nodes"]["came"] == [1001, 1002]
    assert found.rounds()[1]["failures"] == []


def test_nodes_that_go_in_every_try_end_the_run_in_the_end(tmp_path):
    class Leaving(Reporting):
        def push_messages(self, messages):
            messages = list(messages)
            if messages[0].metadata.message_type == TRAIN:
                self.offline = {0, 1, 2}
            return super().push_messages(messages)

    settings = small_settings(tmp_path)
    with pytest.raises(RunFailed, match="Round 1: only 0 of 40 users gave a valid reply.*Node Unavailable"):
        run_here(tmp_path / "run", settings, 3, Leaving)
