"""Arrays in messages: packed as Flower packs them, and read where they lie."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, RecordDict

from bouquet.arrays import ArraySpec
from bouquet.errors import WireError
from bouquet.packed import PackedRows, by_entry
from bouquet.picked import Picked
from bouquet.records import Report, pack, payload_bytes, unpack
from bouquet.wire import EvaluateReply, TrainReply
from bouquet.wire.personal import lend_personal, read_personal

EXAMPLES = {
    "table": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    "keys": np.array([1, 2**64 - 1], np.uint64),
    "marks": np.array([True, False]),
    "numbers": np.arange(6, dtype=np.int64)[::2],
    "nobody": np.zeros((0, 3), np.float32),
    "nothing": np.zeros((2, 0), np.float64),
}


def test_packed_arrays_are_flowers_own():
    for name, record in pack(EXAMPLES).items():
        assert record == Array(np.ascontiguousarray(EXAMPLES[name])), name
    for name, values in unpack(pack(EXAMPLES)).items():
        np.testing.assert_array_equal(values, EXAMPLES[name], strict=True)


def test_personal_arrays_are_read_without_a_copy():
    record = pack({"table": EXAMPLES["table"]})
    values = read_personal(RecordDict({"personal": record}), 2)["table"]
    np.testing.assert_array_equal(values, EXAMPLES["table"], strict=True)
    assert not values.flags.owndata
    assert not values.flags.writeable
    by_columns = ArrayRecord({"table": Array(np.asfortranarray(EXAMPLES["table"]))})
    values = read_personal(RecordDict({"personal": by_columns}), 2)["table"]
    np.testing.assert_array_equal(values, EXAMPLES["table"], strict=True)


WHOLE = pack({"table": EXAMPLES["table"]})["table"].data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        WHOLE[:40],
        WHOLE[:-4],
        WHOLE + b"more",
        WHOLE.replace(b"<f4", b"|O8"),
        WHOLE.replace(b"3", b"7"),
    ],
    ids=["empty", "garbage", "half a header", "short", "long", "objects", "another shape"],
)
def test_damaged_personal_arrays_are_refused(data):
    record = ArrayRecord({"table": Array("float32", (2, 3, 4), "numpy.ndarray", data)})
    with pytest.raises(WireError, match="array 'table' cannot be read"):
        read_personal(RecordDict({"personal": record}), 2)


def test_what_users_have_in_common_travels_once():
    """Of three users two have the first entry; of some of them each gets its own copy."""
    picked = Picked.among(np.arange(8, dtype=np.float32).reshape(4, 2), np.array([1, 3, 1]))
    assert (picked.values.tolist(), picked.which.tolist()) == ([[2, 3], [6, 7]], [0, 1, 0])
    content = RecordDict({"personal": lend_personal({"table": picked, "own": np.ones((3, 1))})})
    found = read_personal(content, 3)
    assert isinstance(found["own"], np.ndarray)
    assert found["table"][:].tolist() == [[2, 3], [6, 7], [2, 3]]
    assert found["table"][1:].tolist() == found["table"][np.array([1, 2])].tolist() == [[6, 7], [2, 3]]
    assert (len(found["table"]), payload_bytes(found)) == (3, 3 * 8 + 3 * 8)


@pytest.mark.parametrize("which", [[2], [3, 0]], ids=["the only user of a node", "nothing in common"])
def test_where_nothing_is_in_common_nothing_is_added(which):
    values = np.arange(8, dtype=np.float32).reshape(4, 2)
    record = lend_personal({"table": Picked.among(values, np.array(which))})
    assert set(record) == {"table"}
    assert read_personal(RecordDict({"personal": record}), len(which))["table"].tolist() == values[which].tolist()


@pytest.mark.parametrize(
    ("of", "reason"),
    [
        (np.array([0, 1, 2]), "which of 2 entries of 'table'"),
        (np.array([0, -1, 0]), "which of 2 entries of 'table'"),
        (np.array([0.0, 1.0, 0.0]), "which of 2 entries of 'table'"),
        (np.array([[0, 1, 0]]), "which of 2 entries of 'table'"),
        (np.array([0, 1]), "one entry for each of 3 users"),
    ],
    ids=["beyond", "below", "no integers", "two axes", "too few"],
)
def test_whose_an_entry_is_has_to_fit(of, reason):
    content = RecordDict({"personal": pack({"table": np.ones((2, 4), np.float32), "table/of": of})})
    with pytest.raises(WireError, match=reason):
        read_personal(content, 3)


def test_entries_that_did_not_come_are_nobodys():
    with pytest.raises(WireError, match="'table/of' says whose the entries of an array are that did not come"):
        read_personal(RecordDict({"personal": pack({"table/of": np.zeros(3, np.int64)})}), 3)


@pytest.mark.parametrize("users", [0, 1, 3])
def test_users_who_change_no_row_reply_like_all_others(users):
    """A user with a single training item has nothing to predict for a sequence model."""
    keys = np.arange(users, dtype=np.uint64)
    nothing = PackedRows(np.zeros(users + 1, np.int64), np.zeros(0, np.int32), np.zeros((0, 4), np.float32))
    interests = np.zeros((users, 8), np.float32)
    sent = TrainReply(
        users=keys,
        loss=np.full(users, np.nan, np.float32),
        upload_bytes=np.zeros(users, np.int64),
        rows={"item_embedding": nothing},
        reports={"representation": interests},
    )
    specs = {"item_embedding": ArraySpec((30, 4), by_item=True)}
    came = TrainReply.decode(sent.encode(), keys, specs, "rows", {"representation": Report((8,), 0.0, 0.0)})
    np.testing.assert_array_equal(came.rows["item_embedding"].values, nothing.values, strict=True)
    if users:  # nobody tells nothing
        np.testing.assert_array_equal(came.reports["representation"], interests, strict=True)


def test_a_node_may_evaluate_nobody():
    sent = EvaluateReply(np.zeros(0, np.uint64), np.zeros((0, 2, 2, 10), np.float32))
    assert EvaluateReply.decode(sent.encode(), sent.users).metrics.shape == (0, 2, 2, 10)


def test_entries_are_judged_one_by_one_and_nothing_is_good():
    good = np.array([[[True, True], [True, False]], [[True, True], [True, True]]])
    assert by_entry(good).tolist() == [False, True]
    for shape in ((0,), (0, 3), (0, 3, 2), (2, 0)):
        assert by_entry(np.zeros(shape, bool)).tolist() == [True] * shape[0]
