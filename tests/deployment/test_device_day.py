"""A device's day: it says how it is doing, rests while its conditions do not hold, and runs as a service."""

import configparser
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time

import click
import pytest
import typer

from bouquet.cli.main import app
from bouquet.cli.node_record import is_running, read_record
from bouquet.conditions import Conditions, charging, idle
from bouquet.deployment import supervise as module
from bouquet.deployment.keys import make_node_keys
from bouquet.deployment.local import SUPERLINK
from bouquet.deployment.supervise import Listener, Program, supervise
from bouquet.errors import ConfigError
from bouquet.reporting.run_directory import RunDirectory
from tests.conftest import REPOSITORY
from tests.deployment.devices import kill, log_of, start_device, write_history
from tests.deployment.fleet import write_catalogue
from tests.runs.helpers import await_condition, bouquet, pairs, small_settings, start_bouquet

ITEMS = [f"i{number}" for number in range(30)]


# -- conditions ------------------------------------------------------------------------------------------------------


def supply(folder, **words):
    folder.mkdir(parents=True)
    for name, word in words.items():
        (folder / name).write_text(word + "\n")


def test_charging_as_linux_tells_it(tmp_path):
    assert "is not there to tell" in charging(tmp_path / "none")
    (tmp_path / "desktop").mkdir()
    assert charging(tmp_path / "desktop") == ""

    phone = tmp_path / "phone"
    supply(phone / "battery", type="Battery", status="Discharging")
    supply(phone / "usb", type="USB", online="0")
    assert charging(phone) == "the battery says 'Discharging'"
    (phone / "battery" / "status").write_text("Charging\n")
    assert charging(phone) == ""
    # A laptop that holds its battery at four fifths: on mains, and not charging.
    (phone / "battery" / "status").write_text("Not charging\n")
    assert charging(phone) == "the battery says 'Not charging'"
    (phone / "usb" / "online").write_text("1\n")
    assert charging(phone) == ""

    mouse = tmp_path / "mouse"
    supply(mouse / "hid", type="Battery", scope="Device", status="Discharging")
    assert charging(mouse) == "", "a desktop whose mouse has a battery"


def test_idle_by_the_load_of_the_last_minute(tmp_path):
    assert "is not there to tell" in idle(tmp_path)
    (tmp_path / "loadavg").write_text("1.00 5.00 5.00 1/100 4242\n")
    assert idle(tmp_path, cores=2) == ""
    assert idle(tmp_path, cores=1) == "the load average is 1, above 0.5"


def test_a_command_says_yes_by_its_exit_status_and_in_time(tmp_path, monkeypatch):
    flag = tmp_path / "flag"
    conditions = Conditions(["true", f"test -e {flag}"])
    assert conditions.against() == f"'test -e {flag}' says no, with exit status 1"
    flag.touch()
    assert conditions.against(fresh=60.0) != "", "an answer that is fresh enough counts"
    assert conditions.against() == ""
    assert Conditions().against() == ""

    monkeypatch.setattr("bouquet.conditions.ANSWER_SECONDS", 0.2)
    begin = time.monotonic()
    assert Conditions(["sleep 60 | cat"]).against() == "'sleep 60 | cat' says no, having given no answer within 0.2 s"
    assert time.monotonic() - begin < 30


def test_a_misspelt_condition_is_refused():
    with pytest.raises(ConfigError, match="'chargin' is neither a condition nor a program. Did you mean 'charging'"):
        Conditions(["idle", "chargin"]).refuse_unknown()
    Conditions(["charging", "true", "test -e /x && true"]).refuse_unknown()


@pytest.fixture
def signals():
    """What a process that supervises does on SIGTERM is put back."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("signals")
def test_a_program_is_started_when_its_conditions_hold_and_again_when_they_hold_again(tmp_path, monkeypatch):
    """A program that ends as a SuperNode does that leaves: the flag is gone, and comes with every third question."""
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.05)
    flag, heard = tmp_path / "flag", []

    class Heard(Listener):
        def rests(self, reason):
            heard.append("rests")
            if heard.count("rests") % 3 == 0:
                flag.touch()

        def starts(self):
            assert flag.exists()
            heard.append("starts")
            if heard.count("starts") == 2:
                raise KeyboardInterrupt

        def ended(self, program, status, pause):
            heard.append("ended")

    with pytest.raises(KeyboardInterrupt):
        supervise(Program(["rm", str(flag)]), Heard(), Conditions([f"test -e {flag}"]))
    assert heard == 2 * ["rests", "rests", "rests", "starts"]


# -- a device among others, over gRPC --------------------------------------------------------------------------------


def registered(folder, deployment, items):
    """A folder of a device whose key the SuperLink knows before it is first started."""
    folder.mkdir()
    write_history(folder / "history.csv", items)
    make_node_keys(folder / "state" / "keys")
    deployment.control.register(folder / "state" / "keys" / "node.pub")
    return folder


def status_of(folder):
    """`bouquet node status` of a device, asked from its folder."""
    done = bouquet("node", "status", "--state", "state", "--format", "json", cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.flower
@pytest.mark.slow
def test_a_device_rests_while_its_condition_says_no_and_the_run_goes_on_without_it(tmp_path, deployment):
    done = bouquet("deploy", "up", "--dir", str(deployment.folder), "--nodes", "0")
    assert done.returncode == 0, done.stderr
    flag = tmp_path / "flag"
    ann, bob = (registered(tmp_path / name, deployment, ITEMS[n : n + 12]) for n, name in enumerate(("ann", "bob")))
    ca = ["--ca", str(deployment.keys / "operator" / "ca.crt"), "--data"]
    only = ["--only-when", f"test -e {flag}"]
    first = start_device(ann, deployment, tmp_path / "ann.txt", *ca, str(ann / "history.csv"), *only)
    other = start_device(bob, deployment, tmp_path / "bob.txt", *ca, str(bob / "history.csv"))
    says_no = f"'test -e {flag}' says no, with exit status 1"
    await_condition(lambda: f"Resting: {says_no}." in (tmp_path / "ann.txt").read_text())
    found = status_of(ann)
    assert (found["running"], found["connection"]) == (True, "resting")
    assert found["conditions"] == {"asked": [f"test -e {flag}"], "hold": False, "reason": says_no}
    assert found["last_round"] is None

    # One person's folder has one `bouquet node`; a second one is told so.
    refused = bouquet("node", "--state", "state", "--superlink", deployment.plan.fleet, cwd=ann)
    assert refused.returncode == 2
    assert "Another `bouquet node` is running on state." in refused.stderr

    await_condition(lambda: read_record(bob / "state").get("connection") == "connected")
    settings = small_settings(tmp_path, num_server_rounds=1000, evaluate_every=1000, min_reply_fraction=0.4)
    keep = ("num-server-rounds", "evaluate-every", "embedding-size", "batch-size", "min-reply-fraction")
    given = {key: settings[key] for key in keep} | {"min-nodes": 1, "round-timeout": 600.0}
    given["catalogue-file"] = str(write_catalogue(tmp_path / "catalogue.csv", ITEMS))
    out = RunDirectory(tmp_path / "run")
    run = start_bouquet("deploy", "run", "--dir", str(deployment.folder), *pairs(given), "--out", str(out.path))
    await_condition(lambda: len(out.rounds()) >= 2)
    assert {line["users"] for line in out.rounds()} == {1}

    flag.touch()
    await_condition(lambda: out.rounds()[-1]["users"] == 2)
    found = status_of(ann)
    assert (found["connection"], found["conditions"]["hold"]) == ("connected", True)
    assert found["last_round"]["strategy"] == "fedavg"
    assert found["last_round"]["items"] == 10

    flag.unlink()
    await_condition(lambda: read_record(ann / "state")["connection"] == "resting")
    begin = len(out.rounds())
    await_condition(lambda: len(out.rounds()) >= begin + 2)
    # It leaves between two messages: what it had done counts, the next one costs nobody a deadline, and no more come.
    assert max(line["seconds"]["total"] for line in out.rounds()) < 60
    assert sum(len(line["failures"]) for line in out.rounds()) <= 1
    assert (out.rounds()[-1]["asked"], out.rounds()[-1]["users"]) == (1, 1)
    assert "is lost" not in (tmp_path / "ann.txt").read_text()

    said = log_of(deployment, out.rounds()[-1]["round"])
    said = [line for line in said.splitlines() if line.startswith("round ")]
    assert any("; users 2/2; " in line for line in said)
    assert said[-1].endswith("; nodes 1 there, 1 absent, 0 resting")
    os.kill(run.pid, signal.SIGTERM)
    run.communicate(timeout=300)
    kill(deployment.processes(SUPERLINK))
    # Lost, or out of reach if its SuperNode had just been started anew.
    away = ("lost", "unreachable", "failed")
    await_condition(lambda: read_record(bob / "state")["connection"] in away)
    os.kill(other.pid, signal.SIGKILL)
    other.wait()
    os.kill(first.pid, signal.SIGINT)
    assert first.wait(timeout=300) == 130
    assert not is_running(ann / "state")

    with (bob / "history.csv").open("a") as file:
        file.write("\ni29,soon\ni28,50\n")
    found = status_of(bob)
    assert [found[name] for name in ("running", "process", "connection", "ended")] == [False, None, None, None]
    assert (found["history"]["items"], found["history"]["left_out"]) == (13, 1)
    assert found["conditions"] == {"asked": [], "hold": None, "reason": ""}
    assert found["private_state"]["runs"] == 1
    assert found["private_state"]["bytes"] > 0
    said = bouquet("node", "status", "--state", "state", cwd=bob).stdout
    assert "and did not end in order" in said
    assert "line 15: its time is neither a number nor an ISO 8601 date" in said
    said = bouquet("node", "status", "--state", "state", cwd=ann).stdout
    assert f"Conditions test -e {flag} (asked only while the node runs)" in said
    assert "Node       not running; ended " in said


# -- as a service ----------------------------------------------------------------------------------------------------

UNIT = REPOSITORY / "deployment" / "bouquet-node.service"


def service():
    """The directives of the unit's service, each with its last value."""
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str
    unit.read_string(UNIT.read_text())
    return dict(unit["Service"])


def test_the_unit_starts_a_command_that_the_program_takes():
    """Its command line, with its variables filled in as systemd does, goes through the program's own parser."""
    given = {"BOUQUET_SUPERLINK": "hub:9092", "BOUQUET_HISTORY": "/srv/h.csv", "BOUQUET_CA": "/etc/bouquet/ca.crt"}
    given["BOUQUET_OPTIONS"] = "--only-when charging --only-when idle"
    line = service()["ExecStart"].replace("%S", "/var/lib")
    for name, value in given.items():
        line = line.replace(f"${{{name}}}", shlex.quote(value)).replace(f"${name}", value)
    words = shlex.split(line)
    assert words[0].endswith("/bouquet")
    command = typer.main.get_command(app).get_command(click.Context(click.Command("bouquet")), words[1])
    parameters = command.make_context("node", words[2:]).params
    assert str(parameters["state"]) == "/var/lib/bouquet/device"
    assert list(parameters["only_when"]) == ["charging", "idle"]
    # An order to end is no failure: the program says so by the status of an interrupted one.
    assert "130" in service()["SuccessExitStatus"].split()


def test_the_unit_gives_the_service_no_more_than_it_needs():
    found = service()
    assert found["User"] != "root"
    assert found["ProtectSystem"] == "strict"
    assert {found[name] for name in ("NoNewPrivileges", "PrivateTmp", "PrivateDevices", "RestrictNamespaces")} == {
        "yes"
    }
    assert found["CapabilityBoundingSet"] == ""
    assert found["Restart"] == "on-failure"
    assert found["MemoryMax"] == "1G"
    assert "WatchdogSec" not in found, "nothing feeds a watchdog"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not on this machine")
def test_systemd_takes_the_unit(tmp_path):
    """Every directive is known to systemd; the program stands elsewhere on this machine."""
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace(service()["ExecStart"].split()[0], sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
