"""Secure sums of people's devices: each makes its own key, the operator certifies it, and all are processes."""

import json
import os
import shutil
import signal

import pytest

from bouquet.deployment.keys import certify, make_keys, make_node_keys
from bouquet.device import Device
from bouquet.masking.identity import Registered
from bouquet.reporting.run_directory import RunDirectory
from bouquet.sealing import read_seal
from tests.deployment.devices import start_device, write_history
from tests.deployment.fleet import write_catalogue
from tests.runs.helpers import await_condition, bouquet, pairs
from tests.runs.sums import ITEMS, assert_same, sums_of, sums_of_devices

PEOPLE = {"ann": ITEMS[:12], "bob": ITEMS[5:16], "cid": ITEMS[20:33], "dan": ITEMS[8:30:2]}
ACCEPTS = ["--accept-updates", "secure", "--accept-nodes", "4"]


def taken_part(folder, to):
    """The device's history and what was trained of it, as a device without keys."""
    trained = Device(folder / "state", read_seal(folder / "state" / "keys" / "state.key")).trained()
    shutil.copytree(folder, to, ignore=shutil.ignore_patterns("state"))
    Device(to).mark_trained(sorted(trained))
    return to


@pytest.mark.flower
@pytest.mark.slow
def test_four_devices_with_keys_of_their_own_make_one_sum_and_each_alone_gives_nothing(tmp_path, deployment):
    """Two are certified while they run, two before they start; the sum is that of the same four without masks."""
    done = bouquet("deploy", "up", "--dir", str(deployment.folder), "--nodes", "0")
    assert done.returncode == 0, done.stderr
    folders = {name: tmp_path / name for name in PEOPLE}
    said = {name: tmp_path / f"{name}.txt" for name in PEOPLE}
    for name, folder in folders.items():
        folder.mkdir()
        write_history(folder / "history.csv", PEOPLE[name])
    devices = {}

    def start(name, *options):
        authority = ["--ca", str(deployment.keys / "operator" / "ca.crt")]
        given = ["--data", str(folders[name] / "history.csv"), *authority, *ACCEPTS, *options]
        devices[name] = start_device(folders[name], deployment, said[name], *given)

    keys = {name: folder / "state" / "keys" for name, folder in folders.items()}
    for name in ("ann", "bob"):
        start(name)
    for name in ("cid", "dan"):
        make_node_keys(keys[name])
    await_condition(lambda: all((folder / "node.pub").exists() for folder in keys.values()))
    # What the operator is sent, and sends back.
    desk = tmp_path / "desk"
    desk.mkdir()
    for name, folder in keys.items():
        shutil.copy(folder / "node.pub", desk / f"{name}.pub")
    public = [str(desk / f"{name}.pub") for name in PEOPLE]
    certified = bouquet("deploy", "keys", "--out", str(deployment.keys), *(w for k in public for w in ("--certify", k)))
    assert certified.returncode == 0, certified.stderr
    assert "bouquet node --certificate ann.crt" in certified.stdout
    registered = bouquet("deploy", "register", *public, "--dir", str(deployment.folder))
    assert registered.returncode == 0, registered.stderr
    for name in ("cid", "dan"):
        start(name, "--certificate", str(desk / f"{name}.crt"))
    await_condition(lambda: all("Connected:" in path.read_text() for path in said.values()))
    assert "has no certificate by which other nodes would know it" in said["ann"].read_text()
    assert "certificate" not in said["cid"].read_text()

    catalogue = write_catalogue(tmp_path / "catalogue.csv", ITEMS)
    chosen = {"strategy": "sequential-rules", "published-neighbors": 0, "min-nodes": 4}
    chosen |= {"catalogue-file": str(catalogue)}

    def run(out, *more):
        given = pairs({**chosen, "out": str(tmp_path / out)})
        return bouquet("deploy", "run", "--dir", str(deployment.folder), *given, *more)

    plain = run("plain")
    assert plain.returncode != 0
    assert "updates under masks (the run: no secure-sums)" in plain.stdout + plain.stderr

    for name in ("ann", "bob"):
        assert json.loads(status(folders[name]))["certificate"] is False
        shutil.copy(desk / f"{name}.crt", keys[name] / "node.crt")
        assert json.loads(status(folders[name]))["certificate"] is True
    authority = deployment.keys / "server" / "ca.crt"
    done = run("run", "-c", f'secure-sums=true secure-sums-authority="{authority}"')
    assert done.returncode == 0, done.stderr
    out = RunDirectory(tmp_path / "run")
    (line,) = out.rounds()
    assert (line["users"], line["failures"]) == (4, [])
    for device in devices.values():
        os.kill(device.pid, signal.SIGINT)
        assert device.wait(timeout=300) == 130
    same = [taken_part(folder, tmp_path / "plain" / name) for name, folder in folders.items()]
    assert_same(sums_of_devices(same, "sequential-rules", tmp_path), sums_of(out))


def status(folder):
    done = bouquet("node", "status", "--state", "state", "--format", "json", cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_device_is_told_of_a_certificate_that_is_not_its_own(tmp_path):
    """Before anything is started or written: with a wrong one every other node would refuse the round."""
    make_keys(tmp_path / "keys", ["localhost"], [])
    make_keys(tmp_path / "others", ["localhost"], ["node-1"])
    write_history(tmp_path / "history.csv", ITEMS[:5])
    make_node_keys(own := tmp_path / "state" / "keys")
    other = tmp_path / "others" / "nodes" / "node-1" / "node.crt"
    foreign = certify(tmp_path / "others", own / "node.pub").rename(tmp_path / "foreign.crt")
    here = ["--data", "history.csv", "--state", "state", "--ca", str(tmp_path / "keys" / "server" / "ca.crt")]
    wrong = {other: "is of another key than the node's", foreign: "is none of the authority of"}
    for certificate, sentence in wrong.items():
        given = ["--superlink", "localhost:1", *here, "--certificate", str(certificate)]
        done = bouquet("node", *given, cwd=tmp_path)
        assert done.returncode == 2, done.stderr
        assert sentence in done.stderr
        assert not (own / "node.crt").exists()
    (own / "node.crt").write_bytes(certify(tmp_path / "keys", own / "node.pub").read_bytes())
    assert Registered.at(own).certificate
