"""Replies are measured before they are put together, and none is waited for: with the SuperLink's own handlers."""

import httpx
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.app.message.arraychunk import ArrayChunk
from flwr.supercore.corestate import sql_corestate
from flwr.supercore.inflatable.inflatable_object import add_header_to_object_body, get_object_id

from bouquet.engines.inside import head, use_task_identity
from bouquet.engines.pull import Inbox, inflated_bytes
from bouquet.folding import folded
from tests.superlink import HereGrid, Reply, SuperLink, ask


@pytest.fixture
def link(tmp_path):
    use_task_identity()
    return SuperLink(tmp_path)


@pytest.fixture
def grid(link):
    return HereGrid(link)


@pytest.fixture
def inbox(grid):
    return Inbox(grid)


@pytest.fixture
def asked(link, grid):
    (message,) = ask(grid, link.node())
    return message


def content(**arrays):
    records = {name: Array(np.asarray(values)) for name, values in arrays.items()}
    return RecordDict({"update": ArrayRecord(records), "config": ConfigRecord({"seconds": 1.0})})


def at_most(size, *messages):
    return {message.metadata.message_id: size for message in messages}


def test_an_honest_reply_comes_as_flower_makes_it(link, inbox, asked):
    values = np.random.default_rng(0).normal(size=(2**20,)).astype(np.float32)
    reply = Reply(link, asked, content(q=values, zeros=np.zeros(2**21, np.uint8)))
    reply.push()
    (message,) = inbox.take(at_most(2**26, asked))
    np.testing.assert_array_equal(message.content["update"]["q"].numpy(), values)
    assert message.metadata.reply_to_message_id == asked.metadata.message_id
    assert message.metadata.src_node_id == reply.node
    assert not any(map(link.holds, reply.parts))


def test_a_folded_reply_comes_unfolded_and_a_damaged_one_is_an_error_of_its_node(link, grid, inbox):
    one, other = ask(grid, link.node(), link.node())
    whole = content(q=np.arange(5.0))
    Reply(link, one, folded(whole)).push()
    (message,) = inbox.take(at_most(10**4, one))
    assert dict(message.content.array_records) == dict(whole.array_records)
    Reply(link, other, RecordDict({"config": ConfigRecord({"folded": b"garbage"})})).push()
    (message,) = inbox.take(at_most(10**4, other))
    assert message.error.reason.startswith("its reply cannot be put together (WireError: the head of a folded message")


def test_equal_chunks_are_counted_as_often_as_they_stand(link, inbox, asked):
    """100 MB of zeros travel as two chunks of at most 20 MB; as much as they will be is what counts."""
    zeros = np.zeros(10**8, np.uint8)
    reply = Reply(link, asked, content(q=zeros))
    reply.push()
    size = len(Array(zeros).data)
    assert sum(map(len, reply.parts.values())) < 5 * 10**7
    assert inflated_bytes(reply.parts) == size
    (message,) = inbox.take(at_most(5 * 10**7, asked))
    assert message.metadata.src_node_id == reply.node
    assert message.error.reason == f"the reply would have {size} bytes where at most 50000000 make sense"
    assert not any(map(link.holds, reply.parts))


def test_what_travels_is_counted_while_it_comes(link, inbox, asked):
    Reply(link, asked, content(q=np.arange(10**6))).push()
    (message,) = inbox.take(at_most(1000, asked))
    assert "more than the 1000 bytes" in message.error.reason


def test_a_reply_whose_parts_are_on_their_way_keeps_nobody_waiting(link, grid, inbox):
    """Its node may die on it: the whole reply of another is taken at once, and what has come is not fetched again."""
    slow, quick = ask(grid, link.node(), link.node())
    late, soon = Reply(link, slow, content(q=np.arange(5.0))), Reply(link, quick, content(q=np.arange(6.0)))
    late.push(2)
    soon.push()
    (message,) = inbox.take(at_most(10**6, slow, quick))
    assert message.metadata.src_node_id == soon.node
    assert inbox.coming(slow.metadata.message_id)
    assert inbox.take(at_most(10**6, slow)) == []
    late.push()
    (message,) = inbox.take(at_most(10**6, slow))
    np.testing.assert_array_equal(message.content["update"]["q"].numpy(), np.arange(5.0))
    assert message.metadata.src_node_id == late.node
    assert sorted(link.given) == sorted([*late.parts, *soon.parts])
    assert not inbox.coming(slow.metadata.message_id)


def test_a_reply_whose_parts_never_come_is_an_error_once_nobody_expects_them(link, inbox, asked, monkeypatch):
    """So many seconds after the last part the SuperLink drops what it has; here: none."""
    monkeypatch.setattr(sql_corestate, "OBJECT_PUSH_SESSION_TTL_SECONDS", 0)
    reply = Reply(link, asked, content(q=np.arange(5.0)))
    (message,) = inbox.take(at_most(10**6, asked))
    assert message.error.reason.startswith("its reply did not arrive whole (")
    assert message.metadata.reply_to_message_id == asked.metadata.message_id
    assert message.metadata.src_node_id != reply.node
    assert not inbox.coming(asked.metadata.message_id)


@pytest.mark.parametrize("call", ["PullMessages", "PullObject", "ConfirmMessageReceived"])
def test_a_superlink_that_is_too_busy_to_shake_hands_is_asked_again(link, inbox, asked, monkeypatch, call):
    """With hundreds of processes to each core a handshake takes longer than its thirty seconds; nothing is lost."""
    reply = Reply(link, asked, content(q=np.arange(5.0)))
    reply.push()
    answer = getattr(link, call)

    def busy(request):
        monkeypatch.setattr(link, call, answer)
        raise httpx.ConnectTimeout("_ssl.c:989: The handshake operation timed out")

    monkeypatch.setattr(link, call, busy)
    assert inbox.take(at_most(10**6, asked)) == []
    assert link.holds(reply.root)
    (message,) = inbox.take(at_most(10**6, asked))
    np.testing.assert_array_equal(message.content["update"]["q"].numpy(), np.arange(5.0))
    assert not link.holds(reply.root)


def test_a_superlink_that_is_gone_is_an_error(link, inbox, asked, monkeypatch):
    def gone(request):
        raise httpx.ConnectError("refused")

    monkeypatch.setattr(link, "PullMessages", gone)
    with pytest.raises(httpx.ConnectError):
        inbox.take(at_most(10**6, asked))


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


@pytest.mark.parametrize(
    "body", [b"", b"garbage", b"[" * 50_000, b'{"arraychunk_ids": [7]}', b'{"arraychunk_ids": {}}']
)
def test_parts_that_cannot_be_put_together_are_an_error_of_their_node(link, inbox, asked, body):
    """What the SuperLink lets through: it looks at the head of a part, and not into its body."""

    def damaged(part):
        kind, children, _ = head(part)
        return f"{kind} {','.join(children)} {len(body)}\0".encode() + body if kind == "Array" else part

    reply = Reply(link, asked, content(q=np.arange(5.0)), changed=damaged)
    reply.push()
    (message,) = inbox.take(at_most(10**6, asked))
    assert message.metadata.src_node_id == reply.node
    assert "cannot be put together" in message.error.reason
    assert message.metadata.reply_to_message_id == asked.metadata.message_id


def test_a_reply_that_claims_to_answer_another_message_is_refused(link, grid, inbox):
    """The SuperLink says that it answers the node's own message; its bytes name that of another node."""
    own, other = ask(grid, link.node(), link.node())
    Reply(link, own, content(q=np.arange(5.0)), claims=other.metadata.message_id).push()
    (message,) = inbox.take(at_most(10**6, own, other))
    assert message.error.reason == "the reply claims to answer another message than it does"
    assert message.metadata.reply_to_message_id == own.metadata.message_id
