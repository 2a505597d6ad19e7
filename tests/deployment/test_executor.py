"""What runs a node's messages: the code that is installed on it, in children of a warm executor."""

import contextlib
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from flwr.proto.fleet_pb2 import ActivateNodeResponse, DeactivateNodeResponse, PullMessagesResponse
from flwr.proto.fleet_pb2_grpc import FleetServicer, add_FleetServicer_to_server
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatResponse

from bouquet import __version__
from bouquet.deployment.keys import make_keys
from bouquet.deployment.local import MARK, SUPERLINK
from bouquet.engines.app_folder import write_app_folder
from bouquet.engines.processes import marked_processes
from bouquet.engines.release import has_fleet_port
from bouquet.errors import ConfigError
from bouquet.own_packages import command as own_program
from bouquet.reporting.run_directory import RunDirectory
from client_app.edge.asking import pull_parts_soon
from client_app.edge.executor import APP, installed_app
from client_app.edge.supernode import free_place
from client_app.training import compiler
from tests.deployment.devices import words_of
from tests.runs.helpers import await_condition, bouquet, pairs, run_here, small_settings, start_bouquet

PULLS = ("pull_objects", "pull_and_inflate_object_from_tree")


def test_parts_of_a_message_are_asked_for_soon_again():
    from flwr.supercore.inflatable import inflatable_utils
    from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError

    before = {name: dict(getattr(inflatable_utils, name).__kwdefaults__) for name in PULLS}
    try:
        pull_parts_soon()
        asked = []

        def late(identity):
            asked.append(identity)
            if len(asked) < 4:
                raise ObjectUnavailableError(identity)
            return b"x"

        assert inflatable_utils.pull_objects(["a"], late) == {"a": b"x"}
        assert len(asked) == 4
    finally:
        for name, defaults in before.items():
            getattr(inflatable_utils, name).__kwdefaults__.update(defaults)


@pytest.mark.parametrize(("app", "version"), [("acme/bouquet", __version__), (APP, "99.0.0")])
def test_a_run_of_another_app_or_release_is_refused(app, version):
    with pytest.raises(ConfigError, match=f"of the app {app} {version}, and this node runs what is installed on it"):
        installed_app(app, version, "")
    assert installed_app(APP, __version__, "") is not None


def test_kernels_are_handed_from_process_to_process(tmp_path):
    """What one process has compiled is asked for by name and types in another, and is then ready there."""
    settings = small_settings(tmp_path, num_server_rounds=1)
    run_here(tmp_path / "run", settings, 1)
    used = compiler.in_use()
    assert {name for name, _, _ in used} >= {"kernels"}
    compiler.load(used)
    assert compiler.in_use() == used


def test_what_a_child_has_read_is_ready_for_the_next_one(tmp_path):
    """As the executor does it: of the settings that the child says, and only of these."""
    code = (
        "import json, sys; from client_app import side; run, node = json.loads(sys.stdin.read())\n"
        "items = [tuple(sorted(part.items())) for part in (run, node)]\n"
        "assert side.last_built() is None\n"
        "first = side.node_of(run, node)\n"
        "assert side.last_built() == tuple(items)\n"
        "side.build(*items); assert side.node_of(run, node) is first\n"
        "side.build(tuple(sorted({**run, 'seed': 1}.items())), items[1])\n"
        "assert side.node_of(run, node) is not first and side._node.cache_info().currsize == 2\n"
    )
    node = {"partition-id": 0, "num-partitions": 2, "state-dir": str(tmp_path / "state")}
    given = json.dumps([small_settings(tmp_path), node])
    done = subprocess.run([sys.executable, "-c", code], input=given, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux alone kills with a parent")
def test_a_forked_process_ends_with_its_parent_whatever_it_waits_for():
    """The one that is killed is the parent; what it forked sleeps for an hour, as in a call that never returns."""
    code = (
        "import os, time; from client_app.edge import forks\n"
        "parent, child = os.getpid(), os.fork()\n"
        "if child == 0: forks.end_with_parent(parent); print(os.getpid(), flush=True)\n"
        "else: os.close(1)\n"  # so that a child which fails leaves nothing to wait for
        "time.sleep(3600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        try:
            forked = int(parent.stdout.readline())
        finally:
            parent.kill()
    await_condition(lambda: not Path(f"/proc/{forked}").exists())


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone counts what a process fills")
def test_a_message_that_wants_more_memory_than_is_free_fails_and_nothing_else_does():
    """With 300 MiB free, 100 MiB can be had and 2 GiB cannot, more than the room for the stacks of threads."""
    code = (
        "import numpy as np; from bouquet import needs\n"
        "needs.free_memory = lambda: 300 * 2**20; needs.os.cpu_count = lambda: 2\n"
        "needs.hold_to_free_memory(); np.ones(100 * 2**17)\n"
        "try: np.ones(2**28)\n"
        "except MemoryError: print('refused')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == "refused\n"


class BusySuperLink(FleetServicer):
    """Lets a node in; cancels its second question for messages, as with too much work, and fails at the fourth."""

    def __init__(self):
        self.questions = 0

    def ActivateNode(self, request, context):
        return ActivateNodeResponse(node_id=7)

    def DeactivateNode(self, request, context):
        return DeactivateNodeResponse()

    def SendNodeHeartbeat(self, request, context):
        return SendNodeHeartbeatResponse(success=True)

    def PullMessages(self, request, context):
        self.questions += 1
        if self.questions in (2, 4):
            context.abort(grpc.StatusCode.CANCELLED if self.questions == 2 else grpc.StatusCode.INTERNAL, "")
        return PullMessagesResponse()


def test_the_port_of_a_supernode_is_its_own_until_flower_listens_there():
    """Chosen by who started it, it was lost to another of 100 devices, and so at every further start."""
    with free_place() as held:
        place = held.getsockname()
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(place)
    with socket.socket() as flower:
        flower.bind(place)


@pytest.mark.skipif(not has_fleet_port(), reason="nodes of this release of Flower do not speak gRPC")
def test_a_supernode_asks_a_busy_superlink_again_and_ends_where_that_fails(tmp_path):
    """With its loop over, a thread of it was left: 47 of 100 devices on a busy machine waited for nothing, for ever."""
    make_keys(tmp_path / "keys", [], ["node-1"])
    keys, own = tmp_path / "keys/server", tmp_path / "keys/nodes/node-1"
    server = grpc.server(ThreadPoolExecutor(4))
    add_FleetServicer_to_server(superlink := BusySuperLink(), server)
    pair = (keys / "server.key").read_bytes(), (keys / "server.crt").read_bytes()
    fleet = f"127.0.0.1:{server.add_secure_port('127.0.0.1:0', grpc.ssl_server_credentials([pair]))}"
    server.start()
    tls = {"certfile": own / "local.crt", "keyfile": own / "local.key", "ca-certfile": own / "local-ca.crt"}
    command = [
        *own_program("client_app.edge.supernode"), "--superlink", fleet, "--root-certificates", str(own / "ca.crt"),
        "--auth-supernode-private-key", str(own / "node.key"), "--poll-interval", "0.1",
        "--rest-poll-interval", "0.1", *(word for key, path in tls.items() for word in (f"--ssl-{key}", str(path))),
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    finally:
        server.stop(None)
    assert "SuperNode ID: 7" in done.stderr
    assert superlink.questions == 4
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "RunFailed: The SuperNode has lost its connection.")


def settings_of(tmp_path, **changes):
    settings = small_settings(tmp_path, **changes)
    plain = ("embedding-size", "batch-size", *(key.replace("_", "-") for key in changes))
    up = ["--data-file", settings["data-file"], "-c", "time-column=time"]
    return settings, up, {key: settings[key] for key in plain}


@pytest.mark.flower
@pytest.mark.slow
@pytest.mark.parametrize("accepted", [[], ["--accept-apps"]])
def test_a_node_runs_no_code_that_came_with_a_run(tmp_path, deployment, accepted):
    """The server's app leaves a mark wherever it is imported; with `--accept-apps` it does.

    There is an executor from the first message on until none has come for a minute.
    """
    settings, data, _ = settings_of(tmp_path, num_server_rounds=1)
    done = bouquet("deploy", "up", "--dir", str(deployment.folder), "--nodes", "1", *data, *accepted)
    assert done.returncode == 0, done.stderr
    out, mark, app = RunDirectory(tmp_path / "run"), tmp_path / "mark", tmp_path / "app"
    write_app_folder(app, {**settings, "out": str(out.path), "min-nodes": 1})
    with (app / "client_app" / "app.py").open("a") as file:
        file.write(f"\nfrom pathlib import Path as Mark\nMark({str(mark)!r}).write_text('here')\n")
    assert len(members(deployment, "node-1")) == 2, "no executor before there is a message"
    assert deployment.control.submit(app)
    finished = ("completed", "failed")
    await_condition(lambda: out.summary.exists() and out.read_summary()["status"] in finished)
    assert out.read_summary()["status"] == "completed", deployment.log("node-1").read_text()[-2000:]
    assert mark.exists() == bool(accepted)
    await_condition(lambda: len(members(deployment, "node-1")) == 2)


def members(deployment, name):
    """SuperNode, keeper, executor and, while there is a message, its child: the first started first."""
    found = {}
    for process in deployment.processes(name):
        with contextlib.suppress(OSError):
            words = words_of(process)
            if b"client_app.edge.supernode" in words and b"bouquet.deployment.supervise" not in words:
                stat = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
                found[process] = int(stat[19])
    return sorted(found, key=lambda process: (found[process], process))


def long_run_of_two_nodes(tmp_path, deployment, round_timeout):
    """A run that ends when it is asked to, after its first two rounds: its process and its folder."""
    _, data, given = settings_of(tmp_path, num_server_rounds=2000, evaluate_every=2000, round_timeout=round_timeout)
    done = bouquet("deploy", "up", "--dir", str(deployment.folder), "--nodes", "2", *data)
    assert done.returncode == 0, done.stderr
    out = RunDirectory(tmp_path / "run")
    process = start_bouquet("deploy", "run", "--dir", str(deployment.folder), *pairs({**given, "out": str(out.path)}))
    await_condition(lambda: len(out.rounds()) >= 2)
    return process, out


def went_on(out, rounds):
    """Whether two more rounds are there, the last of them with all users."""
    return len(out.rounds()) > rounds + 1 and out.rounds()[-1]["users"] == 40


@pytest.mark.flower
@pytest.mark.slow
def test_whatever_of_a_node_is_killed_it_comes_back_and_nothing_is_left(tmp_path, deployment):
    """kill -9 of a child, an executor, a keeper and a SuperNode, while a run of two nodes goes on.

    And a Ctrl-C for a child: it says that it has failed, and leaves its SuperNode waiting for a reply.
    """
    process, out = long_run_of_two_nodes(tmp_path, deployment, round_timeout=60.0)
    kill, stop = signal.SIGKILL, signal.SIGINT
    for place, name, sign in [
        (3, "node-1", kill), (2, "node-1", kill), (1, "node-2", kill), (0, "node-2", kill), (3, "node-1", stop),
    ]:  # fmt: skip
        await_condition(lambda place=place, name=name: len(members(deployment, name)) > place, seconds=120)
        rounds = len(out.rounds())
        with contextlib.suppress(ProcessLookupError, IndexError):  # a child may have ended meanwhile
            os.kill(members(deployment, name)[place], sign)
        try:
            await_condition(lambda rounds=rounds: went_on(out, rounds) or process.poll() is not None, seconds=480)
            assert process.poll() is None, process.communicate()
        except AssertionError as error:
            logs = "\n".join(deployment.log(node).read_text()[-2000:] for node in ("node-1", "node-2"))
            said = out.events.read_text()[-2000:]
            raise AssertionError(f"{name} lost its process {place}, and then:\n{said}\n{logs}") from error
    os.kill(process.pid, signal.SIGTERM)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 130, stderr
    deployment.down()
    assert marked_processes(MARK, str(deployment.folder)) == []


def stopped_in_its_upload(deployment, name):
    """The child of a node, stopped when some parts of its reply were at the SuperLink and others were not; or None."""
    with contextlib.suppress(ProcessLookupError, IndexError):
        child, superlink = members(deployment, name)[3], deployment.folder / SUPERLINK / "superlink.db"
        os.kill(child, signal.SIGSTOP)
        # Whatever else is on its way has come when it is looked at again.
        for _ in range(3):
            time.sleep(0.3)
            with sqlite3.connect(f"file:{superlink}?mode=ro", uri=True) as database:
                if not database.execute("SELECT 1 FROM objects WHERE is_available = 0").fetchone():
                    os.kill(child, signal.SIGCONT)
                    return None
        return child
    return None


@pytest.mark.flower
@pytest.mark.slow
def test_a_node_that_dies_in_its_upload_costs_one_deadline_and_no_other_reply(tmp_path, deployment):
    """Its reply is at the SuperLink, and three minutes long its parts are expected there."""
    process, out = long_run_of_two_nodes(tmp_path, deployment, round_timeout=30.0)
    found = []
    await_condition(lambda: found.append(stopped_in_its_upload(deployment, "node-1")) or found[-1], seconds=300)
    rounds, begin = len(out.rounds()), time.monotonic()
    os.kill(found[-1], signal.SIGKILL)
    await_condition(lambda: len(out.rounds()) > rounds or process.poll() is not None, seconds=120)
    assert time.monotonic() - begin < 90, "three times the deadline"
    assert out.rounds()[rounds]["users"] == 20
    await_condition(lambda: went_on(out, rounds) or process.poll() is not None, seconds=300)
    os.kill(process.pid, signal.SIGTERM)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 130, stderr


# Flower's: a task without a sign of life for so long is given up.
PATIENCE_SECONDS = 60.0


@pytest.mark.flower
@pytest.mark.slow
def test_a_message_is_not_given_up_while_its_child_gets_no_processor(tmp_path, deployment):
    """On a busy machine a child has not come to its first sign of life in a minute; here the first one is stopped.

    A hundred devices beside two cores gave up the messages that they worked on, and began them anew, for ever.
    """
    _, data, given = settings_of(tmp_path, num_server_rounds=1, evaluate_every=1, round_timeout=400.0)
    done = bouquet("deploy", "up", "--dir", str(deployment.folder), "--nodes", "1", *data)
    assert done.returncode == 0, done.stderr
    out = RunDirectory(tmp_path / "run")
    process = start_bouquet("deploy", "run", "--dir", str(deployment.folder), *pairs({**given, "out": str(out.path)}))
    await_condition(lambda: len(members(deployment, "node-1")) == 4, seconds=120)
    child = members(deployment, "node-1")[3]
    os.kill(child, signal.SIGSTOP)
    begin = time.monotonic()
    await_condition(lambda: time.monotonic() - begin > PATIENCE_SECONDS + 10, seconds=120)
    os.kill(child, signal.SIGCONT)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    assert out.rounds()[-1]["users"] == 40
    assert "authentication failed" not in deployment.log("node-1").read_text()
