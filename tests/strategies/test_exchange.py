"""How long a round waits: by a clock of its own, so that nothing depends on the machine."""

from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from bouquet.engines.inside import use_task_identity
from strategies.federation import exchange
from strategies.federation.exchange import Exchange, Pace
from strategies.federation.replies import Sent
from tests.superlink import HereGrid, Reply, SuperLink


class Clock:
    """Stands still until somebody sleeps."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class Answering:
    """Nodes that answer so many seconds after they were asked; None: never."""

    def __init__(self, clock):
        self.clock, self.after, self._due, self._ids = clock, {}, {}, iter(range(10**6))

    def push_messages(self, messages):
        ids = []
        for message in messages:
            ids.append(identity := f"m{next(self._ids)}")
            message.metadata.__dict__["_message_id"] = identity
            seconds = self.after[message.metadata.dst_node_id]
            if seconds is not None:
                self._due[identity] = self.clock.now + seconds, Message(RecordDict(), reply_to=message)
        return ids

    def pull_messages(self, ids):
        ready = [i for i in ids if i in self._due and self._due[i][0] <= self.clock.now]
        return [self._due.pop(i)[1] for i in ready]


@pytest.fixture
def world(monkeypatch):
    use_task_identity()
    clock = Clock()
    monkeypatch.setattr(exchange, "time", clock)
    grid = Answering(clock)
    return SimpleNamespace(clock=clock, grid=grid, exchange=Exchange(grid))


def ask(world, pace, *after, needed=0.5):
    """One round of nodes with one user each; how long it took, to ten seconds, and how many replied."""
    world.grid.after = dict(enumerate(after, start=1))
    sent = [
        Sent(Message(RecordDict(), dst_node_id=node, message_type="train"), np.zeros(1, np.int64), 10**6)
        for node in world.grid.after
    ]
    start = world.clock.now
    replies = world.exchange.ask(sent, pace, needed=needed)
    return round(world.clock.now - start, -1), len(replies)


def test_the_others_have_five_times_as_long_as_the_slowest_and_a_minute_at_least(world):
    """3 s: 5 * 3 < 60, so a minute; 40 s: 200 s; the first round too, once half of the users have replied."""
    assert ask(world, Pace(3600), 1, 3, None) == (60, 2)
    assert world.exchange.timed_out
    assert ask(world, Pace(3600), 1, 40, None) == (200, 2)
    assert ask(world, Pace(100), 1, 40, None) == (100, 2)
    assert ask(world, Pace(3600), 1, 3, 20) == (20, 3)
    assert not world.exchange.timed_out


def test_without_enough_to_go_on_all_the_time_there_is_is_waited(world):
    """Two of three are needed: 2000 s pass, and only then does the third have 5 * 2000 s."""
    assert ask(world, Pace(3600), 1, 2000, 3000, needed=0.6) == (3000, 3)
    assert ask(world, Pace(3600), 1, None, None, needed=0.6) == (3600, 1)


def test_the_slowest_of_the_last_rounds_counts(world):
    """30 s four rounds ago are still 150 s; five rounds ago they are forgotten."""
    pace = Pace(3600)
    ask(world, pace, 1, 30, 1)
    for _ in range(3):
        ask(world, pace, 1, 1, 1)
    assert ask(world, pace, 1, 1, None) == (150, 2)
    assert ask(world, pace, 1, 1, None) == (60, 2)


def test_a_node_that_is_only_slow_is_lost_once_and_then_waited_for(world):
    """90 s: too late for a minute; it came, and 5 * 90 s are waited from then on."""
    pace = Pace(3600)
    assert ask(world, pace, 1, 2, 90) == (60, 2)
    world.clock.now += 30
    assert world.exchange.late() == 1
    assert ask(world, pace, 1, 2, 90) == (90, 3)


def test_in_a_simulation_everybody_is_waited_for(world):
    assert ask(world, Pace(3600, fixed=True), 1, 1, 3000) == (3000, 3)


@pytest.mark.parametrize("longest", [0.5, 1.0, 4.0])
def test_looks_for_a_late_reply_come_ever_more_rarely_and_never_more_rarely_than_was_set(world, longest):
    world.grid.after = {1: 60.0}
    slept = []
    world.clock.sleep = lambda seconds: (slept.append(seconds), setattr(world.clock, "now", world.clock.now + seconds))
    message = Message(RecordDict(), dst_node_id=1, message_type="train")
    replies = Exchange(world.grid, longest).ask([Sent(message, np.zeros(1, np.int64), 10**6)], Pace(100.0))
    assert len(replies) == 1
    assert slept[0] < 0.01
    assert max(slept) == longest
    assert world.clock.now < 60 + longest


def test_a_reply_whose_node_dies_before_its_parts_came_costs_the_others_nothing(tmp_path):
    """Its part of the round ends at the deadline; if it comes whole after all, it is late, and not lost."""
    use_task_identity()
    link = SuperLink(tmp_path)
    sent = [
        Sent(Message(RecordDict(), dst_node_id=link.node(), message_type="train"), np.zeros(1, np.int64), 10**6)
        for _ in range(2)
    ]
    replies = []

    class Answered(HereGrid):
        def push_messages(self, messages):
            accepted = super().push_messages(messages)
            replies.extend(Reply(link, message, RecordDict({"config": ConfigRecord({"q": 1})})) for message in messages)
            replies[0].push(1)
            replies[1].push()
            return accepted

    exchange = Exchange(Answered(link))
    (reply,) = exchange.ask(sent, 0.5)
    assert reply.metadata.src_node_id == replies[1].node
    assert not reply.has_error()
    assert exchange.timed_out
    assert exchange.late() == 0
    replies[0].push()
    assert exchange.late() == 1
    assert exchange.late() == 0
