"""What a node claims about itself and its model is bounded before anything is made of it; old answers are refused."""

import json

import numpy as np
import pytest

from bouquet.arrays import MOST_TEXT, ArraySpec, dump_specs, load_specs
from bouquet.errors import WireError
from bouquet.wire import RosterReply, TrainReply, refuse_other_round

TABLE = {"item_embedding": ArraySpec((30, 4), by_item=True)}


def answer(**changes):
    users = np.array([1, 2], np.uint64)
    given = {"users": users, "sizes": np.array([5, 6]), "interactions": 11, "dropped_users": 0, "num_items": 30,
             "catalogue": "ab", "num_partitions": 0, "specs": TABLE} | changes  # fmt: skip
    return RosterReply(**given).encode()


def test_an_honest_answer_is_taken():
    assert RosterReply.decode(answer()).specs == TABLE
    assert RosterReply.decode(answer(sizes=np.array([5, 60])), repeats=True).sizes.tolist() == [5, 60]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"num_partitions": 10**9}, "'num_partitions' should be a number from 0 to"),
        ({"num_items": -1}, "'num_items' should be a number from 0 to"),
        ({"num_items": 2**40}, "'num_items' should be a number from 0 to"),
        ({"interactions": -5}, "'interactions' should be a number from 0 to"),
        ({"num_items": 31}, "has 30 rows for 31 items"),
        ({"sizes": np.array([5, 31])}, "interactions outside 0 to 30"),
        ({"catalogue": "x" * 65}, "fingerprint of the catalogue is too long"),
    ],
)
def test_claims_that_no_node_can_have_are_refused(changes, reason):
    with pytest.raises(WireError, match=reason):
        RosterReply.decode(answer(**changes))


def spec(**changes):
    return json.dumps({"q": {"shape": [30, 4], "init": "normal", "scale": 0.1, "by_item": True} | changes})


@pytest.mark.parametrize(
    "text",
    [
        "[" * 60_000,
        '{"a":' * 10_000,
        " " * (MOST_TEXT + 1),
        json.dumps({str(number): {"shape": [1]} for number in range(1001)}),
        json.dumps({"x" * 101: {"shape": [1]}}),
        spec(shape=[2**20, 2**20]),
        spec(shape=[2**16, 2**16]),
        spec(shape=[1] * 5),
        spec(shape=[True]),
        spec(shape=[]),
        spec(scale=float("inf")),
        spec(scale=10**400),
        spec(scale="1"),
        spec(init=["normal"]),
        spec(by_item=1),
        "[]",
        "1",
    ],
    ids=range(17),
)
def test_specifications_that_no_backbone_has_are_refused(text):
    with pytest.raises(WireError, match="specification|shared"):
        load_specs(text)


def test_specifications_come_back_as_they_were():
    assert load_specs(dump_specs(TABLE)) == TABLE


def test_an_answer_to_another_round_or_run_is_refused():
    none = np.zeros(0)
    reply = TrainReply(none.astype(np.uint64), none.astype(np.float32), none.astype(np.int64), series="s", round=3)
    refuse_other_round(reply.encode(), "s", 3)
    with pytest.raises(WireError, match="the reply is to round 3 and not to round 4"):
        refuse_other_round(reply.encode(), "s", 4)
    with pytest.raises(WireError, match="of another run"):
        refuse_other_round(reply.encode(), "t", 3)
