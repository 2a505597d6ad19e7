"""Messages in few parts: nothing of them is lost, and bytes that are no such message are refused."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from bouquet.arrays import ArraySpec
from bouquet.catalogue import Catalogue
from bouquet.engines.inside import use_task_identity
from bouquet.engines.push import push
from bouquet.errors import WireError
from bouquet.folding import MOST_INLINE_BYTES, SAME_FOR_ALL, folded, is_folded, unfolded
from bouquet.records import pack
from bouquet.wire import RosterRequest, TrainRequest
from client_app.folding import unfolding

NAMES = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\n"), min_size=1, max_size=8)
VALUES = arrays.arrays(
    st.sampled_from([np.float32, np.float64, np.int32, np.int64, np.uint8, np.uint64, np.bool_]),
    arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
SCALARS = st.one_of(st.integers(-(2**53), 2**53), st.floats(allow_nan=False), st.text(), st.booleans())


def parts_of(content):
    """How many parts Flower gives and takes for a message."""
    message = make_message(metadata=Metadata(7, "", 5, 1, "", "1", 1.0, 1000.0, "train"), content=content)
    return len(get_all_nested_objects(message))


def message_of(content):
    use_task_identity()
    return Message(content, dst_node_id=1, message_type="train")


@given(
    st.dictionaries(
        NAMES.filter(lambda name: name != "config"), st.dictionaries(NAMES, VALUES, max_size=3), max_size=4
    ),
    st.dictionaries(NAMES.filter(lambda name: name != "folded"), SCALARS, max_size=3),
)
def test_what_is_unfolded_is_what_was_folded(records, config):
    content = RecordDict({name: pack(record) for name, record in records.items()})
    content["config"] = ConfigRecord(config)
    assert is_folded(folded(content))
    back = unfolded(folded(content))
    assert dict(back.array_records) == dict(content.array_records)
    assert dict(back.config_records) == dict(content.config_records)
    assert not is_folded(back)
    assert unfolded(back) is back


@pytest.mark.parametrize("rows", [10, 2_000, 100_000])
def test_large_arrays_and_those_that_are_the_same_for_all_stay_arrays(rows):
    """float32 [rows, 16] are 640 bytes, 128 KB and 6.4 MB: small; apart if the same for all; too large for settings."""
    table = np.random.default_rng(0).normal(size=(rows, 16)).astype(np.float32)
    content = RecordDict({"update": pack({"q": table, "rows": np.arange(rows)}), "config": ConfigRecord({"round": 3})})
    shared = RecordDict({"shared": pack({"q": table}), "config": ConfigRecord({"round": 3})})
    assert list(folded(content).array_records) == (["folded/rest"] if table.nbytes > MOST_INLINE_BYTES else [])
    assert list(folded(shared).array_records) == (["folded/shared"] if rows > 10 else [])
    for whole in (content, shared):
        assert dict(unfolded(folded(whole)).array_records) == dict(whole.array_records)


def test_a_round_takes_three_parts_and_large_shared_arrays_are_one_for_all_nodes():
    def request(users, rows):
        keys = np.array(users, np.uint64)
        versions, shared = np.arange(len(keys)), {"q": np.ones((rows, 16), np.float32), "b": np.ones(rows, np.float32)}
        return TrainRequest("s", 1, keys, versions, versions + 1, shared, {}, "sum", np.ones(len(keys)), ()).encode()

    assert parts_of(request([1, 2], 300)) == 18
    assert parts_of(folded(request([1, 2], 300))) == 3
    one, other = (folded(request(users, 20_000)) for users in ([1, 2], [3]))
    assert parts_of(one) == 6
    assert one["folded/shared"].object_id == other["folded/shared"].object_id
    before = {}
    one, other, large = (folded(request([1], rows), before)["folded/shared"] for rows in (20_000, 20_000, 30_000))
    assert one is other is not large
    specs = {"q": ArraySpec((300, 16), by_item=True), "b": ArraySpec((300,), by_item=True)}
    back = TrainRequest.decode(unfolded(folded(request([1, 2], 300))), specs)
    np.testing.assert_array_equal(back.versions, [0, 1])
    np.testing.assert_array_equal(back.shared["q"], np.ones((300, 16), np.float32))


def test_a_catalogue_is_one_for_all_nodes():
    items = tuple(f"item {number} of many" for number in range(10_000))
    sent = RosterRequest("s", Catalogue(items, items).edition, Catalogue(items, items))
    assert set(folded(sent.encode()).array_records) == {"folded/catalogue"}
    assert RosterRequest.decode(unfolded(folded(sent.encode()))).catalogue.items == items
    assert set(SAME_FOR_ALL) == {"shared", "catalogue"}


WHOLE = folded(
    RecordDict(
        {
            "update": pack({"q": np.arange(12, dtype=np.float32).reshape(4, 3), "rows": np.arange(4, dtype=np.int32)}),
            "users": pack({"user": np.arange(2, dtype=np.uint64)}),
            "config": ConfigRecord({"round": 3}),
        }
    )
)
BYTES = WHOLE.config_records["config"]["folded"]


def with_bytes(content):
    return RecordDict({"config": ConfigRecord({"round": 3, "folded": content})})


@settings(max_examples=300)
@given(st.data())
def test_mutated_bytes_are_refused_or_are_arrays_of_the_same_length_in_all(data):
    content = bytearray(BYTES)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content)
    try:
        found = unfolded(with_bytes(content))
    except WireError:
        return
    assert sum(len(array.data) for record in found.array_records.values() for array in record.values()) < len(content)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("text", "are no bytes"),
        (b"", "longer than makes sense"),
        (b"\xff\xff\xff\xff", "longer than makes sense"),
        (b"\x02\x00\x00\x00\xff\xff", "is no text"),
        (b"\x01\x00\x00\x00u", "three lines per array"),
        (b"\x04\x00\x00\x00u\n\n-", "a length that is no number"),
        ("\x05\x00\x00\x00u\n\n\u0661".encode(), "a length that is no number"),
        (b"\x05\x00\x00\x00u\nq\n0", "stands twice, or in no record"),
        (b"\x0a\x00\x00\x00u\n\n0\nu\nq\n9", "array 'q' cannot be read"),
        (BYTES + b"more", "not as long as its head says"),
    ],
)
def test_what_is_no_folded_message_is_refused_in_words(content, reason):
    with pytest.raises(WireError, match=reason):
        unfolded(with_bytes(content))


def test_a_folded_message_has_nothing_beside_its_folded_arrays():
    beside = RecordDict({**WHOLE, "update": pack({"q": np.zeros(3)})})
    with pytest.raises(WireError, match="the record 'update' of a folded message is not folded"):
        unfolded(beside)
    twice = RecordDict({**WHOLE, "folded/rest": ArrayRecord({"folded": Array("uint8", (len(BYTES),), "x", BYTES)})})
    with pytest.raises(WireError, match="the record 'update' stands twice"):
        unfolded(twice)


@pytest.mark.parametrize("fold", [True, False])
def test_a_node_answers_as_it_was_asked(fold):
    content = unfolded(WHOLE)
    message = message_of(folded(content) if fold else content)
    seen = []

    def answer(asked, context):
        seen.append(asked.content)
        return Message(content, reply_to=asked)

    reply = unfolding(message, None, answer)
    assert dict(seen[0].array_records) == dict(content.array_records)
    assert is_folded(reply.content) == fold
    assert dict(unfolded(reply.content).array_records) == dict(content.array_records)


class Recording:
    """A grid that remembers what it was given."""

    def push_messages(self, messages):
        self.contents = [message.content for message in messages]
        return ["1"] * len(messages)


class Remote(Recording):
    """One with a SuperLink elsewhere, as `is_remote` tells it."""

    _runtime_client = None


@pytest.mark.parametrize("kind", [Recording, Remote])
def test_messages_are_folded_on_their_way_to_other_processes_only(kind):
    contents = [unfolded(WHOLE), unfolded(WHOLE)]
    messages, grid = [message_of(content) for content in contents], kind()
    assert push(grid, messages) == ["1", "1"]
    assert [is_folded(content) for content in grid.contents] == [kind is Remote] * 2
    assert all(message.content is content for message, content in zip(messages, contents, strict=True))
