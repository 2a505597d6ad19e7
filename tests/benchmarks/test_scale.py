"""A real run over users that are made up, of whom few train in a round."""

import json

from benchmarks import scale


def test_what_a_run_took_is_told(capsys):
    """A fifth of 200 users trains in each of two rounds; every message carries the table of at most 100 items."""
    sizes = {"--users": 200, "--items": 100, "--mean-length": 15, "--per-round": 40, "--rounds": 2, "--nodes": 2}
    scale.main([*(str(word) for pair in sizes.items() for word in pair), "--json"])
    (found,) = json.loads(capsys.readouterr().out)
    assert found["strategy"] == "fedavg"
    assert (found["users"], found["a round"], found["rounds"]) == (200, 40, 2)
    assert 0 < found["down_per_user"] <= 4 * 16 * 100 + 100
    assert 0 < found["up_per_user"] < found["down_per_user"]
    assert found["seconds"] > found["seconds_per_round"] > 0
    assert found["peak_mib"] > 50
