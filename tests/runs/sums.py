"""Runs of methods of sums: which they are, small settings, devices with histories, and what was published."""

import json

import numpy as np

from bouquet.device import Device
from bouquet.methods import METHODS
from bouquet.methods.manifest import class_at
from tests.deployment.fleet import Fleet, write_catalogue, write_history
from tests.runs.helpers import last_checkpoint, run_here, small_settings

SUMS = sorted(name for name, method in METHODS.items() if method.kind == "sums")
# Whose sums are of cells: exact, given once, and kept by the server. Others ask for theirs anew in every round.
CELLS = [name for name in SUMS if class_at(METHODS[name].strategy).update == "cells"]
ITEMS = [f"i{number}" for number in range(40)]


def settings_of(tmp_path, strategy, **changes):
    return small_settings(tmp_path, strategy=strategy, **{"num_server_rounds": 1, "published_neighbors": 0, **changes})


def model_of(directory):
    """What was published, and the sums that it is made of."""
    checkpoint = last_checkpoint(directory)
    return checkpoint.shared | checkpoint.extra


def assert_same(first, other):
    """To the last bit."""
    assert first.keys() == other.keys()
    for name, values in first.items():
        assert np.array_equal(values, other[name]), name


def devices_in(folder, lengths):
    """Devices whose people have had so many of the items, each from another one on."""
    return [
        write_history(folder / name, [ITEMS[(7 * n + place) % len(ITEMS)] for place in range(length)], name)
        for n, (name, length) in enumerate(lengths.items())
    ]


def run(tmp_path, devices, strategy, name="run", plan=None, **changes):
    catalogue = write_catalogue(tmp_path / "catalogue.csv", ITEMS)
    given = {"catalogue_file": str(catalogue), "evaluate_every": 1, "min_nodes": len(devices), **changes}
    return run_here(
        tmp_path / name, settings_of(tmp_path, strategy, **given), len(devices), Fleet, devices=devices, plan=plan
    )


def append(folder, items):
    with (folder / "history.csv").open("a") as file:
        file.writelines(f"{item},{1000 + place}\n" for place, item in enumerate(items))


def trained_of(folder):
    return set(Device(folder).trained())


def sums_of(directory):
    return last_checkpoint(directory).extra


def sums_of_devices(devices, strategy, tmp_path):
    """What devices with these histories, and what was trained of them, give at once."""
    fresh = []
    for folder in devices:
        device = Device(tmp_path / "fresh" / folder.name)
        write_history(device.folder, [], folder.name)
        (device.folder / "history.csv").write_text((folder / "history.csv").read_text())
        device.mark_trained(sorted(Device(folder).trained()))
        fresh.append(device.folder)
    return sums_of(run(tmp_path, fresh, strategy, "fresh run"))


def best_of(capsys):
    return [entry["item"] for entry in json.loads(capsys.readouterr().out)]
