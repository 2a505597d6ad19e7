"""Methods of sums on devices that are processes: exact whatever is killed, and who is forgotten was never there."""

import os
import signal

import numpy as np
import pytest

from bouquet.device import Device
from bouquet.reporting.run_directory import RunDirectory
from bouquet.sealing import read_seal
from tests.deployment.devices import start_device, write_history
from tests.deployment.fleet import write_catalogue
from tests.runs.helpers import await_condition, bouquet, pairs
from tests.runs.sums import ITEMS, assert_same, model_of, sums_of, sums_of_devices

pytestmark = [pytest.mark.flower, pytest.mark.slow]


def end(device):
    os.kill(device.pid, signal.SIGINT)
    device.wait(timeout=300)


def test_devices_are_killed_and_one_is_forgotten_and_the_sums_are_those_of_the_others(tmp_path, deployment):
    """After two rounds one device is killed and comes back with new items, and one has itself forgotten."""
    up = bouquet("deploy", "up", "--dir", str(deployment.folder), "--nodes", "0")
    assert up.returncode == 0, up.stderr
    people = {"ann": ITEMS[:12], "bob": ITEMS[5:16], "cid": ITEMS[20:33]}
    folders = {name: tmp_path / name for name in people}
    said = {name: tmp_path / f"{name}.txt" for name in people}
    devices = {}
    for name, folder in folders.items():
        folder.mkdir()
        write_history(folder / "history.csv", people[name])
        devices[name] = start_device(folder, deployment, said[name])
    for name, folder in folders.items():
        public = folder / "state" / "keys" / "node.pub"
        await_condition(lambda path=said[name]: "Not let in yet" in path.read_text())
        registered = bouquet("deploy", "register", str(public), "--dir", str(deployment.folder))
        assert registered.returncode == 0, registered.stderr
        await_condition(lambda path=said[name]: "Connected:" in path.read_text())

    out = RunDirectory(tmp_path / "run")
    catalogue = write_catalogue(tmp_path / "catalogue.csv", ITEMS)
    chosen = {"strategy": "sequential-rules", "published-neighbors": 0, "min-nodes": 3, "evaluate-every": 1}
    chosen |= {"num-server-rounds": 2, "checkpoint-every": 1, "catalogue-file": str(catalogue), "out": str(out.path)}
    first = bouquet("deploy", "run", "--dir", str(deployment.folder), *pairs(chosen))
    assert first.returncode == 0, first.stderr
    assert [line["users"] for line in out.rounds()] == [3, 3]
    before = model_of(out)

    os.kill(devices["ann"].pid, signal.SIGKILL)
    devices["ann"].wait()
    write_history(folders["ann"] / "history.csv", [*people["ann"], "i39", "i3", "i38"])
    devices["ann"] = start_device(folders["ann"], deployment, said["ann"])
    end(devices["bob"])
    forgetting = start_device(folders["bob"], deployment, said["bob"], "forget")
    for name in ("ann", "cid"):
        await_condition(lambda path=said[name]: "Connected:" in path.read_text())
    resume = f'resume="{out.path}" num-server-rounds=5 min-nodes=2'
    second = bouquet("deploy", "run", "--dir", str(deployment.folder), "-c", resume)
    assert second.returncode == 0, second.stderr
    assert forgetting.wait(timeout=300) == 0, said["bob"].read_text()
    assert "Nothing of this person is left on the server." in said["bob"].read_text()
    assert sum(line["nodes"]["forgotten"] for line in out.rounds()) == 1
    assert out.rounds()[-1]["users"] == 2
    for name in ("ann", "cid"):
        end(devices[name])

    others = []
    for name in ("ann", "cid"):
        state = folders[name] / "state"
        trained = Device(state, read_seal(state / "keys" / "state.key")).trained()
        plain = tmp_path / "plain" / name
        plain.mkdir(parents=True)
        (plain / "history.csv").write_text((folders[name] / "history.csv").read_text())
        Device(plain).mark_trained(sorted(trained))
        others.append(plain)
    found = sums_of(out)
    assert_same(sums_of_devices(others, "sequential-rules", tmp_path), found)
    assert any(not np.array_equal(found[name], before[name]) for name in found)
