"""`docker-compose.yml` in a real engine: a run completes, and a node's container that was broken into is no operator.

Needs a Docker engine, Compose (1.29 or 2) and the image of this state: `docker compose build`, and its name in
`BOUQUET_TEST_IMAGE`, because an image that was built of another state would be tested in its place.
"""

import json
import os
import shutil
import subprocess
import uuid

import pytest

from bouquet.engines.ports import free_port
from tests.conftest import REPOSITORY

pytestmark = pytest.mark.slow

IMAGE = os.environ.get("BOUQUET_TEST_IMAGE", "")

# What somebody does who has all that a node's container has: its files, its network, and Flower.
BROKEN_INTO = """
import json, socket, subprocess, sys
from pathlib import Path
from bouquet.engines.app_folder import write_app_folder
from bouquet.engines.control import Control
from bouquet.engines.release import secure_connection
from bouquet.experiments.settings import resolve

control = sys.argv[1]
found = {}
try:
    found["control"] = socket.gethostbyname("control")
except OSError:
    found["control"] = ""


def opens(host, port):
    with socket.socket() as one:
        one.settimeout(2.0)
        return one.connect_ex((host, port)) == 0


superlink = socket.gethostbyname("superlink")
found["open"] = [port for port in range(1, 65536) if opens(superlink, port)]
found["gate by its number"] = opens(control, 8000)
rights = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff")]
found["rights"] = int(rights[0].split()[1], 16)
found["keys"] = sorted(path.name for path in Path("/keys").rglob("*") if path.is_file())
app = Path("/tmp/app")
write_app_folder(app, resolve(None, []))
for number, address in enumerate(("superlink:8000", "superlink:9092", f"{control}:8000")):
    operator = Control(Path(f"/tmp/home-{number}"), secure_connection(address, Path("/keys/node/ca.crt")))
    command = ["flwr", "run", str(app), "bouquet", "--format", "json"]
    try:
        done = subprocess.run(
            command, env=operator.environment, cwd=operator.home, capture_output=True, text=True, timeout=60
        )
        found[f"submits {number}"] = '"run-id"' in done.stdout
    except subprocess.TimeoutExpired:
        found[f"submits {number}"] = False
print(json.dumps(found))
"""


def compose_command():
    """Compose as it is installed here, or the reason why it cannot be used."""
    if not IMAGE:
        return [], "BOUQUET_TEST_IMAGE names no image; build one with: docker compose build"
    if not shutil.which("docker"):
        return [], "no docker here"
    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        return [], "no Docker engine answers (DOCKER_HOST)"
    if subprocess.run(["docker", "image", "inspect", IMAGE], capture_output=True, check=False).returncode:
        return [], f"the engine has no image {IMAGE}"
    for words in (["docker", "compose"], ["docker-compose"]):
        if (
            shutil.which(words[0])
            and not subprocess.run([*words, "version"], capture_output=True, check=False).returncode
        ):
            return words, ""
    return [], "no Compose here"


class Containers:
    """One project of the Compose file."""

    def __init__(self, words, folder):
        self.project = f"bouquet-test-{uuid.uuid4().hex[:8]}"
        self._words = [*words, "-p", self.project, "-f", str(REPOSITORY / "docker-compose.yml")]
        self._environment = {
            **os.environ,
            "BOUQUET_IMAGE": IMAGE,
            "BOUQUET_DATA": str(folder),
            "BOUQUET_DATASET": "synthetic",
            "BOUQUET_FLEET_PORT": str(free_port()),
        }

    def __call__(self, *arguments, **others):
        done = subprocess.run(
            [*self._words, *arguments],
            env=self._environment,
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=False,
            **others,
        )
        assert done.returncode == 0, f"{' '.join(arguments)}: {done.stdout[-2000:]} {done.stderr[-3000:]}"
        return done.stdout

    def address(self, service, network):
        (identity,) = self("ps", "-q", service).split()
        form = f'{{{{(index .NetworkSettings.Networks "{self.project}_{network}").IPAddress}}}}'
        done = subprocess.run(
            ["docker", "inspect", "-f", form, identity],
            capture_output=True,
            text=True,
            check=True,
            env=self._environment,
        )
        return done.stdout.strip()


@pytest.fixture(scope="module")
def containers(tmp_path_factory):
    words, reason = compose_command()
    if reason:
        pytest.skip(reason)
    project = Containers(words, tmp_path_factory.mktemp("data"))
    try:
        project("--profile", "shards", "up", "-d", "--no-build")
        yield project
    finally:
        project("--profile", "shards", "--profile", "tools", "--profile", "devices", "down", "-v")


@pytest.mark.parametrize("masks", ["", ' secure-sums=true secure-sums-authority="/keys/executor/ca.crt"'])
def test_a_run_completes_in_containers(containers, masks):
    settings = "num-server-rounds=3 evaluate-every=3 min-nodes=3 node-timeout=900" + masks
    said = containers("run", "--rm", "operator", "run", "-c", settings)
    assert "3/3" in said
    status = json.loads(containers("run", "--rm", "operator", "status", "--format", "json"))
    assert status["status"] == "completed"
    assert status["users"] == 600


def test_a_node_that_was_broken_into_reaches_nothing_of_the_operators(containers):
    """Before the gate it submitted an app from here, which ran on all nodes and opened each one's state key."""
    control = containers.address("superlink", "control")
    assert control
    found = json.loads(
        containers("exec", "-T", "node-1", "python", "-c", BROKEN_INTO, control).strip().splitlines()[-1]
    )
    assert found["control"] == "", "the name is of the other network"
    assert found["open"] == [9092]
    assert not found["gate by its number"]
    assert found["rights"] == 0
    local, own = ["local-ca.crt", "local.crt", "local.key"], ["node.crt", "node.key", "node.pub", "state.key"]
    assert found["keys"] == ["ca.crt", *local, *own]
    assert not any(found[name] for name in found if name.startswith("submits"))
