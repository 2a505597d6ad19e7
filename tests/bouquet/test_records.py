"""Arrays in messages: packed as Flower packs them, and read where they lie."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, RecordDict

from bouquet.errors import WireError
from bouquet.records import pack, read_personal, unpack

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
