"""Replies are measured before they are put together: real parts of real messages, out of a store in this process."""

import httpx
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.app.message.arraychunk import ArrayChunk
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import (
    add_header_to_object_body,
    get_all_nested_objects,
    get_object_id,
    get_object_tree,
)
from flwr.superlink.grid import HttpGrid

from bouquet.engines.pull import inflated_bytes, pull
from bouquet.folding import folded


class Store:
    """What the SuperLink's runtime API answers, for one reply."""

    def __init__(self, message, claimed="asked-1"):
        metadata = message.metadata
        self.contents = {identity: part.deflate() for identity, part in get_all_nested_objects(message).items()}
        self.tree = get_object_tree(message)
        root = self.tree.object_id
        message.metadata.__dict__["_message_id"] = root
        metadata.__dict__["_reply_to_message_id"] = claimed
        self.proto = message_to_proto(message)
        self.proto.ClearField("content")
        self.confirmed = []

    def PullMessages(self, request):
        return PullAppMessagesResponse(messages_list=[self.proto], message_object_trees=[self.tree])

    def PullObject(self, request):
        content = self.contents.get(request.object_id, b"")
        return PullObjectResponse(object_found=bool(content), object_available=bool(content), object_content=content)

    def ConfirmMessageReceived(self, request):
        self.confirmed.append(request.message_object_id)


class OverTheNetwork(HttpGrid):
    """Flower's grid, with a store of this process at the other end."""

    def __init__(self, store):
        self._store = store
        self.node = Node(node_id=1)
        self._run = type("Run", (), {"run_id": 7})()

    @property
    def _runtime_client(self):
        return self._store


def reply(arrays, replies_to="asked-1"):
    content = RecordDict({"update": ArrayRecord(arrays), "config": ConfigRecord({"seconds": 1.0})})
    metadata = Metadata(7, "", 5, 1, replies_to, "1", 1.0, 1000.0, "train")
    return make_message(metadata=metadata, content=content)


def test_an_honest_reply_comes_as_flower_makes_it():
    values = np.random.default_rng(0).normal(size=(2**20,)).astype(np.float32)
    store = Store(reply({"q": Array(values), "zeros": Array(np.zeros(2**21, np.uint8))}))
    (message,) = pull(OverTheNetwork(store), {"asked-1": 2**26})
    np.testing.assert_array_equal(message.content["update"]["q"].numpy(), values)
    assert message.metadata.reply_to_message_id == "asked-1"
    assert message.metadata.src_node_id == 5
    assert store.confirmed == [store.tree.object_id]


def test_a_folded_reply_comes_unfolded_and_a_damaged_one_is_an_error_of_its_node():
    whole = reply({"q": Array(np.arange(5.0))})
    content, whole.content = whole.content, folded(whole.content)
    (message,) = pull(OverTheNetwork(Store(whole)), {"asked-1": 10**4})
    assert dict(message.content.array_records) == dict(content.array_records)
    broken = reply({"q": Array(np.arange(5.0))})
    broken.content = RecordDict({"config": ConfigRecord({"folded": b"garbage"})})
    (message,) = pull(OverTheNetwork(Store(broken)), {"asked-1": 10**4})
    assert message.error.reason.startswith("its reply cannot be put together (WireError: the head of a folded message")


def test_equal_chunks_are_counted_as_often_as_they_stand():
    """100 MB of zeros travel as two chunks of at most 20 MB; as much as they will be is what counts."""
    array = Array(np.zeros(10**8, np.uint8))
    store = Store(reply({"q": array}))
    assert sum(map(len, store.contents.values())) < 5 * 10**7
    assert inflated_bytes(store.contents) == len(array.data)
    (message,) = pull(OverTheNetwork(store), {"asked-1": 5 * 10**7})
    assert message.has_error()
    assert message.metadata.src_node_id == 5
    assert message.error.reason == f"the reply would have {len(array.data)} bytes where at most 50000000 make sense"
    assert store.confirmed


def test_what_travels_is_counted_while_it_comes():
    store = Store(reply({"q": Array(np.arange(10**6))}))
    (message,) = pull(OverTheNetwork(store), {"asked-1": 1000})
    assert "more than the 1000 bytes" in message.error.reason


@pytest.mark.parametrize("call", ["PullMessages", "PullObject", "ConfirmMessageReceived"])
def test_a_superlink_that_is_too_busy_to_shake_hands_is_asked_again(monkeypatch, call):
    """With hundreds of processes to each core a handshake takes longer than its thirty seconds; nothing is lost."""
    store = Store(reply({"q": Array(np.arange(5.0))}))
    answer = getattr(Store, call)

    def busy(self, request):
        monkeypatch.setattr(Store, call, answer)
        raise httpx.ConnectTimeout("_ssl.c:989: The handshake operation timed out")

    monkeypatch.setattr(Store, call, busy)
    assert pull(OverTheNetwork(store), {"asked-1": 10**6}) == []
    assert store.confirmed == []
    (message,) = pull(OverTheNetwork(store), {"asked-1": 10**6})
    np.testing.assert_array_equal(message.content["update"]["q"].numpy(), np.arange(5.0))
    assert store.confirmed == [store.tree.object_id]


def test_a_superlink_that_is_gone_is_an_error(monkeypatch):
    def gone(self, request):
        raise httpx.ConnectError("refused")

    monkeypatch.setattr(Store, "PullMessages", gone)
    with pytest.raises(httpx.ConnectError):
        pull(OverTheNetwork(Store(reply({"q": Array(np.arange(5.0))}))), {"asked-1": 10**6})


def test_an_array_of_arrays_is_refused():
    """Each level could double the one under it: 40 levels of a few bytes are a terabyte."""
    chunk = ArrayChunk(memoryview(b"x")).deflate()
    contents = {get_object_id(chunk): chunk}
    child = get_object_id(chunk)
    for _ in range(2):
        body = b'{"dtype": "u1", "shape": [2], "stype": "numpy.ndarray", "arraychunk_ids": [0, 0]}'
        holder = type("Array", (), {"children": {child: None}})()
        content = add_header_to_object_body(body, holder)
        child = get_object_id(content)
        contents[child] = content
    with pytest.raises(ValueError, match="something else than chunks"):
        inflated_bytes(contents)


@pytest.mark.parametrize("damage", [b"", b"garbage", b"Array,,,\x00", b"Array \x0010\x00" + b"[" * 50_000])
def test_parts_that_cannot_be_put_together_are_an_error_of_their_node(damage):
    store = Store(reply({"q": Array(np.arange(5.0))}))
    for identity, content in list(store.contents.items()):
        if content.startswith(b"Array "):
            store.contents[identity] = damage or b"\x00"
    (message,) = pull(OverTheNetwork(store), {"asked-1": 10**6})
    assert message.has_error()
    assert message.metadata.src_node_id == 5
    assert "cannot be put together" in message.error.reason
    assert message.metadata.reply_to_message_id == "asked-1"


def test_a_reply_that_claims_to_answer_another_message_is_refused():
    """The SuperLink says that it answers the node's own message; its bytes name that of another node."""
    store = Store(reply({"q": Array(np.arange(5.0))}, replies_to="asked-2"), claimed="asked-1")
    (message,) = pull(OverTheNetwork(store), {"asked-1": 10**6, "asked-2": 10**6})
    assert message.error.reason == "the reply claims to answer another message than it does"
    assert message.metadata.reply_to_message_id == "asked-1"
