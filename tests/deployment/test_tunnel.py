"""The gate before the control port: who gets through, and that it is the only way, with real sockets and processes."""

import base64
import os
import shutil
import socket
import ssl
import stat
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from bouquet.cli.operate import target_of
from bouquet.deployment import keys as making
from bouquet.deployment.keys import make_keys
from bouquet.deployment.local import MARK
from bouquet.deployment.tunnel import Gate, Tunnel
from bouquet.engines.app_folder import write_app_folder
from bouquet.engines.control import Control
from bouquet.engines.ports import free_port, is_healthy
from bouquet.engines.processes import end_all, marked_processes
from bouquet.engines.release import secure_connection
from bouquet.errors import ConfigError, RunFailed
from bouquet.reporting.run_directory import RunDirectory
from tests.deployment.test_processes import with_programs
from tests.runs.helpers import PROGRAM, await_condition, bouquet, pairs, small_settings

# As in docker-compose.yml: nodes come to one address, operators to another.
FLEET, CONTROL = "127.0.0.1", "127.0.0.2"


@pytest.fixture
def keys(tmp_path):
    make_keys(tmp_path / "keys", [CONTROL], ["node-1"])
    return tmp_path / "keys"


@pytest.fixture
def served(keys):
    """A gate with a server behind it that answers like a SuperLink's health check."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format, *args):
            pass

    server = ThreadingHTTPServer((FLEET, 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys / "server/server.crt", keys / "server/server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with Gate(CONTROL, 0, server.server_port, keys / "server") as gate:
        yield f"{CONTROL}:{gate.port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("role", ["operator", "executor"])
def test_operators_and_executors_get_through_and_only_with_their_certificate(keys, served, role):
    with Tunnel(served, keys / role, role) as tunnel:
        assert is_healthy(served, keys / role / "ca.crt", tunnel.proxy)
    assert not is_healthy(served, keys / role / "ca.crt"), "not without the tunnel"


def answered(address, context):
    """Whether the gate lets a client speak to what is behind it."""
    host, port = address.split(":")
    try:
        with (
            socket.create_connection((host, int(port)), timeout=5) as plain,
            context.wrap_socket(plain, server_hostname=host) as outer,
        ):
            # The beginning of a TLS handshake with the server behind the gate; it answers whatever it is.
            outer.sendall(bytes.fromhex("1603010005") + b"hello")
            return outer.recv(1) != b""
    except OSError:
        return False


def calling(keys, certificate=None, key=None):
    context = ssl.create_default_context(cafile=keys / "operator/ca.crt")
    if certificate:
        context.load_cert_chain(certificate, key)
    return context


def test_no_other_certificate_opens_the_gate(keys, served, tmp_path):
    """What a node has, what the SuperLink has, one of another authority, and one of ours for another name."""
    assert answered(served, calling(keys, keys / "operator/operator.crt", keys / "operator/operator.key"))
    assert not answered(served, calling(keys))
    node = keys / "nodes/node-1"
    assert not answered(served, calling(keys, node / "local.crt", node / "local.key"))
    assert not answered(served, calling(keys, keys / "server/server.crt", keys / "server/server.key"))

    make_keys(tmp_path / "others", [CONTROL], [])
    other = tmp_path / "others/operator"
    assert not answered(served, calling(keys, other / "operator.crt", other / "operator.key"))

    authority = making._read_certificate(keys / "server/ca.crt")
    signing, own = making._read_key(keys / "ca/ca.key"), ec.generate_private_key(ec.SECP256R1())
    named = making._certificate("bouquet visitor", own, authority, signing, (), 30)
    (tmp_path / "v.crt").write_bytes(named.public_bytes(serialization.Encoding.PEM))
    (tmp_path / "v.key").write_bytes(making._pem(own))
    assert not answered(served, calling(keys, tmp_path / "v.crt", tmp_path / "v.key"))


def test_the_tunnel_is_for_those_who_know_its_password_and_leads_to_one_address(keys, served):
    with Tunnel(served, keys / "operator", "operator") as tunnel:

        def asked(target, password):
            token = base64.b64encode(f"bouquet:{password}".encode()).decode()
            with socket.create_connection(("127.0.0.1", tunnel.port), timeout=5) as client:
                client.sendall(f"CONNECT {target} HTTP/1.1\r\nProxy-Authorization: Basic {token}\r\n\r\n".encode())
                return client.recv(100).split(b" ")[1]

        password = tunnel.proxy.split(":")[2].split("@")[0]
        assert asked(served, password) == b"200"
        assert asked(served, "guessed") == b"407"
        assert asked("example.org:443", password) == b"403"
        environment = tunnel.environment
        assert environment["HTTPS_PROXY"] == environment["https_proxy"] == tunnel.proxy
        assert environment["NO_PROXY"] == environment["no_proxy"] == "", "or some addresses would go another way"


def test_a_tunnel_without_its_keys_or_to_no_address_says_what_is_missing(keys, tmp_path):
    with pytest.raises(ConfigError, match=r"operator\.crt is missing\. Make keys with: bouquet deploy keys"):
        Tunnel(f"{CONTROL}:1", keys / "nodes/node-1", "operator")
    with pytest.raises(ConfigError, match="address is HOST:PORT, not 'hub'"):
        Tunnel("hub", keys / "operator", "operator")
    with socket.create_server((CONTROL, 0)) as taken, pytest.raises(ConfigError, match="cannot be listened on"):
        Gate(CONTROL, taken.getsockname()[1], 1, keys / "server")


def test_an_operators_folder_is_its_own_even_where_somebody_made_one_before(keys, tmp_path, monkeypatch):
    """A folder under a name that could be foreseen, open to all: whoever made it could exchange what is submitted."""
    shared = tmp_path / "tmp"
    trap = shared / f"bouquet-operator-{os.getuid()}"
    trap.mkdir(parents=True)
    trap.chmod(0o777)
    monkeypatch.setattr("tempfile.tempdir", str(shared))
    homes = {target_of(tmp_path, f"{CONTROL}:1", keys / "operator", tmp_path).control.home for _ in range(2)}
    assert len(homes) == 2
    for home in homes:
        assert home != trap
        assert home.parent == shared
        assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert list(trap.iterdir()) == []


def listeners(port):
    """The IPv4 addresses on which a port of this machine is listened on."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = [line[1].split(":") for line in lines if line[3] == "0A"]
    return {socket.inet_ntoa(bytes.fromhex(host)[::-1]) for host, its in listening if int(its, 16) == port}


@pytest.fixture
def start(tmp_path):
    """Starts roles of a deployment, and ends them all."""
    mark = str(tmp_path / "roles")

    def begin(*arguments):
        with (tmp_path / "roles.txt").open("a") as log:
            return subprocess.Popen(
                [*PROGRAM, "serve", *map(str, arguments)],
                env={**with_programs(tmp_path), MARK: mark},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    yield begin
    end_all(lambda: marked_processes(MARK, mark))


@pytest.mark.flower
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="it is looked up who listens, in Linux's way")
def test_a_node_is_not_the_operator_and_the_operator_runs(tmp_path, keys, start):
    """A SuperLink on two addresses; a node's own keys submit nothing, and a run goes through gate and tunnels."""
    port, fleet = free_port(), f"{FLEET}:{free_port()}"
    control = f"{CONTROL}:{port}"
    database = ("--database", tmp_path / "superlink/superlink.db")
    superlink = start(
        "superlink", "--keys", keys / "server", *database, "--host", CONTROL, "--port", port, "--fleet", fleet
    )

    def check(role):
        return bouquet("serve", "check", control, "--keys", str(keys / role)).returncode == 0

    await_condition(lambda: check("operator"))
    assert check("executor")
    assert listeners(port) == {CONTROL}

    # What a node has: its folder of keys, and every address of the machine.
    write_app_folder(tmp_path / "app", small_settings(tmp_path))
    for address in (control, f"{FLEET}:{port}"):
        intruder = Control(tmp_path / "intruder", secure_connection(address, keys / "nodes/node-1/ca.crt"))
        with pytest.raises(RunFailed):
            intruder.submit(tmp_path / "app")
        with pytest.raises(RunFailed):
            intruder.nodes()
    node = shutil.copytree(keys / "nodes/node-1", tmp_path / "stolen")
    tried = bouquet("deploy", "status", "--superlink", control, "--keys", str(node))
    assert tried.returncode == 2
    assert "operator.crt is missing" in tried.stderr

    # The operator's own way, with everything that a run needs.
    settings = small_settings(tmp_path, num_server_rounds=1, evaluate_every=1)
    operator = ("--superlink", control, "--keys", str(keys / "operator"))
    assert bouquet("deploy", "register", *operator).returncode == 0
    start("executor", "--superlink", control, "--keys", keys / "executor")
    start("node", "--superlink", fleet, "--keys", keys / "nodes/node-1", "--state", tmp_path / "state",
          "--data-file", settings["data-file"])  # fmt: skip
    out = tmp_path / "run"
    given = pairs({**{key: settings[key] for key in ("dataset", "data-file", "time-column", "embedding-size")},
                   "num-server-rounds": 1, "evaluate-every": 1, "node-timeout": 200.0, "out": str(out)})  # fmt: skip
    done = bouquet("deploy", "run", *operator, "--runs", str(tmp_path / "runs"), *given)
    assert done.returncode == 0, done.stderr + (tmp_path / "roles.txt").read_text()[-3000:]
    assert RunDirectory(out).read_summary()["users"] == 40

    # Gate and SuperLink end together.
    superlink.terminate()
    assert superlink.wait(timeout=300) == 130
    assert listeners(port) == set()
