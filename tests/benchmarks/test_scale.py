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


def test_of_all_methods_it_is_said_which_are_refused_and_why(capsys):
    """SCAFFOLD's server needs more than sums, so that no noise makes it private; FCF's and its plug-ins' do not."""
    sizes = {"--users": 60, "--items": 50, "--per-round": 60, "--rounds": 1, "--nodes": 1}
    words = [str(word) for pair in sizes.items() for word in pair]
    given = json.dumps({"dp-epsilon": 8.0, "embedding-size": 4, "local-epochs": 1})
    scale.main([*words, "--all", "--strategies", "fcf", "scaffold", "--settings", given, "--json"])
    found = {(row["strategy"], row["personalization"]): row for row in json.loads(capsys.readouterr().out)}
    refused = found.pop(("scaffold", "none"))
    assert "users" not in refused
    assert refused["not measured"].startswith("scaffold needs more of users than sums over them")
    assert list(found) == [("fcf", "none"), ("fcf", "ace"), ("fcf", "plgc")]
    assert all(row["users"] == 60 and "not measured" not in row for row in found.values())
