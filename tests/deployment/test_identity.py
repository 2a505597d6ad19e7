"""Whom a node may speak for: its own users, in a run and in those that resume it, and nobody else's."""

from typing import ClassVar

import numpy as np
import pytest
from flwr.app import Array, ConfigRecord

from bouquet.cli.beforehand import model_digest
from bouquet.config import parsed
from bouquet.engines.local import LocalGrid
from bouquet.errors import RunFailed
from bouquet.randomness import user_key
from bouquet.testing import assert_equal_runs
from bouquet.wire import ROSTER
from tests.deployment.fleet import Fleet
from tests.deployment.test_devices import devices_in, run, settings_of
from tests.runs.helpers import last_checkpoint, run_here, small_settings

ANN, BOB, CID = (user_key(name) for name in ("ann", "bob", "cid"))


class Lying(Fleet):
    """A fleet whose nodes say of themselves what `lies` makes of it: by number, a change of the answer's records."""

    lies: ClassVar = {}

    def _answer(self, message):
        reply = super()._answer(message)
        number = message.metadata.dst_node_id - 1000
        if message.metadata.message_type == ROSTER and number in self.lies and not reply.has_error():
            self.lies[number](reply.content)
        return reply


def lying(lies, **given):
    """A grid of this kind; keywords are attributes of the fleet, `plan` apart."""

    def grid(*arguments, **others):
        fleet = Lying(*arguments, **others)
        fleet.lies = lies
        for name, value in given.items():
            setattr(fleet, name, value)
        return fleet

    return grid


def claim(*users):
    """Say that these users live here, with 30 interactions each."""

    def lie(content):
        if not content["config"]["num_items"]:  # it asks for the catalogue first
            return
        content["users"]["user"] = Array(np.array(users, np.uint64))
        content["users"]["size"] = Array(np.full(len(users), 30))

    return lie


def forget(*users):
    def lie(content):
        content["users"]["forgotten"] = Array(np.array(users, np.uint64))

    return lie


def refused(directory):
    return {entry["node"]: entry["reason"] for line in directory.rounds() for entry in line["nodes"]["refused"]}


def both(*lies):
    def lie(content):
        for part in lies:
            part(content)

    return lie


def resume(tmp_path, directory, devices, grid, **changes):
    settings = settings_of(tmp_path, min_nodes=2, num_server_rounds=8, min_reply_fraction=0.3, **changes)
    settings |= {"resume": str(directory.path)}
    return run_here(directory.path, settings, 3, grid, devices=devices, plan={6: lambda f: f.offline.clear()})


def test_the_users_of_an_absent_device_stay_its_own_over_a_resume(tmp_path):
    """Bob's device is off when the run is resumed, and cid's says that bob lives with it: it is refused, with all that
    it says. Bob's device comes back in round 6 and takes part.
    """
    devices = devices_in(tmp_path)
    directory = run(tmp_path, devices, num_server_rounds=2)
    assert last_checkpoint(directory).owners.tolist() == [
        1000 + [ANN, BOB, CID].index(user) for user in last_checkpoint(directory).users.tolist()
    ]
    resumed = resume(tmp_path, directory, devices, lying({2: claim(BOB, CID)}, offline={1}), node_timeout=2.0)
    assert refused(resumed) == {1002: f"it claims user {BOB:016x}, who belongs to node 1001"}
    lines = {line["round"]: line for line in resumed.rounds()}
    assert [lines[round_]["users"] for round_ in range(3, 7)] == [1, 1, 1, 1]
    assert lines[8]["users"] == 2, "the owner takes part again"
    assert lines[8]["nodes"]["users"] == 3
    checkpoint = last_checkpoint(resumed)
    assert checkpoint.sizes.max() < 30, "nothing of the lie was taken"
    assert sorted(checkpoint.owners.tolist()) == [1000, 1001, 1002]


@pytest.mark.parametrize("when", ["in the run", "over a resume"])
def test_a_node_can_have_its_own_users_forgotten_only(tmp_path, when):
    devices = devices_in(tmp_path)
    if when == "in the run":
        # Cid's device is off in rounds 2 and 3, and says so when it is asked again; bob's is off from round 2 on.
        plan = {2: lambda f: f.offline.update({1, 2}), 4: lambda f: f.offline.discard(2)}
        grid = lying({2: forget(ANN, BOB)})
        settings = settings_of(tmp_path, min_nodes=3, num_server_rounds=8, min_reply_fraction=0.3)
        directory = run_here(tmp_path / "run", settings, 3, grid, devices=devices, plan=plan)
    else:
        first = run(tmp_path, devices, num_server_rounds=2)
        directory = resume(tmp_path, first, devices, lying({2: forget(ANN, BOB)}, offline={1}))
    assert sum(line["nodes"]["forgotten"] for line in directory.rounds()) == 0
    assert set(last_checkpoint(directory).users.tolist()) == {ANN, BOB, CID}


def test_what_a_device_wants_forgotten_between_two_runs_of_a_series_is(tmp_path):
    """Its own key at the first question of the resumed run; ann's, which it names too, stays."""
    devices = devices_in(tmp_path)
    first = run(tmp_path, devices, num_server_rounds=2)
    directory = resume(tmp_path, first, devices, lying({1: both(claim(), forget(BOB, ANN))}))
    assert sum(line["nodes"]["forgotten"] for line in directory.rounds()) == 1
    assert set(last_checkpoint(directory).users.tolist()) == {ANN, CID}


def test_of_two_that_claim_a_user_at_first_the_later_one_is_refused_and_the_run_goes_on(tmp_path):
    devices = devices_in(tmp_path)
    settings = settings_of(tmp_path, min_nodes=3)
    directory = run_here(tmp_path / "run", settings, 3, lying({2: claim(ANN)}), devices=devices)
    assert refused(directory) == {1002: f"it claims user {ANN:016x}, who belongs to node 1000"}
    assert [line["users"] for line in directory.rounds()] == [2] * 6
    assert directory.read_summary()["status"] == "completed"


def set_config(**values):
    def lie(content):
        content["config"] = ConfigRecord({**content["config"], **values})

    return lie


def garbage(content):
    content["users"]["user"] = Array("float99", (3,), "numpy.ndarray", b"no")


START_LIES = {
    "another item count": set_config(num_items=7),
    "another catalogue": set_config(catalogue="0" * 16),
    "another model": set_config(specs="{}"),
    "a user twice": claim(ANN, ANN),
    "garbage": garbage,
}


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("name", START_LIES)
def test_one_node_that_lies_at_the_start_keeps_nobody_from_starting(tmp_path, name, first):
    devices = devices_in(tmp_path)
    liar = 0 if first else 2
    settings = settings_of(tmp_path, min_nodes=3, num_server_rounds=2)
    directory = run_here(tmp_path / "run", settings, 3, lying({liar: START_LIES[name]}), devices=devices)
    assert list(refused(directory)) == [1000 + liar]
    assert [line["users"] for line in directory.rounds()] == [2, 2]


@pytest.mark.parametrize("strategy", ["fedavg", "fedca", "sequential-rules", "ials"])
def test_a_liar_that_comes_first_and_alone_is_no_federation_where_the_operator_knows_the_model(tmp_path, strategy):
    """One node is enough to begin, and what it says of the model would bind all that come later."""

    def late(*arguments, **others):
        fleet = lying({0: START_LIES["another model"]})(*arguments, **others)
        ids, looks = fleet.get_node_ids, iter(range(10**6))
        fleet.get_node_ids = lambda: ids()[:1] if next(looks) < 3 else ids()
        return fleet

    devices = devices_in(tmp_path)
    method = {"strategy": strategy, "num_server_rounds": 2, "min_reply_fraction": 0.5}
    method |= {"fedca_k": 2} if strategy == "fedca" else {}
    settings = settings_of(tmp_path, min_nodes=1, **method)
    settings["model-digest"] = model_digest(parsed(settings))
    assert settings["model-digest"]
    directory = run_here(tmp_path / "run", settings, 3, late, devices=devices)
    reason = directory.rounds()[0]["nodes"]["refused"][0]
    assert (reason["node"], reason["reason"][:35]) == (1000, "it has another model than the run; ")
    assert directory.rounds()[-1]["users"] == 2


def test_a_node_that_says_there_are_a_million_others_is_alone(tmp_path):
    settings = small_settings(tmp_path, num_server_rounds=2)
    directory = run_here(tmp_path / "run", settings, 3, lying({0: set_config(num_partitions=10**6)}))
    assert refused(directory) == {1000: "it has one of 1000000 parts of the data, and most nodes one of 3"}
    assert directory.rounds()[0]["users"] == 26


@pytest.mark.parametrize("first", [True, False])
def test_a_node_that_brings_a_crowd_takes_no_majority_with_it(tmp_path, first):
    """A thousand users that never train would leave two of 1,002 valid, and end the run of all others."""
    devices = devices_in(tmp_path)
    grid = lying({2: claim(*range(1, 1001))}, hidden=set() if first else {2})
    settings = settings_of(tmp_path, min_nodes=3 if first else 2)
    plan = {2: lambda fleet: fleet.hidden.clear()}
    directory = run_here(tmp_path / "run", settings, 3, grid, devices=devices, plan=plan)
    assert refused(directory) == {1002: "it brings 1000 users where a node may have 1 (users-per-node)"}
    assert [line["users"] for line in directory.rounds()] == [2] * 6


def test_a_node_may_bring_as_many_users_as_the_run_says(tmp_path):
    devices, grid = devices_in(tmp_path), lying({2: claim(CID, 7)})
    settings = settings_of(tmp_path, min_nodes=3, users_per_node=2)
    directory = run_here(tmp_path / "run", settings, 3, grid, devices=devices)
    assert refused(directory) == {}


def test_a_node_that_has_another_user_every_time_is_one_node(tmp_path):
    """Nobody waits for the users that it no longer has."""
    names = iter(range(1, 1000))
    devices, grid = devices_in(tmp_path), lying({2: lambda content: claim(next(names))(content)})
    settings = settings_of(tmp_path, min_nodes=3, num_server_rounds=12, node_timeout=5.0)
    directory = run_here(tmp_path / "run", settings, 3, grid, devices=devices)
    lines = directory.rounds()
    assert lines[-1]["nodes"]["users"] > 8, "it has had more names than three users have replies"
    assert all(line["users"] == 2 for line in lines)


def test_in_a_simulation_one_node_that_cannot_take_part_fails_the_run(tmp_path):
    class Simulation(Lying):
        simulated = True
        lies: ClassVar = {1: set_config(catalogue="0" * 16)}

    with pytest.raises(RunFailed, match="1 of 3 nodes cannot take part. The first says: it has another catalogue"):
        run_here(tmp_path / "run", small_settings(tmp_path), 3, Simulation)


def test_simulated_nodes_come_back_under_other_ids(tmp_path):
    """5 rounds, and 5 more on nodes 2007 to 2005 that were 1000 to 1002, equal 10."""

    class Renamed(LocalGrid):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            contexts = list(self._contexts.values())
            for number, context in enumerate(contexts):
                context.node_id = 2007 - number
            self._contexts = {context.node_id: context for context in contexts}

    settings = small_settings(tmp_path, evaluate_every=5, checkpoint_every=5, strategy="pfedrec")
    whole = run_here(tmp_path / "whole", settings | {"num-server-rounds": 10}, 3)
    first = run_here(tmp_path / "parts", settings | {"num-server-rounds": 5}, 3)
    assert not last_checkpoint(first).owners.any()
    resumed = settings | {"num-server-rounds": 10, "resume": str(tmp_path / "parts")}
    assert_equal_runs(run_here(tmp_path / "parts", resumed, 3, Renamed), whole)


def test_without_registered_keys_ids_mean_nothing_in_the_next_run(tmp_path):
    settings = small_settings(tmp_path, num_server_rounds=2, registered_nodes=False)
    directory = run_here(tmp_path / "run", settings, 3, Fleet)
    assert not last_checkpoint(directory).owners.any()
    # Given keys meanwhile: from now on they do.
    resumed = settings | {"registered-nodes": True, "num-server-rounds": 4, "resume": str(directory.path)}
    assert set(last_checkpoint(run_here(directory.path, resumed, 3, Fleet)).owners.tolist()) == {1000, 1001, 1002}
