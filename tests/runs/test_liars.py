"""A node that lies when it is first asked is left out; an old reply is refused; a model that breaks ends the run."""

import json

import numpy as np
import pytest
from flwr.app import Array, Message, RecordDict

from bouquet.errors import RunFailed
from bouquet.testing import Faulty
from bouquet.wire import ROSTER, TRAIN
from tests.runs.helpers import run_here, small_settings
from tests.runs.test_failures import changed_reply


class Foreign(Faulty):
    """Nodes that are other people's: in a simulation, where all are our own, one that cannot take part ends the run."""

    simulated = False


def says(**changes):
    return changed_reply(lambda content: content["config"].update(changes))


def garbage(message, answer):
    return Message(RecordDict(), reply_to=message)


def raises(message, answer):
    raise RuntimeError("I do not like you")


def another_model(content):
    specs = json.loads(content["config"]["specs"])
    specs["item_embedding"]["shape"][1] = 7
    content["config"]["specs"] = json.dumps(specs)


def a_foreign_user(content):
    """The first user of the last of four nodes: synthetic users are called 0 to 39."""
    from bouquet.randomness import user_keys

    users = content["users"]["user"].numpy().copy()
    users[0] = next(key for key in user_keys([str(user) for user in range(40)]) if key not in users)
    content["users"]["user"] = Array(users)


LIES = {
    "garbage": (garbage, "has no record 'config'"),
    "an error": (raises, "I do not like you"),
    "a billion parts": (says(num_partitions=10**9), "'num_partitions' should be a number from 0 to"),
    "other parts": (says(num_partitions=7), "it has one of 7 parts of the data, and most nodes one of 4"),
    "another catalogue": (says(catalogue="0" * 16), "it has another catalogue"),
    "other items": (says(num_items=61), "has 60 rows for 61 items"),
    "a nested model": (says(specs="[" * 50_000), "nested too deeply"),
    "another model": (changed_reply(another_model), "it has another model than most nodes"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_node_that_lies_first_is_left_out_and_the_run_goes_on(tmp_path, name):
    """Node 0 of 4 answers first, and the three others are enough."""
    fault, reason = LIES[name]
    settings = small_settings(tmp_path, num_server_rounds=2)
    directory = run_here(tmp_path / "run", settings, 4, Foreign, fault=fault, bad={0}, kind=ROSTER)
    assert directory.read_summary()["status"] == "completed"
    assert directory.read_summary()["users"] == 30
    (refused,) = directory.rounds()[0]["nodes"]["refused"]
    assert refused["node"] == 1000
    assert reason in refused["reason"]


def test_a_user_of_two_nodes_stays_with_the_one_that_answered_first(tmp_path):
    settings = small_settings(tmp_path, num_server_rounds=2)
    directory = run_here(
        tmp_path / "run", settings, 4, Foreign, fault=changed_reply(a_foreign_user), bad={3}, kind=ROSTER
    )
    (refused,) = directory.rounds()[0]["nodes"]["refused"]
    assert refused["node"] == 1003
    assert "who belongs to node 1" in refused["reason"]


def test_where_too_few_agree_the_run_fails(tmp_path):
    settings = small_settings(tmp_path, num_server_rounds=2, node_timeout=1.0)
    lie = says(num_partitions=10**9)
    with pytest.raises(RunFailed, match="3 of 4 nodes cannot take part. The first says: 'num_partitions'"):
        run_here(tmp_path / "run", settings, 4, Faulty, fault=lie, bad={0, 1, 2}, kind=ROSTER)


def test_a_reply_of_an_older_round_is_refused(tmp_path):
    kept = []

    def replays(message, answer):
        kept.append(answer())
        return Message(kept[0].content, reply_to=message)

    directory = run_here(
        tmp_path / "run", small_settings(tmp_path, num_server_rounds=3), 3, Faulty, fault=replays, bad={1}, kind=TRAIN
    )
    first, *later = directory.rounds()
    assert first["failures"] == []
    for line in later:
        assert line["failures"][0]["reason"] == f"the reply is to round 1 and not to round {line['round']}"


def test_a_model_that_is_not_finite_fails_the_run_with_the_name_of_the_array(tmp_path):
    settings = small_settings(tmp_path, server_optimizer="sgd", server_learning_rate=1e300)
    with pytest.raises(RunFailed, match="Round 1 broke the model: 'item_embedding' has values that are not finite"):
        run_here(tmp_path / "run", settings, 3)
    assert not list((tmp_path / "run" / "checkpoints").glob("*"))


def test_adam_is_not_broken_by_what_is_large_and_finite(tmp_path):
    """Squares of 1e200 are infinite; the user is refused before they are taken."""

    def large(content):
        values = content["update"]["item_embedding/values"].numpy().astype(np.float64)
        content["update"]["item_embedding/values"] = Array(values * 0 + 1e200)

    settings = small_settings(tmp_path, num_server_rounds=2)
    directory = run_here(tmp_path / "run", settings, 3, Faulty, fault=changed_reply(large), bad={1})
    assert all("far larger" in line["failures"][0]["reason"] for line in directory.rounds())
