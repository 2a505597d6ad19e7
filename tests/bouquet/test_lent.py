"""Arrays that are lent are what Flower's own are, without a copy until their bytes are wanted; and who is meant."""

import pickle

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, RecordDict

from bouquet.errors import WireError
from bouquet.folding import folded, unfolded
from bouquet.lent import LentArray, lent_values, size_of
from bouquet.records import lend, message_bytes, pack, values_of
from bouquet.wire import EvaluateRequest, TrainRequest

SHAPES = [(3, 4), (0, 2), (5,), (), (2, 3, 2)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8"])
def test_bytes_are_those_of_a_copy(shape, dtype):
    values = (10 * np.random.default_rng(0).random(shape)).astype(dtype)
    lent, packed = lend({"a": values})["a"], pack({"a": values})["a"]
    assert size_of(lent) == size_of(packed) == len(packed.data)
    assert lent_values(lent) is not None
    assert (lent.dtype, lent.shape, lent.stype, lent.data) == (packed.dtype, packed.shape, packed.stype, packed.data)
    np.testing.assert_array_equal(lent.numpy(), packed.numpy())


def test_nothing_is_copied_and_nothing_can_be_written():
    values = np.arange(6, dtype=np.float32).reshape(3, 2)
    read = values_of(lend({"a": values})["a"], "a")
    assert np.shares_memory(read, values)
    with pytest.raises(ValueError, match="read-only"):
        read[0] = 1
    values[0] = 7
    assert (read[0] == 7).all(), "the lender can"


def test_other_bytes_are_read_and_not_what_was_lent():
    array = lend({"a": np.zeros(3, np.float32)})["a"]
    array.data = pack({"a": np.ones(3, np.float32)})["a"].data
    np.testing.assert_array_equal(values_of(array, "a"), np.ones(3))
    array.data = array.data[:-1]
    with pytest.raises(WireError, match="array 'a' cannot be read"):
        values_of(array, "a")


def test_it_goes_to_other_processes_as_what_it_is():
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    content = RecordDict(
        {
            "update": lend({"a": values, "b": values[:, ::2]}),
            "config": TrainRequest.encode(request()).config_records["config"],
        }
    )
    assert message_bytes(content) == sum(len(array.data) for array in content["update"].values())
    back = unfolded(folded(content))["update"]
    assert {type(array) for array in back.values()} == {Array}
    np.testing.assert_array_equal(values_of(back["b"], "b"), values[:, ::2])
    again = pickle.loads(pickle.dumps(LentArray(values)))
    np.testing.assert_array_equal(values_of(again, "a"), values)
    assert isinstance(ArrayRecord({"a": again})["a"], Array)


def request(places=None, telling=None, rows=3):
    users, none = np.arange(3, dtype=np.uint64), np.zeros(3, np.int64)
    personal = {"table": np.zeros((rows, 2), np.float32)}
    return TrainRequest(
        "s", 1, users, none, none, {}, personal, "rows", np.ones(3), ("features",), addressed=places, telling=telling
    )


def test_personal_arrays_may_be_for_some_of_the_users():
    found = TrainRequest.decode(request(np.array([0, 2]), np.array([1]), rows=2).encode(), {})
    assert found.addressed.tolist() == [0, 2]
    assert found.telling.tolist() == [1]
    assert found.personal["table"].shape == (2, 2)
    nobody = TrainRequest.decode(request(np.zeros(0, np.int64), rows=0).encode(), {})
    assert nobody.addressed.tolist() == []
    everybody = TrainRequest.decode(request().encode(), {})
    assert everybody.addressed is everybody.telling is None
    asked = EvaluateRequest("s", 1, np.arange(3, dtype=np.uint64), np.zeros(3, np.int64), {}, {}, (), np.array([1]))
    assert EvaluateRequest.decode(asked.encode(), {}).addressed.tolist() == [1]


@pytest.mark.parametrize("places", [[0, 3], [-1, 2], [2, 0], [1, 1], [[0, 1]], [0.0, 1.0]])
def test_places_of_nobody_are_refused(places):
    with pytest.raises(WireError, match="'addressed' should be ascending places among 3 users"):
        TrainRequest.decode(request(np.array(places), rows=2).encode(), {})
    with pytest.raises(WireError, match="'telling' should be ascending places among 3 users"):
        TrainRequest.decode(request(telling=np.array(places)).encode(), {})


def test_as_many_rows_as_users_are_meant():
    with pytest.raises(WireError, match="should have one entry for each of 2 users"):
        TrainRequest.decode(request(np.array([0, 1]), rows=3).encode(), {})
