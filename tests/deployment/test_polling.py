"""How often a node asks, and a node of `bouquet serve` that takes part only under conditions."""

import os
import signal
import subprocess
from types import SimpleNamespace

import pytest

from bouquet.deployment.keys import make_keys
from bouquet.engines.polling import Polling, polling_settings
from bouquet.engines.ports import free_port
from bouquet.engines.processes import end_all, marked_processes
from bouquet.engines.release import supernode_command
from bouquet.errors import ConfigError
from client_app.edge import asking
from tests.deployment.devices import with_programs, words_of
from tests.runs.helpers import PROGRAM, await_condition

MARK = "BOUQUET_TEST_POLLING"


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_pause_is_a_number_of_seconds_above_nothing(seconds):
    with pytest.raises(ConfigError, match=r"^rest-poll-interval is a number of seconds above 0, not "):
        polling_settings(None, seconds)


def test_what_is_given_is_kept_and_the_rest_stays_as_usual():
    assert polling_settings(None, None) == {}
    kept = polling_settings(0.7, None)
    assert Polling.of({"user": "ann", **kept}) == Polling(0.7, Polling().rest)
    with pytest.raises(ConfigError, match="poll-interval is a number of seconds, not 'often'"):
        Polling.of({"poll-interval": "often"})


def test_a_supernode_is_told(tmp_path):
    command = supernode_command("hub:9092", tmp_path, {}, polling=Polling(0.5, 60.0))
    assert {"--poll-interval=0.5", "--rest-poll-interval=60.0"} <= set(command)
    assert not any("poll" in word for word in supernode_command("hub:9092", tmp_path, {}))


@pytest.fixture
def pauses(monkeypatch):
    """A SuperNode's clock, which its pauses move, these pauses, and how often it was told to look for a reply."""
    from flwr.supernode import start_client_internal as flower

    clock = SimpleNamespace(now=1000.0, slept=[], worked=0, flower=flower)

    def sleep(seconds):
        clock.slept.append(seconds)
        clock.now += seconds

    def work():
        clock.worked += 1

    monkeypatch.setattr(asking, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: clock.now))
    monkeypatch.setitem(vars(flower), "time", flower.time)
    asking.look_for_messages_often(work, Polling(0.25, 7.0))
    return clock


def test_a_supernode_asks_often_while_messages_come_and_rarely_a_minute_after_the_last(pauses):
    """Flower sleeps .5 s between two looks for its reply, and 3 s between two for a message."""
    sleep = pauses.flower.time.sleep
    sleep(3)
    sleep(0.5)
    for _ in range(241):
        sleep(3)
    # The minute begins where the pause for the reply does.
    assert pauses.slept == [7.0, asking.REPLY_SECONDS, *[0.25] * 240, 7.0]
    assert pauses.worked == 1


def test_a_supernode_asks_a_slow_superlink_less_often(pauses):
    sleep = pauses.flower.time.sleep
    sleep(0.5)
    for seconds in (0.01, 0.1, 5.0, 0.01):
        pauses.now += seconds  # the question and its answer
        sleep(3)
    assert pauses.slept[1:] == pytest.approx([0.25, 20 * 0.1, 7.0, 0.25])


@pytest.mark.flower
def test_a_served_node_rests_while_its_condition_says_no(tmp_path):
    """No SuperLink is there: whether the node tries to reach one is what is asked."""
    make_keys(tmp_path / "keys", ["localhost"], ["node-1"])
    flag, log, mark = tmp_path / "flag", tmp_path / "log.txt", str(tmp_path)
    command = [*PROGRAM, "serve", "node", "--superlink", f"localhost:{free_port()}"]
    command += ["--keys", str(tmp_path / "keys/nodes/node-1"), "--state", str(tmp_path / "state")]
    command += ["--only-when", f"test -e {flag}"]

    def supernodes():
        return sum(b"client_app.edge.supernode" in words_of(process) for process in marked_processes(MARK, mark))

    with log.open("w") as output:
        node = subprocess.Popen(
            command,
            env={**with_programs(tmp_path), MARK: mark},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        await_condition(lambda: f"Resting: 'test -e {flag}' says no, with exit status 1." in log.read_text())
        assert supernodes() == 0
        flag.touch()
        await_condition(lambda: "All conditions hold: taking part again." in log.read_text())
        await_condition(lambda: supernodes() > 0)
        os.kill(node.pid, signal.SIGTERM)
        assert node.wait(timeout=300) == 130
        await_condition(lambda: marked_processes(MARK, mark) == [])
    finally:
        end_all(lambda: marked_processes(MARK, mark))
