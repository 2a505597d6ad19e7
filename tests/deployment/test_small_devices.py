"""Devices of people with next to nothing, or everything: no history, one item, two, all items, one that shrinks."""

import json

import numpy as np
import pytest

from bouquet.cli.node import recommend_command
from bouquet.device import Device
from tests.deployment.fleet import Fleet, write_catalogue, write_history
from tests.runs.helpers import last_checkpoint, run_here, small_settings
from tests.runs.populations import combinations

ITEMS = [f"i{number}" for number in range(14)]
PEOPLE = {
    "nothing": [],
    "unknown": ["x", "y", "z"],
    "one": ["i3"],
    "two": ["i3", "i4"],
    "three": ["i5", "i6", "x", "i7"],
    "everything": ITEMS,
    "ordinary": ITEMS[2:11],
}
SOME = [chosen for chosen in combinations() if chosen[2] == "none" and chosen[1] in ("mf", "gru4rec")]


def run(tmp_path, strategy, backbone, plan=None, **changes):
    devices = {name: write_history(tmp_path / name, items, name) for name, items in PEOPLE.items()}
    catalogue = write_catalogue(tmp_path / "catalogue.csv", ITEMS)
    first = {"cf_fedsr_lambda_1": 0} if strategy == "cf-fedsr" else {}
    small = {"num_server_rounds": 4, "evaluate_every": 1, "checkpoint_every": 1, "min_nodes": 5, "max_length": 4}
    chosen = small_settings(
        tmp_path, strategy=strategy, backbone=backbone, catalogue_file=str(catalogue), **{**small, **first, **changes}
    )
    given = {round_: lambda fleet, act=act: act(devices) for round_, act in (plan or {}).items()}
    return devices, run_here(tmp_path / "run", chosen, len(devices), Fleet, devices=list(devices.values()), plan=given)


def assert_sound(directory):
    for values in last_checkpoint(directory).shared.values():
        assert np.isfinite(values).all()
    assert "NaN" not in json.dumps(directory.rounds())


@pytest.mark.parametrize(("strategy", "backbone", "_plug_in"), SOME)
def test_everybody_with_an_item_takes_part_and_gets_recommendations(tmp_path, capsys, strategy, backbone, _plug_in):
    devices, directory = run(tmp_path, strategy, backbone)
    summary = directory.read_summary()
    assert (summary["users"], summary["failures"]) == (5, 0)
    assert_sound(directory)
    for name in ("one", "two", "three", "ordinary"):
        capsys.readouterr()
        recommend_command(devices[name], 30, "json")
        best = {entry["item"] for entry in json.loads(capsys.readouterr().out)}
        assert best == set(ITEMS) - set(PEOPLE[name]), name
    assert Device(devices["two"]).trained() == {"i3", "i4"}
    assert Device(devices["three"]).trained() == {"i5"}
    assert Device(devices["everything"]).trained() == set(ITEMS[:-2])


@pytest.mark.parametrize(("strategy", "backbone", "_plug_in"), SOME)
def test_histories_may_shrink_and_all_their_items_may_have_been_trained(tmp_path, strategy, backbone, _plug_in):
    """In round 2 what is left of two histories was trained before; in round 3 one is empty, and one has begun."""

    def shrink(devices):
        write_history(devices["ordinary"], ITEMS[2:6], "ordinary")
        write_history(devices["three"], ["i5"], "three")

    def vanish(devices):
        write_history(devices["three"], [], "three")
        write_history(devices["nothing"], ["i1"], "nothing")

    _, directory = run(tmp_path, strategy, backbone, {2: shrink, 3: vanish}, min_reply_fraction=0.5)
    assert directory.read_summary()["status"] == "completed"
    assert_sound(directory)
    reasons = [json.loads(line) for line in directory.events.read_text().splitlines()]
    refused = {str(event.get("reason")) for event in reasons if "reason" in event}
    assert len(refused) == 1
    assert "has no item of the catalogue in its history any more" in refused.pop()
