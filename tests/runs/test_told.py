"""What the ServerApp says of a round, in the log that Flower keeps."""

from __future__ import annotations

import math

from server_app.told import MOST_LETTERS, round_line, say
from strategies.federation.replies import Failure

LINE = {
    "users": 7,
    "asked": 8,
    "loss": 0.51234,
    "bytes": {"down_per_user": 51_234.0, "up_per_user": 580.0},
    "seconds": {"total": 2.04},
    "nodes": {"present": 2, "absent": 1, "resting": [17]},
    "failures": [],
}


def test_a_round_in_words():
    ending = "2.0 s; 51 KB down and 580 B up per user; nodes 2 there, 1 absent, 1 resting"
    assert round_line(3, 20, LINE) == f"round 3/20; users 7/8; loss 0.5123; {ending}"
    evaluated = {"validation": {"full": {"HR@10": 0.1331, "NDCG@10": None}}}
    beginning = "round 20/20; users 7/8; validation HR@10 .133, NDCG@10 –; "
    assert round_line(20, 20, {**LINE, "loss": math.nan, **evaluated}) == beginning + ending


def test_the_first_failure_is_one_line_however_much_a_node_says():
    failures = [{"node": 5, "users": 1, "reason": "no\nroom " * 100}, {"node": 6, "users": 1, "reason": "other"}]
    said = round_line(1, 1, {**LINE, "failures": failures})
    assert said.endswith("; 2 failed, the first: " + ("no room " * 100)[:MOST_LETTERS])


def test_what_a_node_says_gives_no_orders_to_a_terminal():
    """ESC [ 2 J would empty the operator's screen."""
    assert Failure(1, 1, "no\x1b[2J\x9b1mway\n\there").reason == "no?[2J?1mway\n\there"


def test_what_is_said_can_be_written_in_any_encoding(capsys):
    say("round 1/1; NDCG@10 –; disk of Zoë is full")
    assert capsys.readouterr().out == "round 1/1; NDCG@10 -; disk of Zo\\xeb is full\n"
